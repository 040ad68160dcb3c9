from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from bottlegan.core.errors import InputError
from bottlegan.data.peso import PesoPatches
from bottlegan.simulation.styles import render, stain_densities
from bottlegan.stain.density import NEARLY_WHITE, to_density
from bottlegan.stain.macenko import (
    Reference,
    Route,
    estimate_stains,
    fit_density_map,
    order_stains,
    profile,
    sample_density,
    summarize_reference,
    swap_profile,
    weighted_quantile,
)
from bottlegan.stain.style import LABORATORIES, REFERENCE, Style

PALE = Style(name="pale", hematoxylin=(0.5, 0.7, 0.35), eosin=(0.02, 0.4, 0.2))
DARK = Style(name="dark", hematoxylin=(2.8, 3.2, 1.5), eosin=(0.4, 2.2, 1.3))
GREEN = Style(name="green", hematoxylin=(2.4, 0.5, 1.2), eosin=(0.3, 0.4, 1.1))
EXCHANGED = Style(name="exchanged", hematoxylin=REFERENCE.eosin, eosin=REFERENCE.hematoxylin)


def mse(a: Tensor, b: Tensor) -> float:
    return (a - b).square().mean().item()


@pytest.mark.parametrize("style", [*LABORATORIES, PALE, DARK, GREEN, EXCHANGED], ids=lambda style: style.name)
def test_any_style_is_brought_to_the_reference_stain(style: Style, content: Tensor, reference: Reference) -> None:
    held_out = content[4:]
    images, truth = render(held_out, style), render(held_out, REFERENCE)
    fitted = fit_density_map(sample_density(images), reference)
    assert {d.route for d in fitted.diagnoses} == {Route.STAINS}
    assert mse(fitted(images), truth) < max(0.2 * mse(images, truth), 0.002)


def test_hematoxylin_is_found_where_its_color_is_eosins(content: Tensor, reference: Reference) -> None:
    density = sample_density(render(content[4:], EXCHANGED))
    stains = order_stains(estimate_stains(density), reference)
    unit = torch.nn.functional.normalize(stain_densities(EXCHANGED), dim=1)
    own, other = ((stains.matrix * rows).sum(-1) for rows in (unit, unit.flip(0)))
    assert (own > other).all()


def test_where_profiles_do_not_tell_the_darker_stain_is_hematoxylin(content: Tensor, reference: Reference) -> None:
    stains = estimate_stains(sample_density(render(content[4:], DARK)))
    alike = replace(stains, profile=(stains.profile + swap_profile(stains.profile)) / 2)
    for start in (alike, alike.swapped(torch.ones(4, dtype=torch.bool))):
        ordered = order_stains(start, reference)
        first, second = (ordered.matrix.sum(-1) * ordered.strength).unbind(1)
        assert (first > second).all()


def test_a_batch_gives_what_its_images_give_alone(content: Tensor, reference: Reference) -> None:
    density = sample_density(render(content[4:], DARK))
    together = fit_density_map(density, reference)
    for i in range(len(density)):
        alone = fit_density_map(density[i : i + 1], reference)
        torch.testing.assert_close(alone.matrix[0], together.matrix[i], rtol=1e-6, atol=1e-8)
        assert alone.diagnoses[0].route == together.diagnoses[i].route


def one_stain() -> Tensor:
    """Eosin of varying concentration, with the noise of a sensor."""
    random = torch.Generator().manual_seed(0)
    concentration = torch.rand(1, 2, 64, 64, generator=random) * torch.tensor([0.0, 1.0])[:, None, None]
    image = render(concentration, REFERENCE)
    return (image + 0.005 * torch.randn(image.shape, generator=random)).clamp(0, 1)


@pytest.mark.parametrize(
    ("image", "reason"),
    [
        (torch.ones(1, 3, 32, 32), "no tissue"),
        (torch.full((1, 3, 32, 32), 0.97), "no tissue"),
        (torch.zeros(1, 3, 32, 32), "only one stain"),
        (torch.full((1, 3, 1, 1), 0.5), "only one stain"),
        (torch.full((1, 3, 7, 300), 0.3), "only one stain"),
        (one_stain(), "only one stain"),
    ],
    ids=["white", "glass", "black", "one pixel", "flat", "eosin only"],
)
def test_poor_images_are_left_as_they_are(image: Tensor, reason: str, reference: Reference) -> None:
    fitted = fit_density_map(sample_density(image), reference)
    diagnosis = fitted.diagnoses[0]
    assert diagnosis.route == Route.IDENTITY
    assert reason in diagnosis.reason
    torch.testing.assert_close(fitted(image), image, rtol=0, atol=1e-6)


def test_nearly_parallel_stains_fall_back_on_transport(content: Tensor, reference: Reference) -> None:
    style = Style(name="parallel", hematoxylin=(1.2, 2.0, 1.0), eosin=(0.62, 1.0, 0.5))
    images = render(content[4:], style)
    fitted = fit_density_map(sample_density(images), reference)
    assert {d.route for d in fitted.diagnoses} == {Route.TRANSPORT}
    assert mse(fitted(images), render(content[4:], REFERENCE)) < mse(images, render(content[4:], REFERENCE))


@pytest.mark.parametrize("style", [PALE, DARK, GREEN], ids=lambda style: style.name)
def test_the_inverse_leads_back(style: Style, content: Tensor, reference: Reference) -> None:
    images = render(content[4:], style)
    fitted = fit_density_map(sample_density(images), reference)
    inside = fitted(images)
    kept = ((inside > 0.01) & (inside < 0.99)).all(1, keepdim=True).expand_as(images)
    kept = kept & (to_density(images).amax(1, keepdim=True) > NEARLY_WHITE)
    torch.testing.assert_close(fitted.inverse()(inside)[kept], images[kept], rtol=0, atol=1e-3)


def test_tinted_glass_becomes_white(content: Tensor, reference: Reference) -> None:
    tinted = Style(name="tinted", hematoxylin=DARK.hematoxylin, eosin=DARK.eosin, white=(0.8, 0.9, 0.75))
    images = render(content[4:], tinted)
    fitted = fit_density_map(sample_density(images).flatten(0, 1)[None], reference)
    glass = fitted(torch.tensor(tinted.white)[None, :, None, None])
    assert glass.min() > 0.88
    assert glass.max() - glass.min() < 0.06
    truth = render(content[4:], REFERENCE)
    assert mse(fitted(images), truth) < 0.03 * mse(images, truth)


def test_noise_and_random_colors_never_fail(reference: Reference) -> None:
    random = torch.Generator().manual_seed(1)
    for shape in [(3, 3, 16, 16), (1, 3, 2, 1), (2, 3, 300, 5)]:
        images = torch.rand(shape, generator=random)
        fitted = fit_density_map(sample_density(images), reference)
        assert fitted(images).isfinite().all()
        assert all(np.isfinite(d.condition) for d in fitted.diagnoses)


def test_mostly_blank_images_are_judged_by_their_tissue(content: Tensor, reference: Reference) -> None:
    tissue = render(content[4:5], DARK)
    blank = torch.ones(1, 3, 4 * tissue.shape[2], 4 * tissue.shape[3])
    blank[:, :, : tissue.shape[2], : tissue.shape[3]] = tissue
    alone, framed = (fit_density_map(sample_density(image), reference) for image in (tissue, blank))
    assert framed.diagnoses[0].tissue < 0.07
    assert mse(alone(tissue), framed(tissue)) < 0.1 * mse(tissue, render(content[4:5], REFERENCE))


def test_exchanging_stains_exchanges_their_profile() -> None:
    relative = torch.rand(2, 50, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    mask = torch.ones(2, 50, dtype=torch.float64)
    # In reverse, a quantile counts from the other end, so it may be the next of the 50 values.
    torch.testing.assert_close(
        swap_profile(profile(relative, mask)), profile(relative.flip(-1), mask), rtol=0, atol=0.1
    )


def test_a_reference_set_without_tissue_is_refused() -> None:
    with pytest.raises(InputError, match="two stains"):
        summarize_reference([torch.ones(2, 3, 16, 16)])


@given(st.lists(st.floats(-10, 10), min_size=1, max_size=30), st.floats(0.01, 0.99))
def test_equal_weights_give_the_plain_quantile(values: list[float], level: float) -> None:
    tensor = torch.tensor([values], dtype=torch.float64)
    ours = weighted_quantile(tensor, torch.ones_like(tensor), torch.tensor([level], dtype=torch.float64))
    assert ours.item() == np.quantile(values, level, method="inverted_cdf")


def test_values_without_weight_do_not_count() -> None:
    values = torch.tensor([[9.0, 1.0, 2.0, 3.0]], dtype=torch.float64)
    weights = torch.tensor([[0.0, 1.0, 1.0, 2.0]], dtype=torch.float64)
    levels = torch.tensor([0.2, 0.5, 0.6, 1.0], dtype=torch.float64)
    assert weighted_quantile(values, weights, levels).tolist() == [[1, 2, 3, 3]]
    assert weighted_quantile(values, 0 * weights, levels).tolist() == [[0, 0, 0, 0]]


def test_real_tissue_in_foreign_styles(peso: PesoPatches) -> None:
    scored, pool = peso.ids[::12], peso.ids[5::12]
    images, truth = peso.read_images("styled", scored), peso.read_images("reference", scored)
    fitted = fit_density_map(sample_density(images), summarize_reference([peso.read_images("reference", pool)]))
    error = (fitted(images) - truth).square().mean((1, 2, 3))
    assert error.mean() < 0.0035
    assert error.median() < 0.0014
