import pytest
import torch
from torch import Tensor

from bottlegan.data.synthetic import draw_tissue
from bottlegan.errors import InputError
from bottlegan.models.files import PRIOR
from bottlegan.models.paradigms import BottleGAN, ModelConfig, build_model
from bottlegan.slides.image import Levels, from_batch, to_batch
from bottlegan.stain.macenko import Reference, fit_density_map, sample_density
from bottlegan.stain.simulate import LABORATORIES, REFERENCE, Style, render
from bottlegan.training.onboard import exchange_stains, onboard

ODD = Style(name="odd", hematoxylin=(1.2, 1.0, 0.3), eosin=(0.1, 0.4, 0.9), offset=(0.02, 0.06))


@pytest.fixture(scope="module")
def prior() -> BottleGAN:
    return BottleGAN.load(PRIOR)


@pytest.fixture(scope="module")
def tissue() -> Tensor:
    return torch.stack([draw_tissue(seed=11, index=i, size=256).concentration for i in range(3)])


def lab(tissue: Tensor, style: Style) -> list[Levels]:
    return from_batch(render(tissue, style))


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
    nothing, there, back = errors(prior, found.code, tissue, style)
    assert there < 0.2 * nothing
    assert back < 0.2 * nothing


def test_fitting_twice_gives_the_same_bytes_with_gradients_on_or_off(prior: BottleGAN, tissue: Tensor) -> None:
    images = lab(tissue[:1], ODD)
    first = onboard(images, prior, seed=3)
    with torch.no_grad():
        again = onboard(images, prior, seed=3)
    assert torch.equal(first.code, again.code)
    assert first.diagnosis == again.diagnosis


def test_the_network_and_other_labs_stay_as_they_are(tissue: Tensor) -> None:
    model = BottleGAN.load(PRIOR)
    model.codes.add("old", torch.ones(model.codes.size))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    onboard(lab(tissue[:1], ODD), model)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_stains_that_were_taken_for_each_other_are_set_right(
    prior: BottleGAN, tissue: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The closed-form fit is made to err, so that only the other start can be right."""

    def err(density: Tensor, reference: Reference):
        return exchange_stains(fit_density_map(density, reference), reference)

    monkeypatch.setattr("bottlegan.training.onboard.fit_density_map", err)
    found = onboard(lab(tissue, LABORATORIES[1]), prior)
    nothing, there, _ = errors(prior, found.code, tissue, LABORATORIES[1])
    assert there < 0.5 * nothing


def test_exchanging_stains_twice_changes_nothing(content: Tensor, reference: Reference) -> None:
    maps = fit_density_map(sample_density(render(content[:2], ODD)), reference)
    twice = exchange_stains(exchange_stains(maps, reference), reference)
    torch.testing.assert_close(twice.matrix, maps.matrix)
    torch.testing.assert_close(twice.bias, maps.bias)


def test_no_image_is_an_error(prior: BottleGAN) -> None:
    with pytest.raises(InputError, match="no image"):
        onboard([], prior)


def test_a_model_that_knows_no_reference_set_cannot_learn_a_style(tissue: Tensor) -> None:
    model = build_model(ModelConfig(), [], torch.Generator().manual_seed(0))
    assert isinstance(model, BottleGAN)
    with pytest.raises(InputError, match="knows nothing of its reference set"):
        onboard(lab(tissue[:1], ODD), model)
