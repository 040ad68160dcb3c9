from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from scipy import ndimage

from bottlegan.slides.cover import Cover, blend, find_cover
from bottlegan.slides.grid import Grid, Region, Size
from bottlegan.slides.image import Levels
from bottlegan.slides.tissue import MOST_SPOTS, SPOT

WIDTH, HEIGHT = 1000, 700
SPOT_SIDE = int(SPOT)  # pixels of 1 micrometer along a spot
FAR = 7 * SPOT_SIDE  # pixels from tissue, beyond which glass is left alone
TISSUE = (180, 90, 140)
SHARES = st.floats(0, 1, width=32)


class Painted:
    """A slide in memory, each level half of the one before, with pixels of 1 micrometer."""

    path, mpp, icc, kind, direct = Path("painted"), (1.0, 1.0), None, "painted", frozenset[int]()

    def __init__(self, levels: Levels, count: int = 1) -> None:
        self._pixels = [levels[:: 2**k, :: 2**k] for k in range(count)]
        self.levels = tuple(Size(each.shape[1], each.shape[0]) for each in self._pixels)

    def tile(self, level: int) -> Size:
        return Size(256, 256)

    def read(self, region: Region) -> Levels:
        whole = Region(region.level, 0, 0, *self.levels[region.level])
        return np.ascontiguousarray(self._pixels[region.level][region.within(whole)])


class Huge:
    """A white slide, too large to hold, whose levels are four times coarser each."""

    path, mpp, icc, kind, direct = Path("huge"), (0.25, 0.25), None, "huge", frozenset[int]()

    def __init__(self, width: int, height: int) -> None:
        self.levels = tuple(Size(width // 4**k, height // 4**k) for k in range(5))

    def tile(self, level: int) -> Size:
        return Size(256, 256)

    def read(self, region: Region) -> Levels:
        return np.full((region.height, region.width, 3), 255, np.uint8)


def paint(glass: int = 230, noise: int = 3) -> Levels:
    """Return a slide of light gray glass."""
    return (glass + np.random.default_rng(0).integers(-noise, noise + 1, (HEIGHT, WIDTH, 3))).astype(np.uint8)


def weigh_all(cover: Cover, region: Region, downsample: float = 1.0) -> NDArray[np.float32]:
    """Return the weights (H, W) of a region, also where they are all the same."""
    weights = np.asarray(cover.weigh(region, downsample), np.float32)
    return np.broadcast_to(weights, (region.height, region.width, 1))[..., 0]


def weigh_slide(levels: Levels, count: int = 1) -> NDArray[np.float32]:
    return weigh_all(find_cover(Painted(levels, count)), Region(0, 0, 0, levels.shape[1], levels.shape[0]))


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize(("top", "left"), [(128, 256), (133, 250), (144, 279)])
def test_tissue_and_its_holes_are_covered_and_glass_far_from_it_is_not(top: int, left: int, count: int) -> None:
    levels = paint()
    levels[top : top + 384, left : left + 384] = TISSUE
    levels[top + 60 : top + 330, left + 50 : left + 310] = 230
    weights = weigh_slide(levels, count)
    assert (weights[top : top + 384, left : left + 384] == 1).all()  # to the last pixel of its corners
    around = np.zeros((HEIGHT, WIDTH), bool)
    around[top - FAR : top + 384 + FAR, left - FAR : left + 384 + FAR] = True
    assert (weights[~around] == 0).all()
    assert weights.min() == 0
    assert weights.max() == 1


def test_the_smallest_speck_is_covered_to_its_edge() -> None:
    levels = paint()
    levels[320:336, 480:496] = TISSUE  # one spot
    assert (weigh_slide(levels)[320:336, 480:496] == 1).all()


def test_on_the_way_from_tissue_to_glass_weights_only_fall() -> None:
    levels = paint()
    levels[256:448, 400:592] = TISSUE
    weights = weigh_slide(levels)
    for way in (weights[350, 500:], weights[350, 500::-1], weights[350:, 500], weights[350::-1, 500]):
        steps = np.diff(way)
        assert (way[0], way[-1]) == (1, 0)
        assert (steps <= 0).all()
        assert steps.min() > -1 / SPOT_SIDE  # no edge that one would see
        assert ((way > 0) & (way < 1)).sum() >= 2 * SPOT_SIDE


@pytest.mark.parametrize("pale", [(230, 230, 230), (240, 230, 240)])
def test_pale_tissue_is_covered(pale: tuple[int, int, int]) -> None:
    levels = paint(glass=240, noise=2)
    levels[256:448, 400:592] = pale  # 10 levels darker than glass, in one channel at least
    weights = weigh_slide(levels)
    assert (weights[256:448, 400:592] == 1).all()
    assert weights[0, 0] == 0


@pytest.mark.parametrize("glass", [215, 230, 250])
def test_blank_glass_is_not_covered(glass: int) -> None:
    cover = find_cover(Painted(paint(glass)))
    assert cover.weigh(Region(0, 0, 0, WIDTH, HEIGHT), 1.0) == 0.0


def test_a_slide_that_is_all_tissue_is_all_covered() -> None:
    tissue = np.full((HEIGHT, WIDTH, 3), TISSUE, np.uint8)
    cover = find_cover(Painted(tissue))
    assert isinstance(cover.weigh(Region(0, 0, 0, WIDTH, HEIGHT), 1.0), float)
    assert cover.weigh(Region(0, 0, 0, WIDTH, HEIGHT), 1.0) == 1.0


@pytest.mark.parametrize(("width", "height"), [(100_000, 60_000), (200_000, 100_000), (400_000, 300_000)])
def test_the_cover_of_a_huge_slide_is_small(width: int, height: int) -> None:
    cover = find_cover(Huge(width, height))
    # Levels are reduced by whole numbers, which can be too small by a third along each side.
    assert cover.spots.size < 2.25 * MOST_SPOTS
    assert cover.pixels * cover.spots.shape[1] == pytest.approx(width, rel=1e-3)
    assert not cover.spots.any()


def draw_cover(seed: int, pixels: float) -> Cover:
    """Return a cover of ninths, with stretches in which all is the same."""
    random = np.random.default_rng(seed)
    spots = random.integers(0, 10, (9, 13)) * (ndimage.zoom(random.random((3, 4)), (3, 3.25), order=0) > 0.5)
    return Cover((spots / 9).astype(np.float32), pixels)


SIDES, STARTS = st.integers(1, 90), st.integers(0, 150)
INNER = st.builds(Region, st.just(0), STARTS, STARTS, SIDES, SIDES)
DOWNSAMPLES = st.sampled_from([1.0, 2.0, 3.9987, 16.0])
PIXELS = st.sampled_from([5.0, 16.0, 31.98, 64.0])


@given(st.integers(0, 5), PIXELS, DOWNSAMPLES, INNER, STARTS)
def test_a_pixel_weighs_the_same_in_any_region(
    seed: int, pixels: float, downsample: float, inner: Region, more: int
) -> None:
    cover = draw_cover(seed, pixels)
    left, top = min(more, inner.x), min(more // 2, inner.y)
    outer = inner.shift(-left, -top, inner.width + left + more, inner.height + top + more)
    whole = weigh_all(cover, outer, downsample)
    assert weigh_all(cover, inner, downsample).tobytes() == whole[inner.within(outer)].tobytes()
    for tile in Grid(inner, Size(32, 16)):
        assert weigh_all(cover, tile, downsample).tobytes() == whole[tile.within(outer)].tobytes()


@given(st.integers(0, 5), PIXELS, DOWNSAMPLES, INNER)
def test_weights_are_those_of_spots_blended_by_distance(
    seed: int, pixels: float, downsample: float, region: Region
) -> None:
    cover = draw_cover(seed, pixels)
    y, x = np.mgrid[region.y : region.y + region.height, region.x : region.x + region.width]
    places = [(at + 0.5) * downsample / pixels - 0.5 for at in (y, x)]
    expected = ndimage.map_coordinates(cover.spots.astype(float), places, order=1, mode="nearest")
    weights = weigh_all(cover, region, downsample)
    assert np.abs(weights - expected).max() < 1e-5
    assert weights.min() >= 0
    assert weights.max() <= 1


@pytest.mark.parametrize("share", [0, 4, 9])
def test_only_what_is_wholly_covered_or_bare_weighs_one_number(share: int) -> None:
    cover = Cover(np.full((5, 5), share / 9, np.float32), 16.0)
    weights = cover.weigh(Region(0, 30, 30, 6, 4), 1.0)
    assert isinstance(weights, float) == (share in (0, 9))  # by which a tile is left alone, or mapped without blending
    assert (np.asarray(weights, np.float32) == np.float32(share / 9)).all()
    assert isinstance(weights, float) or weights.shape == (4, 6, 1)


def test_a_coarser_pixel_weighs_what_its_four_finer_ones_do() -> None:
    cover = draw_cover(1, 16.0)
    fine = weigh_all(cover, Region(0, 0, 0, 208, 144))
    coarse = weigh_all(cover, Region(1, 0, 0, 104, 72), 2.0)
    means = fine.reshape(72, 2, 104, 2).mean((1, 3))
    assert np.abs(coarse - means)[4:-4, 4:-4].max() < 1e-6
    assert ((fine > 0) & (fine < 1)).any()


def test_weights_of_0_and_1_leave_and_replace_every_level() -> None:
    before, after = (np.repeat(each[..., None], 3, axis=2) for each in np.mgrid[:256, :256].astype(np.uint8))
    assert (blend(before, after, np.zeros((256, 256, 1), np.float32)) == before).all()
    assert (blend(before, after, np.ones((256, 256, 1), np.float32)) == after).all()


IMAGES = arrays(np.uint8, (4, 5, 3))


@given(IMAGES, IMAGES, arrays(np.float32, (4, 5, 1), elements=SHARES))
def test_what_is_blended_lies_between_and_is_the_nearest_level(
    before: Levels, after: Levels, share: NDArray[np.float32]
) -> None:
    blended = blend(before, after, share)
    assert blended.dtype == np.uint8
    assert (blended >= np.minimum(before, after)).all()
    assert (blended <= np.maximum(before, after)).all()
    exact = before + share.astype(float) * (after.astype(float) - before)
    assert np.abs(blended - exact).max() <= 0.5 + 1e-4
