from dataclasses import dataclass

import numpy as np
import pytest
import torch
from bottlegan.normalize.spare import (
    FAINT,
    OFF,
    Stained,
    describe_reference,
    describe_style,
    measure_angle,
    ramp,
    spare_ink,
    weigh_ink,
)
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import nnls
from torch import Tensor

from bottlegan.colormap.table import Convert
from bottlegan.imaging.files import Levels
from bottlegan.imaging.tensors import from_batch, from_levels, to_levels
from bottlegan.models.code_maps import encode_maps
from bottlegan.models.paradigms import BottleGAN
from bottlegan.models.reference_stain import ReferenceStain
from bottlegan.normalize.normalizer import FrozenNetwork, Normalizer
from bottlegan.seeding import numpy_stream
from bottlegan.stain.affine import both_ways
from bottlegan.stain.density import to_density, to_rgb
from bottlegan.stain.simulate import render, stain_densities
from bottlegan.stain.style import LABS, REFERENCE, Style, draw_style
from bottlegan.training.prior import true_maps

GREEN, LIGHT_GREEN, YELLOW, BLUE = (20, 120, 60), (120, 200, 150), (230, 220, 60), (30, 60, 170)
INKS = np.array([GREEN, LIGHT_GREEN, YELLOW, BLUE], np.uint8)
JUMP = 24
"""Levels by which neighboring colors may differ beyond what the network and the colors themselves do: 16 were measured,
and 53 to 194 if the fade is replaced by a step."""


@dataclass(frozen=True)
class Fitted:
    """A style, what was found out about it, and how colors of it are mapped."""

    style: Style
    stained: Stained
    convert: Convert
    spare: Convert
    tissue: Levels
    """(N, 3) the colors of its tissue."""

    def weigh(self, colors: Levels) -> np.ndarray:
        return weigh_ink(densities(colors), self.stained)


def densities(colors: Levels) -> np.ndarray:
    return to_density(from_levels(torch.from_numpy(colors)).double()).numpy()


def steps(colors: Levels) -> np.ndarray:
    """Return by how many levels each color differs from the one before."""
    return np.abs(np.diff(colors.astype(int), axis=0)).max(1)


@pytest.fixture(scope="module", params=[0, 1, 2])
def fitted(request: pytest.FixtureRequest, content: Tensor, plain_prior: BottleGAN) -> Fitted:
    """A lab's style, as it truly is, and tissue of it; in the first, hematoxylin is as blue as ink."""
    style = draw_style(numpy_stream(5, "spare", request.param), "lab", LABS)
    images = from_batch(render(content[:4], style, torch.Generator().manual_seed(0)))
    code = encode_maps(plain_prior, both_ways(true_maps([style])))[0]
    normalizer = Normalizer(FrozenNetwork(plain_prior), code)
    stained = describe_style(normalizer.network.on("cpu").reference, normalizer.restain)
    convert = normalizer.table("normalize")
    tissue = np.unique(np.concatenate([image.reshape(-1, 3) for image in images]), axis=0)
    return Fitted(style, stained, convert, spare_ink(convert, stained), tissue)


def test_glass_and_stains_of_a_style_are_found(fitted: Fitted) -> None:
    white, glass = torch.tensor(fitted.style.white), torch.from_numpy(fitted.stained.glass)
    assert (255 * (to_rgb(glass) - white)).abs().max() < 8
    true, found = stain_densities(fitted.style), torch.from_numpy(fitted.stained.stains)
    cosine = (found * true / true.norm(dim=1, keepdim=True)).sum(1)
    assert torch.rad2deg(torch.acos(cosine.clamp(max=1))).max() < 3
    assert found.norm(dim=1).tolist() == pytest.approx([1, 1])


def test_tissue_is_mapped_exactly_as_by_the_network(fitted: Fitted) -> None:
    assert not fitted.weigh(fitted.tissue).any()
    assert (fitted.spare(fitted.tissue) == fitted.convert(fitted.tissue)).all()
    assert (fitted.spare(fitted.tissue) != fitted.tissue).any()


def test_glass_of_any_tint_is_mapped_as_by_the_network(fitted: Fitted) -> None:
    tints = np.stack(np.meshgrid(*[np.arange(-18, 1, 3)] * 3), axis=-1).reshape(-1, 3)
    glass = to_levels(to_rgb(torch.from_numpy(fitted.stained.glass))).numpy() + tints
    colors = glass.clip(0, 255).astype(np.uint8)
    assert (fitted.spare(colors) == fitted.convert(colors)).all()
    angles = measure_angle(densities(colors) - fitted.stained.glass, fitted.stained.stains)
    assert (angles > OFF[1]).any()  # by its hue alone some of it would be ink


def test_ink_is_left_as_it_is(fitted: Fitted) -> None:
    left = INKS[:3]
    assert (fitted.weigh(left) == 1).all()
    assert (fitted.spare(left) == left).all()
    assert (np.abs(fitted.convert(left).astype(int) - left).max(1) > 5).all()


@pytest.mark.parametrize("fitted", [1, 2], indirect=True)
def test_blue_ink_is_left_as_it_is_where_hematoxylin_is_less_blue(fitted: Fitted) -> None:
    assert (fitted.spare(INKS[3:]) == INKS[3:]).all()


def test_from_tissue_to_ink_the_map_does_not_jump(fitted: Fitted) -> None:
    random, seen = np.random.default_rng(0), 0.0
    for ink in INKS:
        for color in fitted.tissue[random.integers(len(fitted.tissue), size=8)]:
            line = np.rint(np.linspace(color.astype(float), ink.astype(float), 257)).astype(np.uint8)
            allowed = np.maximum(steps(fitted.convert(line)), steps(line)) + JUMP
            assert (steps(fitted.spare(line)) <= allowed).all()
            share = fitted.weigh(line)
            seen += ((share > 0) & (share < 1)).sum().item()
    assert seen > 100  # lines do cross the fade


def test_what_is_partly_ink_lies_between(fitted: Fitted) -> None:
    colors = np.random.default_rng(0).integers(0, 256, (4000, 3), dtype=np.uint8)
    share = fitted.weigh(colors)
    mapped, kept = fitted.spare(colors), fitted.convert(colors)
    assert (mapped[share == 0] == kept[share == 0]).all()
    assert (mapped[share == 1] == colors[share == 1]).all()
    assert (mapped >= np.minimum(colors, kept)).all()
    assert (mapped <= np.maximum(colors, kept)).all()
    nearly = (share > 0.9) & (share < 1)
    nearer = np.abs(mapped.astype(int) - colors) <= np.abs(mapped.astype(int) - kept)
    assert nearer[nearly].mean() > 0.99
    assert ((share > 0) & (share < 1)).sum() > 100


def test_in_the_reference_stain_tissue_is_told_from_ink(content: Tensor) -> None:
    stained = describe_reference(ReferenceStain.of(stain_densities(REFERENCE)))
    tissue = from_batch(render(content[4:6], REFERENCE))[0].reshape(-1, 3)
    assert not weigh_ink(densities(tissue), stained).any()
    assert (weigh_ink(densities(INKS), stained) == 1).all()
    assert weigh_ink(densities(np.full((1, 3), 255, np.uint8)), stained).tolist() == [0]


def draw_stains(random: np.random.Generator) -> np.ndarray:
    """Return two unit stains (2, 3) that are some degrees apart."""
    while True:
        stains = random.uniform(0, 1, (2, 3))
        stains /= np.linalg.norm(stains, axis=1, keepdims=True)
        if stains[0] @ stains[1] < 0.999:
            return stains


@given(st.integers(0, 2**32 - 1))
def test_angles_are_those_to_the_nearest_mix(seed: int) -> None:
    random = np.random.default_rng(seed)
    stains, above = draw_stains(random), random.uniform(-1, 3, (20, 3))
    angles = measure_angle(above, stains)
    for density, angle in zip(above, angles, strict=True):
        amounts, _ = nnls(stains.T, density)
        nearest = amounts @ stains
        if not amounts.any():
            assert angle >= 90 - 1e-6  # no stain at all is nearer than any
            continue
        cosine = nearest @ density / np.linalg.norm(nearest) / np.linalg.norm(density)
        assert angle == pytest.approx(np.degrees(np.arccos(cosine.clip(-1, 1))), abs=1e-4)


@given(st.integers(0, 2**32 - 1))
def test_a_mix_of_the_stains_is_at_no_angle(seed: int) -> None:
    random = np.random.default_rng(seed)
    stains = draw_stains(random)
    mixes = np.concatenate([stains, random.uniform(0.01, 3, (30, 2)) @ stains])
    assert measure_angle(mixes, stains).max() < 1e-4
    assert np.isfinite(measure_angle(np.zeros((1, 3)), stains)).all()


@given(st.floats(-100, 100), st.floats(0.01, 50))
def test_a_ramp_is_flat_at_both_ends_and_smooth_between(low: float, width: float) -> None:
    places = np.array([-9, -1, 0, 0.25, 0.5, 0.75, 1, 2, 9])
    shares = ramp(low + width * places, low, low + width)
    assert shares.tolist() == pytest.approx([0, 0, 0, 0.15625, 0.5, 0.84375, 1, 1, 1], abs=1e-6)
    assert ramp(np.array(FAINT), *FAINT).tolist() == [0, 1]
