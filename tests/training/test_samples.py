import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from bottlegan.losses import profile_distance
from bottlegan.simulation.styles import render, stain_densities
from bottlegan.stain.style import REFERENCE
from bottlegan.training.samples import HELD_OUT, POOL, ColorProfile, collect, match_content

CPU = torch.device("cpu")
RANDOM = np.random.default_rng(0)
STAINS = stain_densities(REFERENCE)


def test_pixels_and_crops_come_from_their_own_image() -> None:
    flat = {f"lab-{value}": [np.full((40, 50, 3), value, np.uint8)] for value in (10, 20, 30)}
    images = collect(flat, 16, 0, CPU)
    rows = torch.tensor([2, 0, 2])
    random = torch.Generator().manual_seed(0)
    for view in (images.pixels(rows, 5, random), images.crops(rows, 16, random)):
        assert (255 * view).round().amax((1, 2, 3)).tolist() == [30, 10, 30]
        assert (255 * view).round().amin((1, 2, 3)).tolist() == [30, 10, 30]
    assert images.styles.tolist() == [0, 1, 2]


def test_no_step_sees_the_held_out_pixels() -> None:
    images = collect({"lab": [RANDOM.integers(0, 256, (64, 64, 3), dtype=np.uint8)]}, 16, 0, CPU)
    marked = images.pool.clone()
    marked[..., POOL - HELD_OUT :] = 7
    seen = type(images)(images.levels, images.styles, marked).pixels(torch.tensor([0]), 50_000, torch.Generator())
    assert seen.max() <= 1
    assert images.held_out().shape == (1, 3, 1, HELD_OUT)


@given(st.permutations(list(range(8))))
def test_a_profile_forgets_where_colors_are(order: list[int]) -> None:
    profile = ColorProfile(STAINS)
    image = torch.rand(1, 3, 1, 8, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(profile(image[..., order]), profile(image))


def test_more_stain_is_farther_away(content: Tensor) -> None:
    profile = ColorProfile(STAINS)
    base = profile(render(content[:1], REFERENCE))
    rows = torch.zeros(1, 1, dtype=torch.long)
    distances = [
        profile_distance(profile(render(s * content[:1], REFERENCE)), base, rows).item() for s in (1, 1.1, 1.3)
    ]
    assert distances[0] == 0
    assert 0 < distances[1] < distances[2]


def test_an_image_is_matched_with_its_own_tissue(content: Tensor) -> None:
    profile = ColorProfile(STAINS)
    profiles = profile(render(content, REFERENCE))
    thinned = profile(render(content, REFERENCE)[..., ::2, ::2])
    assert match_content(thinned, profiles, 3)[:, 0].tolist() == list(range(len(content)))
    assert match_content(thinned, profiles, 99).shape == (len(content), len(content))
