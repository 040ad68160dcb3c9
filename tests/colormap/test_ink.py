import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy.optimize import nnls

from bottlegan.colormap.cube import random_colors
from bottlegan.colormap.ink import ramp, spare_ink, weigh_ink
from bottlegan.colormap.levels import DENSITY, Floats
from bottlegan.colormap.limits import FAINT, FAR, GREENNESS, NEAR
from bottlegan.colormap.network import MIXED, ColorNetwork, Ink
from bottlegan.colormap.table import ColorMap
from bottlegan.imaging.files import Pixels
from bottlegan.stain.style import LABORATORIES, Style, list_stains, mix_stains

GREENS: Pixels = np.array([(20, 120, 60), (120, 200, 150), (0, 90, 40), (60, 160, 90)], np.uint8)
YELLOW, BLUE = (230, 220, 60), (30, 60, 170)
LESS_BLUE = [style for style in LABORATORIES if style.name in ("S01", "S03", "S05", "S08", "S09")]
"""In the other laboratories, hematoxylin is so blue that blue ink could be tissue."""
GLASS: Floats = np.zeros(3, np.float32)
BY_NAME = {"ids": lambda style: style.name}
ALIKE = {"rtol": 0, "atol": 5e-5}
"""The largest difference found was 1e-5: the ramp multiplies the rounding error of a cosine by 40."""
SEEDS = st.integers(0, 2**32 - 1)


def ink_of(style: Style, glass: Floats = GLASS) -> Ink:
    found = Ink.of(glass, glass + MIXED * list_stains(style).astype(np.float32))
    assert found is not None
    return found


def by_kernel(densities: Floats, ink: Ink) -> Floats:
    """Return the share of ink (N,) that the kernel finds: the part of the darkest channel that a map to white keeps."""
    white = ColorNetwork(np.zeros((3, 3), np.float32), np.zeros(3, np.float32), ink=ink)
    strongest = densities.argmax(axis=1)[:, None]
    kept = np.take_along_axis(ColorMap(white).map_densities(densities), strongest, axis=1)
    return (kept / np.take_along_axis(densities, strongest, axis=1))[:, 0]


def draw_ink(random: np.random.Generator) -> Ink:
    """Return two stains at a random angle, on glass of any color."""
    while True:
        glass = random.uniform(0, 0.3, 3).astype(np.float32)
        found = Ink.of(glass, glass + random.uniform(0, 1, (2, 3)).astype(np.float32))
        if found is not None and found.stains[0] @ found.stains[1] < 0.99:
            return found


@pytest.mark.parametrize("style", LABORATORIES, **BY_NAME)
def test_numpy_and_torch_weigh_as_the_kernel_does(style: Style) -> None:
    ink, densities = ink_of(style, np.array([0.1, 0.05, 0.02], np.float32)), DENSITY[random_colors(20_000)] + 0.01
    kernel = by_kernel(densities, ink)
    assert ((kernel > 0) & (kernel < 1)).mean() > 0.03
    np.testing.assert_allclose(weigh_ink(densities, ink), kernel, **ALIKE)
    tensor = weigh_ink(torch.from_numpy(densities), ink)
    assert (tensor.dtype, tensor.shape) == (torch.float32, (20_000,))
    np.testing.assert_allclose(tensor.numpy(), kernel, **ALIKE)


@given(
    SEEDS, arrays.arrays(np.float32, st.tuples(st.integers(1, 30), st.just(3)), elements=st.floats(1 / 64, 6, width=32))
)
def test_they_weigh_alike_whatever_the_stains(seed: int, densities: Floats) -> None:
    ink = draw_ink(np.random.default_rng(seed))
    kernel = by_kernel(densities, ink)
    np.testing.assert_allclose(weigh_ink(densities, ink), kernel, **ALIKE)
    np.testing.assert_allclose(weigh_ink(torch.from_numpy(densities), ink).numpy(), kernel, **ALIKE)


@pytest.mark.parametrize("style", LABORATORIES[::4], **BY_NAME)
def test_numpy_and_torch_spare_as_the_kernel_does(style: Style) -> None:
    ink, densities = ink_of(style), DENSITY[random_colors(20_000)]
    matrix, bias = np.diag([0.5, 1.4, 1.1]).astype(np.float32), np.array([-0.2, 0.1, 0], np.float32)
    everything, spared = (ColorMap(ColorNetwork(matrix, bias, ink=each)) for each in (None, ink))
    mapped, expected = everything.map_densities(densities), spared.map_densities(densities)
    assert (mapped < 0).any()
    np.testing.assert_allclose(spare_ink(densities, mapped, ink), expected, rtol=0, atol=3e-4)
    found = spare_ink(torch.from_numpy(densities), torch.from_numpy(mapped), ink)
    np.testing.assert_allclose(found.numpy(), expected, rtol=0, atol=3e-4)


def test_what_is_partly_ink_lies_between() -> None:
    ink, colors = ink_of(LABORATORIES[0]), random_colors(20_000)
    matrix, bias = np.diag([0.5, 1.4, 1.1]).astype(np.float32), np.array([-0.2, 0.1, 0], np.float32)
    everything, spared = (ColorMap(ColorNetwork(matrix, bias, ink=each))(colors) for each in (None, ink))
    share = by_kernel(DENSITY[colors] + np.float32(1e-30), ink)
    assert (spared[share == 0] == everything[share == 0]).all()
    assert (spared[share == 1] == colors[share == 1]).all()
    assert (spared >= np.minimum(colors, everything)).all()
    assert (spared <= np.maximum(colors, everything)).all()
    assert ((share > 0) & (share < 1)).sum() > 1000


@pytest.mark.parametrize("style", LABORATORIES, **BY_NAME)
def test_green_and_yellow_ink_is_spared(style: Style) -> None:
    inks = np.concatenate([GREENS, np.array([YELLOW], np.uint8)])
    assert (by_kernel(DENSITY[inks], ink_of(style)) == 1).all()


@pytest.mark.parametrize("style", LESS_BLUE, **BY_NAME)
def test_blue_ink_is_spared_where_hematoxylin_is_less_blue(style: Style) -> None:
    assert by_kernel(DENSITY[np.array([BLUE], np.uint8)], ink_of(style)).min() > 0.85


@pytest.mark.parametrize("style", LABORATORIES, **BY_NAME)
def test_tissue_and_glass_are_mapped(style: Style) -> None:
    """For any amount of either stain, rounded to 256 levels."""
    amounts = np.concatenate(
        [
            np.random.default_rng(0).exponential(0.35, (20_000, 2)),
            np.stack(np.meshgrid(np.linspace(0, 1.2, 30), np.linspace(0, 1.2, 30)), axis=-1).reshape(-1, 2),
        ]
    )
    tissue = DENSITY[mix_stains(amounts, style)]
    assert not weigh_ink(tissue, ink_of(style)).any()
    matrix = np.diag([0.5, 1.4, 1.1]).astype(np.float32)
    everything, spared = (ColorMap(ColorNetwork(matrix, GLASS, ink=each)) for each in (None, ink_of(style)))
    assert np.array_equal(spared.map_densities(tissue), everything.map_densities(tissue))
    faint = np.random.default_rng(0).uniform(-0.1, FAINT[0], (2000, 3)).astype(np.float32)
    assert np.array_equal(spared.map_densities(faint), everything.map_densities(faint))


@given(SEEDS)
def test_ink_is_told_by_the_angle_to_the_nearest_mix_and_by_its_green(seed: int) -> None:
    random = np.random.default_rng(seed)
    ink, above = draw_ink(random), random.uniform(-1, 3, (20, 3))
    above = above[above.max(axis=1) > FAINT[1]]
    shares = weigh_ink((above + ink.glass).astype(np.float32), ink)
    for density, share in zip(above, shares, strict=True):
        amounts, _ = nnls(ink.stains.T.astype(np.float64), density)
        nearest = amounts @ ink.stains
        length = np.linalg.norm(nearest) * np.linalg.norm(density)
        cosine = nearest @ density / length if length > 0 else -1
        green = float(ramp(np.array(-density[1] / density.max()), -float(GREENNESS[0]), -float(GREENNESS[1])))
        assert share == pytest.approx(green * float(ramp(np.array(-cosine), -float(NEAR), -float(FAR))), abs=2e-3)


@given(SEEDS)
def test_a_mix_of_the_stains_is_never_ink(seed: int) -> None:
    random = np.random.default_rng(seed)
    ink = draw_ink(random)
    mixes = np.concatenate([ink.stains, random.uniform(0.01, 3, (30, 2)) @ ink.stains]).astype(np.float32) + ink.glass
    assert not weigh_ink(mixes, ink).any()
    assert not weigh_ink(ink.glass[None], ink).any()
    assert not by_kernel(mixes, ink).any()


@given(st.floats(-100, 100), st.floats(0.01, 50))
def test_a_ramp_is_flat_at_both_ends_and_smooth_between(low: float, width: float) -> None:
    places = np.array([-9, -1, 0, 0.25, 0.5, 0.75, 1, 2, 9])
    shares = ramp(low + width * places, low, low + width)
    assert shares.tolist() == pytest.approx([0, 0, 0, 0.15625, 0.5, 0.84375, 1, 1, 1], abs=1e-6)


@pytest.mark.parametrize("style", LABORATORIES[:3], **BY_NAME)
def test_the_stains_are_unit_and_their_inverse_takes_a_mix_apart(style: Style) -> None:
    ink = ink_of(style, np.array([0.2, 0.1, 0.3], np.float32))
    np.testing.assert_allclose(np.linalg.norm(ink.stains, axis=1), 1, rtol=1e-5)
    np.testing.assert_allclose(ink.stains @ ink.inverse.T, np.eye(2), rtol=0, atol=1e-5)
    np.testing.assert_allclose(ink.inverse, np.linalg.pinv(ink.stains.astype(np.float64)).T, rtol=0, atol=1e-5)
    assert [each.dtype for each in (ink.glass, ink.stains, ink.inverse)] == 3 * [np.float32]


def test_of_stains_that_are_one_nothing_can_be_told() -> None:
    stain = np.array([0.5, 0.7, 0.3], np.float32)
    assert Ink.of(GLASS, np.stack([stain, stain])) is None
    assert Ink.of(GLASS, np.stack([stain, 2 * stain])) is None
    assert Ink.of(GLASS, np.stack([stain, -stain])) is None
    assert Ink.of(GLASS, np.stack([stain, 0 * stain])) is None
    assert Ink.of(GLASS, np.stack([stain, stain * np.array([1, 1, 1.001], np.float32)])) is None
    assert Ink.of(stain, np.stack([stain, 2 * stain])) is None
    assert Ink.of(GLASS, np.stack([stain, stain[::-1]])) is not None


def test_what_takes_green_light_most_is_never_ink() -> None:
    """Such as stain of a different shade than the fitted one, however far it is from both stains."""
    random = np.random.default_rng(0)
    densities = random.uniform(0.2, 2, (20_000, 3)).astype(np.float32)
    densities[:, 1] = densities.max(axis=1) * random.uniform(0.86, 1.2, 20_000)
    for style in LABORATORIES:
        assert not weigh_ink(densities, ink_of(style)).any()
    densities[:, 1] = 0.4 * densities[:, [0, 2]].max(axis=1)
    assert weigh_ink(densities, ink_of(LABORATORIES[0])).mean() > 0.5
