import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from bottlegan.core.errors import InputError
from bottlegan.imaging.files import Pixels, read_image
from bottlegan.imaging.tensors import from_batch, to_batch
from bottlegan.models.code_maps import decode_maps
from bottlegan.models.config import ModelConfig
from bottlegan.models.document import PRIOR
from bottlegan.models.files import to_weights
from bottlegan.models.paradigms import BottleGAN, build_model
from bottlegan.models.pixel_sets import VIEWS, PixelSet, look_at
from bottlegan.models.reference_stain import ReferenceStain
from bottlegan.onboarding import fit
from bottlegan.onboarding.fit import (
    LEAST_GLASS,
    MOST_TISSUE,
    Onboarding,
    choose_tissue,
    find_encoders,
    find_maps,
    limit_grain,
    measure_contrast,
    measure_gain,
    see,
)
from bottlegan.onboarding.labs import describe_reference, onboard_all, to_torch
from bottlegan.onboarding.verdict import MOST_GRAIN, Verdict
from bottlegan.simulation.styles import render, stain_densities
from bottlegan.simulation.tissue import draw_tissue
from bottlegan.stain.affine import AffineMap
from bottlegan.stain.density import to_density, to_rgb
from bottlegan.stain.style import LABORATORIES, REFERENCE, Style

ODD = Style(name="odd", hematoxylin=(1.2, 1.0, 0.3), eosin=(0.1, 0.4, 0.9), offset=(0.02, 0.06))
PALE = Style(name="pale", hematoxylin=(0.7, 0.9, 0.45), eosin=(0.05, 0.5, 0.3))
GLASS = (236, 230, 240)
REAL = Path(os.environ.get("BOTTLEGAN_REAL", Path(__file__).parents[3] / "shared" / "data" / "real"))


@pytest.fixture(scope="module")
def prior() -> BottleGAN:
    return BottleGAN.load(PRIOR)


@pytest.fixture(scope="module")
def tissue() -> Tensor:
    return torch.stack([draw_tissue(seed=11, index=index, size=256).concentration for index in range(6)])


def lab(tissue: Tensor, style: Style) -> list[Pixels]:
    return from_batch(render(tissue, style))


def onboard(images: list[Pixels], model: BottleGAN) -> Onboarding:
    """Fit a code, as a tensor, to a model of torch."""
    found = fit.onboard(images, to_weights(model))
    return replace(found, code=torch.from_numpy(found.code))  # type: ignore[arg-type]


def add_glass(image: Pixels) -> Pixels:
    """Return an image whose left third is bare glass, slightly tinted and grainy."""
    white = np.array(GLASS) / 255
    shown = np.rint(image * white)
    shown[:, : image.shape[1] // 3] = GLASS
    grain = np.random.default_rng(0).normal(0, 0.7, image.shape)
    return np.clip(np.rint(shown + grain), 0, 255).astype(np.uint8)


def normalize(model: BottleGAN, code: Tensor, images: list[Pixels]) -> list[np.ndarray]:
    with torch.no_grad():
        return [255 * model.normalize(to_batch(image), code)[0].permute(1, 2, 0).numpy() for image in images]


def far_apart(left: list[np.ndarray], right: list[np.ndarray]) -> float:
    """Return the root mean square difference of images, in levels."""
    return float(np.sqrt(np.mean([((a - b) ** 2).mean() for a, b in zip(left, right, strict=True)])))


@torch.no_grad()
def errors(model: BottleGAN, code: Tensor, tissue: Tensor, style: Style) -> tuple[float, float, float]:
    """Return the MSE of doing nothing, of normalizing and of restaining."""
    styled, truth = torch.cat([to_batch(levels) for levels in lab(tissue, style)]), render(tissue, REFERENCE)
    normalized, restained = model.normalize(styled, code), model.restain(truth, code)
    pairs = ((styled, truth), (normalized, truth), (restained, styled))
    nothing, there, back = ((a - b).square().mean().item() for a, b in pairs)
    return nothing, there, back


@pytest.mark.parametrize("style", [*LABORATORIES[5:8], ODD], ids=lambda style: style.name)
def test_a_lab_is_fitted_from_one_image(prior: BottleGAN, tissue: Tensor, style: Style) -> None:
    found = onboard(lab(tissue[:1], style), prior)
    nothing, there, back = errors(prior, found.code, tissue[:3], style)
    assert there < 0.25 * nothing
    assert back < 0.25 * nothing
    assert found.diagnosis.verdict != Verdict.REFUSED


def test_fitting_twice_gives_the_same_bytes_with_gradients_on_or_off(prior: BottleGAN, tissue: Tensor) -> None:
    images = lab(tissue[:1], ODD)
    first = onboard(images, prior)
    with torch.no_grad():
        again = onboard(images, prior)
    assert torch.equal(first.code, again.code)
    assert not first.code.requires_grad
    assert first.diagnosis == again.diagnosis


def test_the_order_of_images_does_not_matter(prior: BottleGAN, tissue: Tensor) -> None:
    images = lab(tissue[:4], LABORATORIES[5])
    images[2] = images[2][:100, :170]
    forward, backward = (onboard(given, prior) for given in (images, [images[index] for index in (2, 0, 3, 1)]))
    mapped = [normalize(prior, found.code, images[:2]) for found in (forward, backward)]
    assert max(np.abs(a - b).max() for a, b in zip(*mapped, strict=True)) < 0.5
    assert backward.diagnosis.expected_error == pytest.approx(forward.diagnosis.expected_error, rel=1e-2)
    assert backward.diagnosis.verdict == forward.diagnosis.verdict


def test_another_set_of_patches_gives_nearly_the_same_map(prior: BottleGAN, tissue: Tensor) -> None:
    for style in (LABORATORIES[4], PALE):
        images = lab(tissue, style)
        first, second = (onboard(given, prior).code for given in (images[:3], images[3:]))
        shown = [image.astype(float) for image in images[:2]]
        mapped = [normalize(prior, code, images[:2]) for code in (first, second)]
        assert far_apart(*mapped) < 8
        assert far_apart(*mapped) < 0.5 * far_apart(mapped[0], shown)


def test_twice_the_stain_is_normalized_to_the_same_and_restained_to_twice(prior: BottleGAN, tissue: Tensor) -> None:
    single = render(tissue[:3], PALE)
    double = to_rgb(2 * to_density(single))
    fits = [onboard(from_batch(images), prior).code for images in (single, double)]
    mapped = [normalize(prior, code, from_batch(images)) for code, images in zip(fits, (single, double), strict=True)]
    assert far_apart(*mapped) < 10
    with torch.no_grad():
        truth = render(tissue[3:], REFERENCE)
        once, twice = (to_density(prior.restain(truth, code)).mean() for code in fits)
    assert 1.7 < float(twice / once) < 2.4


def test_glass_comes_out_as_white_as_it_went_in_and_goes_back_as_it_was(prior: BottleGAN, tissue: Tensor) -> None:
    images = [add_glass(image) for image in lab(tissue[:2], LABORATORIES[5])]
    code = onboard(images, prior).code
    glass = torch.tensor(GLASS)[None, :, None, None] / 255
    with torch.no_grad():
        there = prior.normalize(glass, code)
        back = prior.restain(there, code)
    levels = 255 * there[0, :, 0, 0]
    assert float(levels.max() - levels.min()) < 2, "it is neutral"
    assert float(levels.min()) > min(GLASS) - 1
    assert (255 * (back - glass)).abs().max() < 2


def test_no_direction_of_color_becomes_grainier_than_bounds(prior: BottleGAN, tissue: Tensor) -> None:
    faint = Style(name="faint", hematoxylin=(0.06, 0.07, 0.04), eosin=(0.02, 0.05, 0.04))
    images = lab(tissue[:1], faint)
    found = onboard(images, prior)
    with torch.no_grad():
        maps = decode_maps(prior, found.code[None]).normalize
    pixels = look_at(images).density
    fine = torch.from_numpy(pixels[:, 0] - pixels[:, 1]) @ maps.matrix[0]
    # Of all pixels here, and of those that are taken for tissue there.
    assert torch.linalg.svdvals(fine).max() / len(fine) ** 0.5 < 1.1 * MOST_GRAIN
    assert found.diagnosis.gain == pytest.approx(measure_gain(maps), rel=1e-2)
    assert found.diagnosis.verdict != Verdict.GOOD


@pytest.mark.parametrize("level", [255, 240, 200, 128, 30, 0])
@pytest.mark.parametrize("size", [(96, 128), (1, 1), (1, 7)])
def test_one_color_is_refused_as_blank(prior: BottleGAN, level: int, size: tuple[int, int]) -> None:
    found = onboard([np.full((*size, 3), level, np.uint8)], prior)
    assert found.diagnosis.verdict == Verdict.REFUSED
    assert "no tissue" in found.diagnosis.reason
    assert found.code.isfinite().all()


@pytest.mark.parametrize("tint", [(255, 255, 255), (244, 235, 225), (205, 205, 210)])
@pytest.mark.parametrize("noise", [1, 3, 6])
def test_noisy_glass_is_refused_as_blank(prior: BottleGAN, tint: tuple[int, int, int], noise: float) -> None:
    grain = np.random.default_rng(0).normal(0, noise, (160, 160, 3))
    found = onboard([np.clip(np.array(tint) + grain, 0, 255).astype(np.uint8)] * 2, prior)
    assert found.diagnosis.verdict == Verdict.REFUSED
    assert "no tissue" in found.diagnosis.reason


def test_no_number_of_a_code_spreads_far_beyond_the_others(plain_prior: BottleGAN, tissue: Tensor) -> None:
    """Distances between codes, and noise on them, weigh all numbers alike."""
    codes = torch.stack([onboard(lab(tissue[:2], style), plain_prior).code for style in LABORATORIES])
    assert codes.std(0).max() < 6


def test_no_image_is_an_error(prior: BottleGAN) -> None:
    with pytest.raises(InputError, match="no image"):
        onboard([], prior)


def test_images_of_any_size_and_number_are_looked_at(prior: BottleGAN, tissue: Tensor) -> None:
    (image,) = lab(tissue[:1], ODD)
    for images in ([image[:1, :1], image[:1], image[:, :2]], [image[:40, :40]] * 40, [image[60:62, 70:73]]):
        found = onboard(images, prior)
        assert found.code.isfinite().all()
        assert all(np.isfinite(value) for value in vars(found.diagnosis).values() if isinstance(value, float))


def test_the_network_and_other_labs_stay_as_they_are(tissue: Tensor) -> None:
    model = BottleGAN.load(PRIOR)
    model.codes.add("old", torch.ones(model.codes.size))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    onboard(lab(tissue[:1], ODD), model)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_a_model_that_knows_no_reference_set_cannot_learn_a_style(tissue: Tensor) -> None:
    model = build_model(ModelConfig(), [], torch.Generator().manual_seed(0))
    assert isinstance(model, BottleGAN)
    with pytest.raises(InputError, match="has no data on its reference set"):
        onboard(lab(tissue[:1], ODD), model)


def test_a_model_without_an_encoder_uses_the_shipped_one(prior: BottleGAN, tissue: Tensor) -> None:
    bare = BottleGAN.load(PRIOR)
    bare.encoders = nn.ModuleList()
    images = lab(tissue[:1], ODD)
    assert torch.equal(onboard(images, bare).code, onboard(images, prior).code)
    assert len(find_encoders(to_weights(prior))) == len(fit.shipped_encoders())
    assert find_encoders(to_weights(bare)) is fit.shipped_encoders()


def test_a_lab_that_is_the_reference_set_itself_needs_no_map(tissue: Tensor) -> None:
    images = lab(tissue[:3], LABORATORIES[5])
    model = BottleGAN.load(PRIOR)
    model.reference = describe_reference(images)
    assert model.reference.known
    code = onboard(images, model).code
    assert far_apart(normalize(model, code, images), [image.astype(float) for image in images]) < 6


def test_the_stains_of_a_reference_set_are_found(tissue: Tensor) -> None:
    for style in (REFERENCE, LABORATORIES[6]):
        found = describe_reference(lab(tissue, style))
        true = stain_densities(style).float()
        cosine = torch.cosine_similarity(found.stains, true)
        assert torch.rad2deg(cosine.clamp(max=1).acos()).max() < 12
        torch.testing.assert_close(found.stains.norm(dim=1), true.norm(dim=1), rtol=0.3, atol=0)


def test_several_labs_are_onboarded_in_order_and_relative_to_the_reference(tissue: Tensor) -> None:
    labs = {"b": lab(tissue[:1], LABORATORIES[5]), "a": lab(tissue[1:3], LABORATORIES[6])}
    reference = describe_reference(lab(tissue[3:5], LABORATORIES[7]))
    maps = onboard_all(labs, reference)
    assert maps.normalize.matrix.shape == (2, 3, 3)
    for row, images in enumerate(labs.values()):
        alone = to_torch(find_maps(images, fit.shipped_encoders())[0]).relative_to(reference.style_maps())
        for ours, theirs in zip(maps.choose(torch.tensor([row])), alone, strict=True):
            torch.testing.assert_close(ours.matrix, theirs.matrix)
            torch.testing.assert_close(ours.bias, theirs.bias)
    with pytest.raises(InputError, match="has no data on its reference set"):
        onboard_all(labs, ReferenceStain())


def measure_grain(maps: AffineMap, tissue: np.ndarray) -> np.ndarray:
    """Return the grain of mapped tissue along the directions in which the map stretches it."""
    left, values, _ = np.linalg.svd(maps.matrix[0])
    return values * np.sqrt(np.mean(((tissue[:, 0] - tissue[:, 1]) @ left) ** 2, axis=0))


@given(st.integers(0, 2**32 - 1), st.floats(0.1, 30), st.floats(0, 1))
def test_a_limited_map_is_no_grainier_and_leaves_the_center(seed: int, scale: float, noise: float) -> None:
    random = np.random.default_rng(seed)
    matrix = scale * random.standard_normal((1, 3, 3))
    wild = AffineMap(matrix, random.standard_normal((1, 3)))
    center, tissue = random.random((1, 3)), random.random((50, 1, 3)) + noise * random.standard_normal((50, VIEWS, 3))
    limited = limit_grain(wild, center, tissue)
    before, after = (np.sort(measure_grain(maps, tissue)) for maps in (wild, limited))
    assert after.max() < MOST_GRAIN * 1.001
    np.testing.assert_allclose(limited(center[:, None]), wild(center[:, None]), rtol=1e-6, atol=1e-6)
    # What is not too grainy stays as it is, in each direction.
    np.testing.assert_allclose(after, np.sort(np.minimum(before, MOST_GRAIN)), rtol=1e-4, atol=1e-6)
    if before.max() < MOST_GRAIN:
        np.testing.assert_allclose(limited.matrix, matrix, rtol=1e-6, atol=1e-6)


def test_gain_is_what_becomes_of_noise() -> None:
    random = torch.Generator().manual_seed(0)
    maps = AffineMap(torch.randn(1, 3, 3, generator=random), torch.randn(1, 3, generator=random))
    noise = torch.randn(1, 200_000, 3, generator=random)
    assert measure_gain(maps) == pytest.approx(float(maps(noise).std(1).square().mean().sqrt()), rel=0.01)
    assert measure_gain(AffineMap(2 * torch.eye(3)[None], torch.ones(1, 3))) == pytest.approx(2)


def draw_pixels(counts: list[int]) -> PixelSet:
    """Return pixels of images, known by their density."""
    total = sum(counts)
    density = np.arange(total, dtype=np.float32)[:, None, None].repeat(VIEWS, 1).repeat(3, 2)
    return PixelSet(density, np.zeros(total, np.float32), np.repeat(np.arange(len(counts)), counts))


def test_tissue_is_taken_at_even_distances_and_as_much_of_each_image() -> None:
    pixels = draw_pixels([10_000, 3, 20_000, 500])
    is_tissue = pixels.density[:, 0, 0] % 3 > 0
    rows = choose_tissue(pixels, is_tissue)
    assert is_tissue[rows].all()
    taken = np.bincount(pixels.image[rows], minlength=4)
    assert taken[1] == 2
    assert taken[3] == is_tissue[pixels.image == 3].sum()
    share = MOST_TISSUE // 4
    assert (taken[[0, 2]] > 0.5 * share).all()
    assert (taken <= share).all()
    of_first = np.flatnonzero(is_tissue[:10_000])
    assert len(set(np.diff(np.searchsorted(of_first, rows[: taken[0]])))) == 1, "even distances"


def test_the_encoder_sees_tissue_and_the_middle_of_the_glass() -> None:
    pixels = draw_pixels([1000])
    is_glass = np.zeros(1000, bool)
    is_glass[[7, 10, 11, 300, 900]] = True
    sight = see(pixels, is_glass)
    assert bool(sight.sees_glass)
    assert sight.glass.tolist() == [[11, 11, 11]]
    assert sight.density.shape == (1, 995, VIEWS, 3)
    assert bool(sight.is_tissue.all())
    assert not set(sight.density[0, :, 0, 0].tolist()) & {7, 10, 11, 300, 900}
    few = np.zeros(1000, bool)
    few[:3] = True
    assert not bool(see(pixels, few).sees_glass), "three pixels may be dust"
    many = draw_pixels([100_000])
    speck = np.zeros(100_000, bool)
    speck[: int(0.9 * LEAST_GLASS * 100_000)] = True
    assert not bool(see(many, speck).sees_glass), "so may be a speck of a large image"


def test_contrast_is_between_the_brightest_and_the_darkest() -> None:
    flat = np.full((50, 50, 3), 200, np.uint8)
    assert measure_contrast(look_at([flat])) == pytest.approx(0, abs=1e-6)
    half = flat.copy()
    half[:25] = 100
    # Whatever is smoothed over: most of both halves is far from the border.
    assert measure_contrast(look_at([half])) == pytest.approx(np.log(201 / 101), rel=0.05)


@pytest.mark.skipif(not (REAL / "odd").is_dir(), reason=f"the real labs are not in {REAL}; set BOTTLEGAN_REAL to them")
def test_every_odd_file_is_handled(prior: BottleGAN) -> None:
    files = sorted((REAL / "odd").iterdir())
    found = {file.name: onboard([read_image(file)], prior) for file in files}
    for name, each in found.items():
        assert each.code.isfinite().all(), name
        assert each.diagnosis.reason, name
    blank = [name for name in found if "almost-white" in name or name == "no-tissue.png"]
    assert blank
    for name in blank:
        # The faint immunohistochemistry among them is not quite blank.
        expected = {Verdict.UNCERTAIN, Verdict.REFUSED} if "ihc" in name else {Verdict.REFUSED}
        assert found[name].diagnosis.verdict in expected, name
    for name, each in found.items():
        if name.startswith("ihc") or "line" in name or "green-pen" in name:
            assert each.diagnosis.verdict != Verdict.GOOD, name


@given(st.lists(st.floats(-0.5, 0.9), min_size=3, max_size=3), st.lists(st.floats(0.1, 2.0), min_size=3, max_size=3))
def test_white_is_never_stained_and_the_center_stays(bias: list[float], center: list[float]) -> None:
    given_map = AffineMap(1.5 * np.eye(3)[None], np.array([bias]))
    middle = np.array([center])
    kept = fit.keep_white(given_map, middle)
    assert (kept.bias <= fit.MOST_VEIL + 1e-5).all()
    np.testing.assert_allclose(kept(middle[None]), given_map(middle[None]), rtol=1e-4, atol=1e-4)
