import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import hypothesis
import pytest
import torch
from torch import nn

from bottlegan.data.peso import PesoPatches, open_peso_patches
from bottlegan.models.config import GeneratorConfig, ModelConfig
from bottlegan.models.paradigms import BottleGAN, build_model
from bottlegan.models.pixel_sets import VIEWS
from bottlegan.simulation.styles import render
from bottlegan.simulation.tissue import draw_tissue
from bottlegan.stain.macenko import Reference, summarize_reference
from bottlegan.stain.style import REFERENCE
from bottlegan.training.prior import PriorConfig, begin_encoder, begin_prior

# What is printed must not depend on the terminal or on who runs the tests. Typer looks when it is imported, later.
for name in ("GITHUB_ACTIONS", "FORCE_COLOR", "PY_COLORS", "NO_COLOR"):
    os.environ.pop(name, None)
os.environ["COLUMNS"] = "120"

# A busy machine is no failure, and a first call imports and compiles.
hypothesis.settings.register_profile("patient", deadline=None)
hypothesis.settings.load_profile("patient")

PESO = Path(os.environ.get("BOTTLEGAN_PESO", Path(__file__).parents[2] / "shared" / "data" / "peso"))


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    # Tests run side by side; threads inside torch would only fight over the cores.
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def peso() -> PesoPatches:
    if not PESO.is_dir():
        pytest.skip(f"the PESO patches are not in {PESO}; set BOTTLEGAN_PESO to where they are")
    return open_peso_patches(PESO)


@pytest.fixture(scope="session")
def content() -> torch.Tensor:
    """Concentrations (8, 2, 192, 192) of eight patches of procedural tissue, to be left as they are."""
    return torch.stack([draw_tissue(seed=3, index=i, size=192).concentration for i in range(8)])


@pytest.fixture(scope="session")
def reference(content: torch.Tensor) -> Reference:
    """The statistics of the first four patches in the reference stain."""
    return summarize_reference([render(content[:4], REFERENCE)])


@pytest.fixture(scope="session")
def plain_prior() -> BottleGAN:
    """A prior that was not trained, to be left as it is: labs are onboarded as the closed form says.

    What is bright it takes for glass, and everything for H&E. So tests of what is done with a fit need no good one.
    """
    model, encoder = begin_prior(PriorConfig(), 0), begin_encoder(PriorConfig(width=8), 0)
    with torch.no_grad():
        first, second, last = (layer for layer in encoder.finder.layers if isinstance(layer, nn.Linear))
        for parameter in encoder.finder.parameters():
            parameter.zero_()
        own = slice(3 * VIEWS + 1, 3 * VIEWS + 4)  # four times the pixel's own density
        first.weight[0, own] = 1 / 3
        second.weight[0, 0] = 1
        last.weight[0, 0], last.bias[0] = -1, 0.5  # a mean density of 1/8, 225 levels
        for reader in (encoder.first, encoder.further):
            for parameter in reader.parameters():
                parameter.zero_()
            reader.opinion.bias[-1] = 9  # that this is H&E
    model.encoders.append(encoder)
    return model.eval().requires_grad_(False)


@pytest.fixture(scope="session")
def draw_model() -> Callable[..., BottleGAN]:
    """Draws small models with weights as after training, given the names of their styles."""

    def draw(names: Sequence[str], statistics: Literal["frozen", "instance"] = "frozen", std: float = 0.3) -> BottleGAN:
        random = torch.Generator().manual_seed(0)
        generator = GeneratorConfig(width=4, depth=1, mapping=3, statistics=statistics)
        model = build_model(ModelConfig(code_size=3, generator=generator), names, random)
        for parameter in model.parameters():
            nn.init.normal_(parameter, std=std, generator=random)
        assert isinstance(model, BottleGAN)
        return model

    return draw
