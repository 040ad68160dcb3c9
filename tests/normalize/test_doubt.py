from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from bottlegan.core.errors import InputError
from bottlegan.imaging.files import Pixels
from bottlegan.imaging.tensors import from_batch, to_batch
from bottlegan.models.config import GeneratorConfig, ModelConfig
from bottlegan.models.paradigms import BottleGAN, build_model
from bottlegan.normalize.normalizer import Normalizer
from bottlegan.simulation.styles import render
from bottlegan.stain.style import LABORATORIES


@pytest.fixture(scope="module")
def images(content: Tensor) -> list[Pixels]:
    return from_batch(render(content[:3], LABORATORIES[6]))


@pytest.fixture(scope="module")
def fitted(images: list[Pixels], plain_prior: BottleGAN) -> Normalizer:
    return Normalizer.fit(images, model=plain_prior)


def known(**form: Any) -> Normalizer:
    """A normalizer of a model that knows nothing of a reference set."""
    config = ModelConfig(code_size=3, generator=GeneratorConfig(width=4, depth=1, mapping=8, **form))
    random = torch.Generator().manual_seed(0)
    built = build_model(config, ("a",), random)
    for parameter in built.parameters():
        torch.nn.init.normal_(parameter, std=0.3, generator=random)
    return Normalizer.from_model(built, "a")


def noise(*shape: int) -> Pixels:
    return np.random.default_rng(0).integers(0, 256, (*shape, 3), np.uint8)


def test_uncertainty_is_a_density_that_knows_ink_and_doubtful_codes(fitted: Normalizer, images: list[Pixels]) -> None:
    inked = images[0].copy()
    inked[:8, :8] = (20, 160, 60)
    doubt = fitted.uncertainty(inked)
    assert (doubt.dtype, doubt.shape) == (np.float32, inked.shape[:2])
    assert (doubt >= 0).all()
    assert doubt[:8, :8].min() > 3 * np.median(doubt[8:, 8:])
    assert np.array_equal(doubt, fitted.uncertainty(inked))
    batch = fitted.uncertainty(to_batch(inked))
    assert batch.shape == (1, *inked.shape[:2])
    torch.testing.assert_close(batch[0], torch.from_numpy(doubt), rtol=0, atol=1e-5)


def test_uncertainty_grows_with_the_error_of_the_code(
    fitted: Normalizer, images: list[Pixels], monkeypatch: pytest.MonkeyPatch
) -> None:
    doubt = fitted.uncertainty(images[0])
    monkeypatch.setattr("bottlegan.normalize.doubt.CODE_NOISE", 0.0)
    across = fitted.uncertainty(images[0])
    assert across.mean() < doubt.mean()
    assert across.mean() < 0.05  # what is left of procedural tissue, which holds both stains and nothing else
    ink = np.full((2, 2, 3), (20, 160, 60), np.uint8)
    assert fitted.uncertainty(ink).min() > 3 * across.mean()


def test_uncertainty_without_a_reference_set() -> None:
    doubt = known().uncertainty(noise(16, 16))
    assert doubt.shape == (16, 16)
    assert (doubt >= 0).all()
    assert doubt.mean() > 0


@pytest.mark.parametrize("form", [{"kind": "unet", "statistics": "frozen"}, {"statistics": "instance"}])
def test_uncertainty_of_a_model_that_looks_around_a_pixel_is_refused(form: dict[str, str]) -> None:
    normalizer = known(**form)
    for image in (noise(16, 16), torch.zeros(1, 3, 16, 16)):
        with pytest.raises(InputError, match=r"not a map of colors.*; use a model of pixel generators"):
            normalizer.uncertainty(image)
