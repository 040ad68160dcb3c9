import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from bottlegan.imaging.files import Pixels
from bottlegan.imaging.tensors import from_levels
from bottlegan.models.pixel_sets import CANDIDATES, DENSITY, REACHES, ROUGH, WINDOW, look_at, look_at_image, place_grid
from bottlegan.stain.density import to_density

SMOOTH = 2e-3  # roughness that rounding leaves of none: the square root of 1e-7 of a squared density


def draw(height: int, width: int, seed: int = 0) -> Pixels:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def look_slowly(image: Pixels, row: int, column: int) -> tuple[NDArray[np.float64], float]:
    """Return the densities (VIEWS, 3) of one pixel and its roughness, from the boxes themselves."""
    density = to_density(from_levels(torch.from_numpy(image)).double()).numpy()

    def box(reach: int) -> NDArray[np.float64]:
        top, left = max(row - reach, 0), max(column - reach, 0)
        return density[top : row + reach + 1, left : column + reach + 1].reshape(-1, 3)

    views = np.stack([density[row, column], *(box(reach).mean(0) for reach in REACHES)])
    return views, float(box(REACHES[ROUGH]).mean(1).std())


@settings(max_examples=25)
@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 300), st.integers(0, 99))
@example(1, 40, 1, 0)
@example(40, 1, 1, 0)
def test_surroundings_are_the_means_of_boxes_cut_off_at_the_border(
    height: int, width: int, most: int, seed: int
) -> None:
    image = draw(height, width, seed)
    density, roughness = look_at_image(image, most)
    rows, columns = place_grid(height, width, most)
    places = [(row, column) for row in rows for column in columns]
    assert len(density) == len(roughness) == len(places) > 0
    for index in range(0, len(places), 7):
        views, rough = look_slowly(image, *places[index])
        np.testing.assert_allclose(density[index], views, atol=1e-5)
        assert roughness[index] == pytest.approx(rough, abs=SMOOTH)


def test_the_density_of_a_level_is_ours() -> None:
    np.testing.assert_allclose(DENSITY, to_density(torch.arange(256).double() / 255).numpy(), rtol=1e-6)


@pytest.mark.parametrize("color", [(255, 255, 255), (240, 230, 235), (128, 128, 128), (90, 20, 140), (0, 0, 0)])
def test_one_color_is_the_same_everywhere_and_not_rough(color: tuple[int, int, int]) -> None:
    seen = look_at([np.full((200, 300, 3), color, np.uint8)])
    np.testing.assert_allclose(seen.density, np.broadcast_to(DENSITY[list(color)], seen.density.shape), atol=1e-5)
    assert seen.roughness.max() < SMOOTH


def test_noise_is_rough_and_a_slow_change_is_not() -> None:
    ramp = np.repeat(np.linspace(100, 200, 128).astype(np.uint8)[None, :, None], 128, axis=0).repeat(3, axis=2)
    assert look_at([ramp]).roughness.max() < 0.1 < np.median(look_at([draw(128, 128)]).roughness)


@pytest.mark.parametrize("shape", [(1, 1), (1, 9), (9, 1), (2, 2), (3, 700), (700, 3)])
def test_images_of_any_size_are_looked_at(shape: tuple[int, int]) -> None:
    for count in (1, 5):
        seen = look_at([draw(*shape)] * count, candidates=600)
        assert len(seen) >= count
        assert sorted(set(seen.image)) == list(range(count))
        assert np.isfinite(seen.density).all()
        assert np.isfinite(seen.roughness).all()


def test_small_images_are_looked_at_whole() -> None:
    image = draw(30, 41)
    assert len(look_at([image])) == 30 * 41
    np.testing.assert_array_equal(look_at([image]).density[:, 0], DENSITY[image].reshape(-1, 3))


@pytest.mark.parametrize(("count", "shape"), [(1, (3000, 4000)), (1, (600, 9000)), (4, (1500, 1300)), (32, (700, 400))])
def test_there_are_never_many_more_pixels_than_asked_for(count: int, shape: tuple[int, int]) -> None:
    image = np.zeros((*shape, 3), np.uint8)
    for candidates in (CANDIDATES, 4096):
        seen = look_at([image] * count, candidates)
        assert 0.3 * candidates < len(seen) < 1.2 * candidates
        assert len(set(np.bincount(seen.image))) == 1, "as many of each image as of any other"


def test_a_huge_image_is_seen_from_corner_to_corner() -> None:
    image = np.full((2200, 3100, 3), 255, np.uint8)
    corners = [(0, 0), (0, -WINDOW), (-WINDOW, 0), (-WINDOW, -WINDOW)]
    for level, (top, left) in enumerate(corners):
        image[top:, left:][:WINDOW, :WINDOW] = 10 * level
    found = np.unique(look_at([image], 4096).density[:, 0, 0])
    assert all(np.isclose(found, DENSITY[10 * level]).any() for level in range(4))


def test_the_order_of_images_is_only_the_order_of_pixels() -> None:
    images = [draw(50, 40, 1), draw(90, 30, 2), draw(64, 64, 3)]
    forward, backward = look_at(images, 3000), look_at(images[::-1], 3000)
    for index in range(3):
        there, back = forward.choose(forward.image == index), backward.choose(backward.image == 2 - index)
        np.testing.assert_array_equal(there.density, back.density)
        np.testing.assert_array_equal(there.roughness, back.roughness)


def test_pixels_are_chosen_by_row_or_by_mask() -> None:
    seen = look_at([draw(10, 10), draw(10, 10, 1)], 80)
    chosen = seen.choose(np.array([3, 1, 3]))
    np.testing.assert_array_equal(chosen.density, seen.density[[3, 1, 3]])
    np.testing.assert_array_equal(chosen.roughness, seen.roughness[[3, 1, 3]])
    assert len(seen.choose(seen.image == 1)) == (seen.image == 1).sum()
