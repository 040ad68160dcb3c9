import os
from pathlib import Path

import hypothesis
import pytest
import torch

from bottlegan.data.peso import PesoPatches, open_peso_patches
from bottlegan.data.synthetic import draw_tissue
from bottlegan.stain.macenko import Reference, summarize_reference
from bottlegan.stain.simulate import REFERENCE, render

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
