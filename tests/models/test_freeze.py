"""A frozen network against the torch network that it was made from, and the colors that it keeps."""

from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from torch import Tensor, nn

from bottlegan.colormap.cube import random_colors
from bottlegan.colormap.ink import weigh_ink
from bottlegan.colormap.levels import DENSITY, Floats, to_levels
from bottlegan.colormap.network import Ink
from bottlegan.colormap.table import ColorMap
from bottlegan.core.errors import InputError
from bottlegan.core.seeding import numpy_stream
from bottlegan.imaging.files import Pixels
from bottlegan.imaging.tensors import from_batch, to_batch
from bottlegan.models.code_maps import encode_maps
from bottlegan.models.config import KNOWN_CODES, GeneratorConfig, ModelConfig, Paradigm
from bottlegan.models.files import to_weights
from bottlegan.models.freeze import Direction, describe_ink, freeze, linear, make_map, maps_colors
from bottlegan.models.paradigms import BottleGAN, StyleModel, build_model
from bottlegan.models.weights import ModelWeights
from bottlegan.simulation.styles import render, stain_densities
from bottlegan.stain.affine import AffineMap, StyleMaps, both_ways
from bottlegan.stain.style import LABS, REFERENCE, Style, draw_style, list_stains, mix_stains
from bottlegan.training.prior import true_maps

STYLES = ("a", "b", "c")
DIRECTIONS: tuple[Direction, ...] = ("normalize", "restain")
FINITE = st.floats(-1e3, 1e3, width=32)


def build(paradigm: Paradigm, generator: GeneratorConfig, seed: int = 0) -> StyleModel:
    """Return a model in which all weights matter and no map is extreme."""
    random = torch.Generator().manual_seed(seed)
    model = build_model(ModelConfig(paradigm=paradigm, code_size=6, generator=generator), STYLES, random)
    for name, parameter in model.named_parameters():
        if "linear" in name or "last" in name or "reference_code" in name:
            nn.init.normal_(parameter, std=0.1, generator=random)
    return model.eval().requires_grad_(False)


def by_torch(model: StyleModel, colors: Pixels, code: Tensor, direction: Direction) -> Pixels:
    run = model.normalize if direction == "normalize" else model.restain
    return from_batch(run(to_batch(colors[None]), code[None]))[0][0]


def assert_alike(ours: Pixels, theirs: Pixels) -> None:
    """Refuse colors that differ beyond rounding."""
    apart = np.abs(np.subtract(ours, theirs, dtype=np.int16)).max(axis=1)
    assert apart.max() <= 1
    assert (apart > 0).mean() < 1e-3


@pytest.mark.parametrize("paradigm", ["many-one-many", "many-many", "many-one", "many-one-one"])
@pytest.mark.parametrize(("depth", "width", "mapping"), [(0, 4, 8), (1, 2, 0), (1, 16, 8), (2, 8, 0), (2, 32, 8)])
def test_a_frozen_network_maps_as_the_one_of_torch(paradigm: Paradigm, depth: int, width: int, mapping: int) -> None:
    model = build(paradigm, GeneratorConfig(depth=depth, width=width, mapping=mapping))
    weights, colors = to_weights(model), random_colors(150_000)
    for direction in DIRECTIONS:
        code = model.codes["b"]
        mapped = ColorMap(freeze(weights, code.numpy(), direction))(colors)
        assert_alike(mapped, by_torch(model, colors, code, direction))
        assert (mapped != colors).mean() > 0.5
        other = ColorMap(freeze(weights, model.codes["c"].numpy(), direction))(colors[:1000])
        same = paradigm == "many-many" and direction == "normalize"  # which does not know the source style
        assert np.array_equal(mapped[:1000], other) == same


def test_a_code_beyond_all_that_is_known_is_cut_off_for_the_layers_only() -> None:
    model = build("many-one-many", GeneratorConfig(depth=1, width=8, mapping=8))
    colors, code = random_colors(50_000), 0.1 * torch.ones(6)
    code[2] = 3 * KNOWN_CODES
    near = code.clamp(max=KNOWN_CODES)
    weights = to_weights(model)
    far, known = (freeze(weights, each.numpy(), "restain") for each in (code, near))
    assert np.array_equal(far.layers, known.layers)
    assert np.array_equal(far.shifts, known.shifts)
    assert not np.array_equal(far.matrix, known.matrix)
    assert_alike(ColorMap(far)(colors), by_torch(model, colors, code, "restain"))


def test_a_code_may_be_any_sequence_of_numbers() -> None:
    weights = to_weights(build("many-one-many", GeneratorConfig(depth=1, width=4, mapping=4)))
    code = np.linspace(-1, 1, 6).astype(np.float32)
    one, two = freeze(weights, code, "normalize"), freeze(weights, code.tolist(), "normalize")
    assert all(np.array_equal(*pair) for pair in zip(one.arguments(), two.arguments(), strict=True))


@given(st.data(), st.integers(1, 12))
def test_sums_are_exact_but_for_one_rounding_so_no_order_matters(data: st.DataObject, size: int) -> None:
    weight, bias, values = (
        data.draw(arrays.arrays(np.float32, shape, elements=FINITE)) for shape in ((2, size), 2, size)
    )
    told = values.tolist()
    found = linear({"x.weight": weight, "x.bias": bias}, "x", told)
    for row, add, number in zip(weight.tolist(), bias.tolist(), found, strict=True):
        exact = sum((Fraction(a) * Fraction(b) for a, b in zip(row, told, strict=True)), Fraction(add))
        assert number == float(exact)
    order = data.draw(st.permutations(range(size)))
    turned = {"x.weight": weight[:, order], "x.bias": bias}
    assert linear(turned, "x", values[order].tolist()) == found


@pytest.mark.parametrize(
    "form", [{"kind": "unet"}, {"statistics": "instance"}, {"skip": False}], ids=lambda form: next(iter(form))
)
def test_what_is_no_map_of_colors_is_refused(form: dict[str, object]) -> None:
    generator = GeneratorConfig(**({"width": 4, "depth": 2, "mapping": 3} | form))  # type: ignore[arg-type]
    assert not maps_colors(generator)
    weights = to_weights(build("many-one-many", generator))
    for call in (freeze, make_map):
        with pytest.raises(InputError, match=r"not a map of colors.*; use a model of pixel generators"):
            call(weights, np.zeros(6, np.float32), "normalize")


def test_without_a_reference_stain_everything_is_mapped() -> None:
    weights = to_weights(build("many-one-many", GeneratorConfig(depth=1, width=4)))
    assert not weights.arrays["reference.stains"].any()
    for direction in DIRECTIONS:
        assert describe_ink(weights, np.zeros(6, np.float32), direction) is None
        assert make_map(weights, np.zeros(6, np.float32), direction).network.ink is None


# Of pen: what is left as it is, of a style whose code is known.

GREEN, LIGHT_GREEN, YELLOW, BLUE = (20, 120, 60), (120, 200, 150), (230, 220, 60), (30, 60, 170)
INKS: Pixels = np.array([GREEN, LIGHT_GREEN, YELLOW, BLUE], np.uint8)
JUMP = 24
"""Levels by which neighboring colors may differ beyond what the network and the colors themselves do: 16 were measured,
and 53 to 194 if the fade is replaced by a step."""


@dataclass(frozen=True)
class Fitted:
    """A style, and the map of its colors."""

    style: Style
    ink: Ink
    everything: ColorMap
    spares: ColorMap
    tissue: Pixels
    """(N, 3) the colors of its tissue."""

    def weigh(self, colors: Pixels) -> Floats:
        return weigh_ink(DENSITY[colors], self.ink)


@pytest.fixture(scope="module")
def prior(plain_prior: BottleGAN) -> ModelWeights:
    return to_weights(plain_prior)


@pytest.fixture(scope="module", params=[0, 1, 2])
def fitted(request: pytest.FixtureRequest, content: Tensor, plain_prior: BottleGAN, prior: ModelWeights) -> Fitted:
    """A lab's true style and its tissue; in the first, hematoxylin is as blue as ink."""
    style = draw_style(numpy_stream(5, "spare", request.param), "lab", LABS)
    images = from_batch(render(content[:4], style, torch.Generator().manual_seed(0)))
    code = encode_maps(plain_prior, both_ways(true_maps([style])))[0].float().numpy()
    ink = describe_ink(prior, code, "normalize")
    assert ink is not None
    tissue = np.unique(np.concatenate([image.reshape(-1, 3) for image in images]), axis=0)
    maps = [make_map(prior, code, "normalize", everything=everything) for everything in (True, False)]
    return Fitted(style, ink, *maps, tissue)


def steps(colors: Pixels) -> np.ndarray:
    """Return by how many levels each color differs from the one before."""
    return np.abs(np.diff(colors.astype(int), axis=0)).max(axis=1)


def test_glass_and_stains_of_a_style_are_found(fitted: Fitted) -> None:
    assert np.abs(256 * np.exp(-fitted.ink.glass) - 1 - 255 * np.array(fitted.style.white)).max() < 8
    true = list_stains(fitted.style)
    cosine = (fitted.ink.stains * true).sum(axis=1) / np.linalg.norm(true, axis=1)
    assert np.rad2deg(np.arccos(cosine.clip(max=1))).max() < 3


def test_tissue_is_mapped_as_if_there_were_no_ink(fitted: Fitted) -> None:
    assert not fitted.weigh(fitted.tissue).any()
    assert (fitted.spares(fitted.tissue) == fitted.everything(fitted.tissue)).all()
    assert (fitted.spares(fitted.tissue) != fitted.tissue).any()


def test_glass_of_any_tint_is_mapped_as_if_there_were_no_ink(fitted: Fitted) -> None:
    tints = np.stack(np.meshgrid(*[np.arange(-18, 1, 3)] * 3), axis=-1).reshape(-1, 3)
    colors = (to_levels(fitted.ink.glass) + tints).clip(0, 255).astype(np.uint8)
    assert (fitted.spares(colors) == fitted.everything(colors)).all()
    above = 3 * (DENSITY[colors] - fitted.ink.glass)
    assert (weigh_ink(above + fitted.ink.glass, fitted.ink) > 0.5).any()  # if less faint, some of it would be ink


def test_ink_is_left_as_it_is(fitted: Fitted) -> None:
    left = INKS[:3]
    assert (fitted.weigh(left) == 1).all()
    assert (fitted.spares(left) == left).all()
    assert (np.abs(fitted.everything(left).astype(int) - left).max(axis=1) > 5).all()


@pytest.mark.parametrize("fitted", [1, 2], indirect=True)
def test_blue_ink_is_left_as_it_is_where_hematoxylin_is_less_blue(fitted: Fitted) -> None:
    left, mapped = (
        np.abs(each.astype(int) - INKS[3:]).max() for each in (fitted.spares(INKS[3:]), fitted.everything(INKS[3:]))
    )
    assert left <= 0.2 * mapped


def test_from_tissue_to_ink_the_map_does_not_jump(fitted: Fitted) -> None:
    random, seen = np.random.default_rng(0), 0
    for ink in INKS:
        for color in fitted.tissue[random.integers(len(fitted.tissue), size=8)]:
            line = np.rint(np.linspace(color.astype(float), ink.astype(float), 257)).astype(np.uint8)
            allowed = np.maximum(steps(fitted.everything(line)), steps(line)) + JUMP
            assert (steps(fitted.spares(line)) <= allowed).all()
            share = fitted.weigh(line)
            seen += int(((share > 0) & (share < 1)).sum())
    assert seen > 100  # lines do cross the fade


def test_in_the_reference_stain_tissue_is_told_from_ink(prior: ModelWeights) -> None:
    code = np.zeros(prior.document.model.code_size, np.float32)
    ink = describe_ink(prior, code, "restain")
    assert ink is not None
    np.testing.assert_allclose(ink.glass, 0, atol=1e-6)
    strong = stain_densities(REFERENCE).numpy()
    np.testing.assert_allclose(ink.stains, strong / np.linalg.norm(strong, axis=1, keepdims=True), atol=1e-6)
    tissue = mix_stains(np.random.default_rng(0).exponential(0.35, (5000, 2)), REFERENCE)
    assert not weigh_ink(DENSITY[tissue], ink).any()
    assert (weigh_ink(DENSITY[INKS], ink) > 0.85).all()


def test_the_reference_stain_may_have_glass_that_is_not_white(prior: ModelWeights) -> None:
    maps = prior.arrays["reference.maps"].copy()
    maps[1, 3] = 0.2, 0.1, -0.1
    other = replace(prior, arrays={**prior.arrays, "reference.maps": maps})
    ink = describe_ink(other, np.zeros(24, np.float32), "restain")
    assert ink is not None
    assert ink.glass.tolist() == np.array([0.2, 0.1, 0], np.float32).tolist()


def test_of_a_style_in_which_all_is_black_nothing_can_be_told(prior: ModelWeights) -> None:
    name = "restainer.linear.bias"
    darker = prior.arrays[name] + 9 * (np.arange(12) >= 9).astype(np.float32)
    other = replace(prior, arrays={**prior.arrays, name: darker})
    assert describe_ink(other, np.zeros(24, np.float32), "normalize") is None


def test_where_glass_is_dark_nothing_is_taken_for_ink(prior: ModelWeights) -> None:
    """As in photographs through an eyepiece, where noise and shade would count as ink."""
    dark, bright = (AffineMap(np.eye(3, dtype=np.float32)[None], np.full((1, 3), glass)) for glass in (-0.5, -0.1))
    codes = [encode_maps(prior, StyleMaps(each, each.inverse()))[0] for each in (dark, bright)]
    assert describe_ink(prior, codes[0], "normalize") is None
    assert describe_ink(prior, codes[1], "normalize") is not None
    assert describe_ink(prior, codes[0], "restain") is not None
