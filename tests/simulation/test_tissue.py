from functools import cache

import numpy as np
import pytest
import torch

from bottlegan.core.errors import InputError
from bottlegan.simulation.tissue import Tissue, draw_tissue

SIZE = 160


@cache
def patches() -> list[Tissue]:
    return [draw_tissue(0, index, SIZE) for index in range(16)]


def same(first: Tissue, second: Tissue) -> bool:
    return torch.equal(first.concentration, second.concentration) and torch.equal(first.epithelium, second.epithelium)


def test_a_patch_depends_on_its_arguments_only() -> None:
    first = draw_tissue(0, 5, SIZE)
    np.random.default_rng(0).random()
    torch.manual_seed(3)
    draw_tissue(0, 4, SIZE)
    assert same(draw_tissue(0, 5, SIZE), first)
    assert same(patches()[5], first)


def test_another_index_or_seed_is_another_patch() -> None:
    first = patches()[5]
    assert not same(patches()[6], first)
    assert not same(draw_tissue(1, 5, SIZE), first)


def test_drawing_leaves_the_global_generators_alone() -> None:
    state = torch.get_rng_state()
    legacy = str(np.random.get_state())  # noqa: NPY002
    draw_tissue(0, 0, 64)
    assert torch.equal(torch.get_rng_state(), state)
    assert str(np.random.get_state()) == legacy  # noqa: NPY002


@pytest.mark.parametrize("size", [64, 65, 131, 224])
def test_every_size_gives_finite_concentrations_and_a_mask(size: int) -> None:
    for index in range(3):
        tissue = draw_tissue(7, index, size)
        assert tissue.concentration.shape == (2, size, size)
        assert tissue.concentration.dtype == torch.float32
        assert tissue.epithelium.shape == (size, size)
        assert tissue.epithelium.dtype == torch.bool
        assert tissue.concentration.isfinite().all()
        assert tissue.concentration.min() >= 0
        assert tissue.concentration.max() < 5


def test_concentrations_are_those_of_stained_tissue() -> None:
    pooled = torch.stack([tissue.concentration for tissue in patches()], 1).flatten(1)
    for stain, strong in zip(pooled, pooled.quantile(0.99, dim=1), strict=True):
        assert 0.7 < strong < 1.4, "1 is the strong stain"
        assert (stain < 0.06).float().mean() > 0.05, "there is bare glass"


def test_epithelium_holds_more_hematoxylin_than_the_rest() -> None:
    inside = torch.cat([tissue.concentration[0][tissue.epithelium] for tissue in patches()])
    outside = torch.cat([tissue.concentration[0][~tissue.epithelium] for tissue in patches()])
    assert inside.mean() > 1.5 * outside.mean()


def test_epithelium_and_stroma_both_have_nuclei() -> None:
    for name, masks in {
        "epithelium": [tissue.epithelium for tissue in patches()],
        "stroma": [~tissue.epithelium for tissue in patches()],
    }.items():
        hematoxylin = torch.cat([tissue.concentration[0][mask] for tissue, mask in zip(patches(), masks, strict=True)])
        nuclear = (hematoxylin > 0.35).float().mean()
        assert 0.03 < nuclear < 0.6, name


def test_glands_have_pale_lumina_outside_the_mask() -> None:
    holes = 0
    for tissue in patches():
        blank = (tissue.concentration[0] < 0.07) & (tissue.concentration[1] < 0.02)
        assert (blank & tissue.epithelium).float().mean() < 0.02
        holes += int((blank & ~tissue.epithelium).sum())
    assert holes > 0.03 * len(patches()) * SIZE**2


def test_patches_vary_from_stroma_to_epithelium() -> None:
    shares = torch.tensor([tissue.epithelium.float().mean() for tissue in patches()])
    lower, median, upper = shares.quantile(torch.tensor([0.25, 0.5, 0.75]))
    assert lower < 0.12
    assert 0.1 < median < 0.3
    assert upper > 0.3


@pytest.mark.parametrize("size", [63, 0, -4])
def test_a_patch_too_small_for_a_gland_is_refused(size: int) -> None:
    with pytest.raises(InputError, match=f"{size} pixels.*64 or more"):
        draw_tissue(0, 0, size)
