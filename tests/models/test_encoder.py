import math
from itertools import pairwise

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from bottlegan.models.document import PRIOR
from bottlegan.models.encoder import (
    DIRECTIONS,
    FURTHER_LOOKS,
    LEVELS,
    MOST_VEIL,
    Look,
    Sight,
    find_frame,
    find_glass,
    quantiles,
    regress,
    relu,
    sigmoid,
    weighted_quantile,
)
from bottlegan.models.encoder import look as look_at
from bottlegan.models.pixel_sets import VIEWS
from bottlegan.models.style_encoder import StyleEncoder, soft_rgb
from bottlegan.models.weights import read_weights
from bottlegan.simulation.styles import stain_densities
from bottlegan.stain.affine import AffineMap
from bottlegan.stain.density import BLACK, to_rgb
from bottlegan.stain.style import REFERENCE

SEEDS = st.integers(0, 2**32 - 1)
PIXELS = 60
STAINS = torch.tensor([[1.2, 1.0, 0.4], [0.1, 0.7, 0.5]])


def build(seed: int = 0, said: float = 0.05) -> StyleEncoder:
    """Return an encoder with random weights, which says something else than nothing."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        encoder = StyleEncoder(stain_densities(REFERENCE), 8)
        for layer in encoder.modules():
            if isinstance(layer, nn.Linear) and layer.weight.std() < 0.01:  # what begins by saying next to nothing
                nn.init.normal_(layer.weight, std=said)
                nn.init.normal_(layer.bias, std=said)
    return encoder.eval().requires_grad_(False)


def draw_sight(seed: int, labs: int = 2, pixels: int = PIXELS, glass: float = 0.1) -> Sight:
    """Return pixels of labs: mixes of two stains, never much alike, on glass; most of them count."""
    random = torch.Generator().manual_seed(seed)
    stains = STAINS * (0.7 + 0.6 * torch.rand(labs, 1, 2, 3, generator=random))
    amounts = torch.rand(labs, pixels, VIEWS, 2, generator=random)
    white = glass * torch.rand(labs, 3, generator=random)
    density = amounts @ stains + white[:, None, None] + 0.02 * torch.rand(labs, pixels, VIEWS, 3, generator=random)
    counts = torch.rand(labs, pixels, generator=random) < 0.8
    counts[:, 0] = True
    seen = torch.arange(labs) % 2 == 0
    return Sight(density, torch.rand(labs, pixels, generator=random), counts, white * seen[:, None], seen)


def assert_same(left: Look, right: Look, rows: list[int] | None = None) -> None:
    """Refuse looks that differ beyond rounding; of the second, only some labs may be meant."""
    chosen = torch.arange(len(right.is_he)) if rows is None else torch.tensor(rows)
    for ours, theirs in zip(left.maps, right.maps.choose(chosen), strict=True):
        torch.testing.assert_close(ours.matrix, theirs.matrix, rtol=2e-3, atol=2e-3)
        torch.testing.assert_close(ours.bias, theirs.bias, rtol=2e-3, atol=2e-3)
    torch.testing.assert_close(left.log_errors, right.log_errors[chosen], rtol=0, atol=2e-3)
    torch.testing.assert_close(left.is_he, right.is_he[chosen], rtol=0, atol=2e-3)


def choose_pixels(sight: Sight, order: Tensor) -> Sight:
    return sight._replace(
        density=sight.density[:, order], roughness=sight.roughness[:, order], is_tissue=sight.is_tissue[:, order]
    )


@settings(max_examples=25)
@given(SEEDS, SEEDS)
def test_the_order_of_pixels_does_not_matter(seed: int, other: int) -> None:
    encoder, sight = build(seed), draw_sight(seed)
    order = torch.randperm(PIXELS, generator=torch.Generator().manual_seed(other))
    for look, again in zip(encoder(sight), encoder(choose_pixels(sight, order)), strict=True):
        assert_same(look, again)


@settings(max_examples=25)
@given(SEEDS)
def test_pixels_that_do_not_count_do_not_matter(seed: int) -> None:
    encoder, sight = build(seed), draw_sight(seed)
    random = torch.Generator().manual_seed(seed)
    density = torch.where(
        sight.is_tissue[..., None, None], sight.density, 5 * torch.rand(sight.density.shape, generator=random)
    )
    roughness = torch.where(sight.is_tissue, sight.roughness, 3 * torch.rand(sight.roughness.shape, generator=random))
    for look, again in zip(encoder(sight), encoder(sight._replace(density=density, roughness=roughness)), strict=True):
        assert_same(look, again)


def test_labs_are_seen_as_if_each_were_alone() -> None:
    encoder, sight = build(), draw_sight(3, labs=4)
    together = encoder(sight)
    for row in range(4):
        alone = encoder(Sight(*(part[row : row + 1] for part in sight)))
        for look, whole in zip(alone, together, strict=True):
            assert_same(look, whole, rows=[row])


def test_every_look_sees_more_than_the_one_before() -> None:
    """None of them is idle, and each depends on the pixels."""
    encoder = build()
    looks, others = encoder(draw_sight(0)), encoder(draw_sight(1))
    assert len(looks) == 1 + FURTHER_LOOKS
    for before, after in pairwise(looks):
        assert (before.maps.normalize.matrix - after.maps.normalize.matrix).abs().max() > 1e-3
        assert (before.maps.restain.matrix - after.maps.restain.matrix).abs().max() > 1e-3
    for look, other in zip(looks, others, strict=True):
        assert (look.log_errors - other.log_errors).abs().max() > 1e-6


@settings(max_examples=40)
@given(SEEDS, st.floats(0, 1.5))
def test_glass_that_is_seen_comes_out_white_and_goes_back_as_it_was(seed: int, dark: float) -> None:
    """Whatever the weights say."""
    encoder, sight = build(seed, said=0.3), draw_sight(seed, glass=dark)
    glass = sight.glass[:1, None]
    for look in encoder(sight):
        normalize, restain = (maps.choose(torch.tensor([0])) for maps in look.maps)
        there = normalize(glass)
        rounding = 1e-5 * (1 + float(normalize.matrix.abs().max()))
        assert float(there.max() - there.min()) < rounding
        assert -rounding < float(there.min()) <= min(float(glass.mean()), MOST_VEIL) + rounding
        largest = 1 + float(restain.matrix.abs().max() * there.abs().max())
        torch.testing.assert_close(restain(there), glass, rtol=0, atol=1e-4 * largest)


def test_glass_that_is_not_seen_is_no_anchor() -> None:
    encoder, sight = build(said=0.3), draw_sight(0)
    assert sight.sees_glass.tolist() == [True, False]
    there = encoder(sight)[-1].maps.normalize(sight.glass[:, None])
    assert (there.amax(2) - there.amin(2))[1] > 0.01


def test_before_it_has_learned_anything_it_says_what_the_closed_form_says() -> None:
    """Strong stains of a lab become those of the reference stain, and the ways there and back agree."""
    random = torch.Generator().manual_seed(0)
    amounts = torch.rand(1, 2000, 1, 2, generator=random).square()
    amounts[:, :200, :, 0], amounts[:, 200:400, :, 1] = 0, 0
    density = (amounts @ STAINS).expand(-1, -1, VIEWS, -1)
    counts = torch.ones(1, 2000, dtype=torch.bool)
    sight = Sight(density, torch.zeros(1, 2000), counts, torch.zeros(1, 3), torch.tensor([True]))
    encoder = build(said=0.0)
    look = encoder(sight)[-1]
    mapped = look.maps.normalize(STAINS[None])[0]
    cosine = torch.cosine_similarity(mapped, encoder.basis[:2])
    assert torch.rad2deg(cosine.clamp(max=1).acos()).max() < 3
    torch.testing.assert_close(mapped.norm(dim=1), encoder.basis[:2].norm(dim=1), rtol=0.15, atol=0)
    around = look.maps.normalize.then(look.maps.restain)
    torch.testing.assert_close(around.matrix[0], torch.eye(3), rtol=0, atol=1e-3)


KINDS = ("nothing", "one color", "a line", "a plane", "noise", "a color and noise", "one pixel", "black", "alike")


def draw_set(kind: str, seed: int) -> tuple[Tensor, Tensor]:
    """Return densities (1, P, 3) above glass that are hard to find two stains in, and which of them count."""
    random = torch.Generator().manual_seed(seed)
    pixels, color = 50, 2 * torch.rand(3, generator=random)
    amounts, noise = torch.rand(pixels, 1, generator=random), torch.randn(pixels, 3, generator=random)
    counts = torch.rand(pixels, generator=random) < 0.7
    above = {
        "nothing": torch.zeros(pixels, 3),
        "one color": color.expand(pixels, 3),
        "a line": amounts * color,
        "a plane": amounts * color + torch.rand(pixels, 1, generator=random) * torch.rand(3, generator=random),
        "noise": 0.05 * noise,
        "a color and noise": color + 1e-4 * noise,
        "one pixel": color.expand(pixels, 3),
        "black": torch.full((pixels, 3), BLACK),
        "alike": amounts * color + torch.rand(pixels, 1, generator=random) * (color + 1e-5),
    }[kind]
    if kind == "one pixel":
        counts = torch.arange(pixels) == 7
    return above[None].clone(), counts[None]


@settings(max_examples=200)
@given(st.sampled_from(KINDS), SEEDS, st.booleans())
def test_a_frame_is_never_degenerate(kind: str, seed: int, all_out: bool) -> None:
    above, counts = draw_set(kind, seed)
    frame, spread = find_frame(above.numpy(), (counts & (not all_out)).numpy())
    assert frame.shape == (1, 3, 3)
    assert frame.dtype == spread.dtype == np.float32
    assert np.isfinite(frame).all()
    assert np.isfinite(spread).all()
    assert (np.diff(spread) >= 0).all()
    inverse = np.linalg.inv(frame)
    assert np.isfinite(inverse).all()
    assert float(np.linalg.cond(frame[0].astype(np.float64))) < 1e6
    np.testing.assert_allclose(frame @ inverse, np.eye(3)[None], rtol=0, atol=0.05)


@settings(max_examples=60)
@given(SEEDS)
def test_a_frame_holds_the_stains_that_colors_are_mixed_of(seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    unit = F.normalize(0.1 + torch.rand(2, 3, generator=random), dim=1)
    stains = unit * (0.7 + 0.6 * torch.rand(2, 1, generator=random))
    redness = stains[:, 0] / stains.sum(1)
    assume(float(unit[0] @ unit[1]) < math.cos(math.radians(15)))
    assume(float(redness[0] - redness[1]) > 0.05)  # the first absorbs more of the red light: it is the bluer one
    amounts = torch.rand(3000, 2, generator=random)
    amounts[:300, 0] = amounts[300:600, 1] = 0
    (frame,) = torch.from_numpy(find_frame((amounts @ stains)[None].numpy(), np.ones((1, 3000), bool))[0])
    found = frame[:2] / frame[:2].norm(dim=1, keepdim=True)
    assert torch.rad2deg((found * unit).sum(1).clamp(max=1).acos()).max() < 3
    torch.testing.assert_close(frame[:2].norm(dim=1), stains.norm(dim=1), rtol=0.15, atol=0)
    assert (frame[2] @ stains.T).abs().max() < 0.05


@settings(max_examples=60)
@given(SEEDS, st.integers(1, 40), st.floats(0.05, 1))
def test_quantiles_are_those_of_the_pixels_that_count(seed: int, pixels: int, share: float) -> None:
    random = torch.Generator().manual_seed(seed)
    values = torch.randn(3, pixels, 2, generator=random)
    counts = torch.rand(3, pixels, generator=random) < share
    found = quantiles(values, counts, LEVELS)
    assert found.shape == (3, 2, len(LEVELS))
    for lab in range(3):
        if not counts[lab].any():
            assert not found[lab].any()
            continue
        expected = np.quantile(values[lab, counts[lab]].double().numpy(), LEVELS, axis=0).T
        np.testing.assert_allclose(found[lab].numpy(), expected, atol=1e-5)


def test_quantiles_of_nothing_are_zero_and_pass_no_gradient() -> None:
    values = torch.randn(2, 9, 1, generator=torch.Generator().manual_seed(0)).requires_grad_()
    counts = torch.zeros(2, 9, dtype=torch.bool)
    counts[0, :5] = True  # of the second lab, nothing counts
    found = quantiles(values, counts, (0.1, 0.5))
    assert not found.requires_grad
    assert found[0].all()
    assert not found[1].any()


def test_a_set_shown_twice_is_the_same_set() -> None:
    """But for quantiles, which lie a little closer to the ends."""
    encoder, sight = build(), draw_sight(5, pixels=400)
    twice = choose_pixels(sight, torch.arange(400).repeat(2))
    for look, again in zip(encoder(sight), encoder(twice), strict=True):
        torch.testing.assert_close(again.maps.normalize.matrix, look.maps.normalize.matrix, rtol=0.05, atol=0.05)
        torch.testing.assert_close(again.log_errors, look.log_errors, rtol=0, atol=0.05)


@settings(max_examples=40)
@given(SEEDS, st.sampled_from(["all", "none", "one"]), st.sampled_from(["nothing", "one color", "usual"]))
def test_whatever_a_lab_shows_its_maps_are_finite(seed: int, counted: str, shown: str) -> None:
    encoder, sight = build(seed), draw_sight(seed)
    density = {"nothing": 0 * sight.density, "one color": sight.density[:, :1].expand_as(sight.density)}
    counts = torch.full_like(sight.is_tissue, counted == "all")
    counts[:, 3] = counted != "none"
    for look in encoder(sight._replace(density=density.get(shown, sight.density), is_tissue=counts)):
        assert all(part.isfinite().all() for maps in look.maps for part in maps)
        assert look.log_errors.isfinite().all()
        assert look.is_he.isfinite().all()


@settings(max_examples=40)
@given(SEEDS)
def test_least_squares_find_the_map_between_amounts_and_leave_what_does_not_count(seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    given, weight = torch.rand(2, 200, 3, generator=random), torch.rand(2, 200, generator=random)
    maps = AffineMap(torch.eye(3) + 0.3 * torch.randn(2, 3, 3, generator=random), torch.rand(2, 3, generator=random))
    wanted = maps(given)
    wrong = weight < 0.3
    found = regress(given, torch.where(wrong[..., None], 7.0, wanted), torch.where(wrong, 0.0, weight))
    # The ridge, by which little spread says little, pulls a little.
    torch.testing.assert_close(found.matrix, maps.matrix, rtol=0, atol=0.05)
    torch.testing.assert_close(found.bias, maps.bias, rtol=0, atol=0.05)


def test_what_the_pixels_do_not_say_stays_as_it_is() -> None:
    line = torch.linspace(0, 1, 50)[None, :, None] * torch.tensor([1.0, 0, 0])
    found = regress(line, 2 * line, torch.ones(1, 50))
    torch.testing.assert_close(found.matrix[0], torch.diag(torch.tensor([2.0, 1, 1])), rtol=0, atol=0.02)
    nothing = regress(line, 2 * line, torch.zeros(1, 50))
    torch.testing.assert_close(nothing.matrix[0], torch.eye(3))
    torch.testing.assert_close(nothing.bias[0], torch.zeros(3))


@settings(max_examples=20)
@given(SEEDS, st.integers(1, 50))
def test_glass_is_found_pixel_by_pixel_in_any_order(seed: int, pixels: int) -> None:
    encoder, sight = build(seed), draw_sight(seed, pixels=pixels)
    order = torch.randperm(pixels, generator=torch.Generator().manual_seed(seed))
    logits = encoder.find_glass(sight.density, sight.roughness)
    again = encoder.find_glass(sight.density[:, order], sight.roughness[:, order])
    assert logits.shape == (2, pixels)
    torch.testing.assert_close(again, logits[:, order], rtol=1e-3, atol=1e-3)


def test_soft_intensities_are_ours_where_there_is_stain_and_have_a_gradient_beyond_white() -> None:
    density = torch.linspace(0, 5, 50)
    torch.testing.assert_close(soft_rgb(density), to_rgb(density), rtol=0, atol=1e-5)
    beyond = torch.tensor([-0.5, -0.1], requires_grad=True)
    brighter = soft_rgb(beyond)
    assert (brighter > 1).all()
    brighter.sum().backward()
    assert beyond.grad is not None
    assert (beyond.grad < 0).all()
    assert (soft_rgb(torch.linspace(-4, 7, 200)).diff() < 1e-6).all()


@pytest.mark.parametrize("said", [0.0, 0.3])
def test_the_basis_is_the_reference_stain_and_what_is_neither(said: float) -> None:
    basis = build(said=said).basis
    torch.testing.assert_close(basis[:2], stain_densities(REFERENCE).float())
    assert (basis[:2] @ basis[2]).abs().max() < 1e-5
    assert float(basis[2].norm()) == pytest.approx(0.5)
    assert len(DIRECTIONS[0]) == len(basis)


def numpy_sight(sight: Sight) -> Sight:
    return Sight(*(part.numpy() for part in sight))


def assert_numpy_agrees(encoder: StyleEncoder, sight: Sight) -> None:
    """Refuse weights of which numpy alone makes anything else than torch does."""
    weights = {name: weight.numpy() for name, weight in encoder.weights().items()}
    for ours, theirs in zip(look_at(weights, numpy_sight(sight)), encoder(sight), strict=True):
        assert ours.maps.normalize.matrix.dtype == ours.log_errors.dtype == np.float32
        for mine, other in zip(ours.maps, theirs.maps, strict=True):
            np.testing.assert_allclose(mine.matrix, other.matrix.numpy(), rtol=1e-3, atol=1e-3)
            np.testing.assert_allclose(mine.bias, other.bias.numpy(), rtol=1e-3, atol=1e-3)
        for mine, other in ((ours.log_errors, theirs.log_errors), (ours.is_he, theirs.is_he)):
            np.testing.assert_allclose(mine, other.numpy(), rtol=1e-3, atol=1e-3)
        np.testing.assert_allclose(ours.amounts, theirs.amounts.numpy(), rtol=1e-3, atol=1e-3)
    glass = find_glass(weights, sight.density.numpy(), sight.roughness.numpy())
    np.testing.assert_allclose(glass, encoder.find_glass(sight.density, sight.roughness).numpy(), rtol=1e-3, atol=1e-3)


@settings(max_examples=25)
@given(SEEDS)
def test_numpy_alone_gives_the_same_maps(seed: int) -> None:
    assert_numpy_agrees(build(seed), draw_sight(seed, labs=3))


def test_numpy_alone_gives_the_same_maps_with_the_shipped_weights() -> None:
    shipped = read_weights(PRIOR)
    for width, weights in zip(shipped.document.encoders, shipped.encoders, strict=True):
        encoder = StyleEncoder(stain_densities(REFERENCE), width).requires_grad_(False)
        encoder.load_state_dict({name: torch.from_numpy(weight) for name, weight in weights.items()})
        assert_numpy_agrees(encoder, draw_sight(0, labs=4, pixels=2000))


@settings(max_examples=60)
@given(SEEDS, st.integers(1, 40))
def test_weighted_quantiles_are_those_of_repeated_values(seed: int, pixels: int) -> None:
    random = np.random.default_rng(seed)
    values, weights = random.normal(size=(3, pixels)).astype(np.float32), random.integers(0, 4, (3, pixels))
    found = weighted_quantile(values, weights.astype(np.float32), (0.03, 0.4, 0.97))
    assert (found.shape, found.dtype) == ((3, 3), np.float32)
    for row in range(3):
        repeated = values[row].repeat(weights[row])
        if not len(repeated):
            assert not found[row].any()
            continue
        for level, value in zip((0.03, 0.4, 0.97), found[row], strict=True):
            share = np.array([(repeated < value).mean(), (repeated <= value).mean()])
            assert share[0] - 1e-9 <= level <= share[1] + 1e-9


def test_activations_are_those_of_torch_and_do_not_overflow() -> None:
    values = np.array([-1e4, -90, -2, -0.0, 0.3, 5, 90, 1e4], np.float32)
    np.testing.assert_allclose(sigmoid(values), torch.from_numpy(values).sigmoid().numpy(), rtol=0, atol=1e-6)
    assert np.array_equal(relu(values), torch.from_numpy(values).relu().numpy())
    steep = torch.from_numpy(values).requires_grad_()
    sigmoid(steep).sum().backward()
    assert steep.grad is not None
    assert steep.grad.isfinite().all()
