import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bottlegan.core.progress import Silent
from bottlegan.data.labels import Labeled
from bottlegan.federated.client.holdings import find_labs
from bottlegan.federated.protocol.phase2 import Phase2Config
from bottlegan.federated.simulation import LabsConfig, draw_labs
from bottlegan.imaging.tensors import from_batch
from bottlegan.models.document import PRIOR
from bottlegan.models.files import to_weights
from bottlegan.models.networks import NetworkConfig
from bottlegan.models.paradigms import BottleGAN
from bottlegan.onboarding.fit import onboard
from bottlegan.simulation.styles import render
from bottlegan.simulation.tissue import draw_tissue
from bottlegan.stain.style import LABORATORIES, REFERENCE, Style
from bottlegan.training.fixmatch import FixMatchConfig
from bottlegan.training.task import TrainingConfig

TISSUES = [draw_tissue(5, index, 96) for index in range(4)]
DARK, PALE = LABORATORIES[6], LABORATORIES[7]


def stained(style: Style) -> list[Labeled]:
    """The same four patches in any style."""
    return [
        Labeled(from_batch(render(tissue.concentration[None], style))[0], tissue.epithelium.byte().numpy())
        for tissue in TISSUES
    ]


@pytest.fixture(scope="session")
def dark() -> list[Labeled]:
    return stained(DARK)


@pytest.fixture(scope="session")
def pale() -> list[Labeled]:
    return stained(PALE)


@pytest.fixture(scope="session")
def truth() -> list[Labeled]:
    return stained(REFERENCE)


@pytest.fixture(scope="session")
def styles(dark: list[Labeled], pale: list[Labeled]) -> BottleGAN:
    """The shipped prior, onboarded with two opposite labs."""
    model = BottleGAN.load(PRIOR)
    for name, images in (("dark", dark), ("pale", pale)):
        model.codes.add(name, onboard([each.image for each in images], to_weights(model)).code)
    return model


@pytest.fixture(scope="session")
def tiny() -> Phase2Config:
    """Rounds that take milliseconds."""
    return Phase2Config(
        mode="plain",
        rounds=4,
        network=NetworkConfig(arguments={"width": 4, "depth": 2, "stride": 4}),
        training=TrainingConfig(steps=1, batch=2, crop=32, learning_rate=0.01),
    )


@pytest.fixture(scope="session")
def sure(tiny: Phase2Config) -> Phase2Config:
    """The same with FixMatch, and a threshold that every prediction passes."""
    return replace(tiny, fixmatch=FixMatchConfig(enabled=True, warm_up=0.0, threshold=0.5, weight=1.0))


@pytest.fixture(autouse=True)
def _no_global_generator() -> None:
    torch.manual_seed(123)


@pytest.fixture(scope="session")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three labs and a reference set in files; tests that change them must work on a copy."""
    out = tmp_path_factory.mktemp("drawn")
    config = LabsConfig(
        count=3, train=2, test=1, size=96, labeled=2, windows=3, window_size=64, reference_patches=3, variety="labs"
    )
    draw_labs(config, 1, out, Silent())
    return out


@pytest.fixture
def labs(drawn: Path, tmp_path: Path) -> dict[str, Path]:
    """The lab.toml of each of the three labs, by name."""
    for part in ("labs", "reference"):
        shutil.copytree(drawn / part, tmp_path / part)
    return find_labs(tmp_path / "labs")
