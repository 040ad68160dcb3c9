"""A network that was trained for seconds, and slides to try it on."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from bottlegan.core.task import Task
from bottlegan.data.labels import Labeled
from bottlegan.imaging.tensors import from_batch
from bottlegan.models.document import PRIOR
from bottlegan.models.network_file import Mode, NetworkDocument, digest_model, save_network
from bottlegan.models.networks import Built, NetworkConfig, build_network, exchanged
from bottlegan.models.weights import read_weights
from bottlegan.predict.predictor import Predictor
from bottlegan.simulation.styles import render
from bottlegan.simulation.tissue import draw_tissue
from bottlegan.stain.style import LABORATORIES, REFERENCE, Style
from bottlegan.training.task import TrainingConfig, labeled_loss

BINARY = Task(micrometers=1.0)
THREE = Task(classes=("glass", "stroma", "epithelium"), micrometers=1.0)
PATCHES = Task(kind="classification", classes=("little", "much epithelium"), micrometers=1.0)
CROP = 64


def stain(style: Style, task: Task, size: int = 128, count: int = 6) -> list[Labeled]:
    """The same patches of tissue in any style, labeled for any of the tasks."""
    found = []
    for index in range(count):
        tissue = draw_tissue(1, index, size)
        image = from_batch(render(tissue.concentration[None], style))[0]
        epithelium = tissue.epithelium.numpy()
        if task == THREE:
            truth = np.where(tissue.concentration.sum(0).numpy() < 0.12, 0, 1 + epithelium).astype(np.uint8)
        elif task == PATCHES:
            truth = np.array(epithelium.mean() > 0.2, np.uint8)
        else:
            truth = epithelium.astype(np.uint8)
        found.append(Labeled(image, truth))
    return found


def train(task: Task, config: NetworkConfig | None = None, steps: int = 80) -> tuple[Built, NetworkConfig]:
    config = config or NetworkConfig(arguments={"width": 8, "depth": 2})
    built = build_network(config, task, torch.Generator().manual_seed(0), crop=CROP)
    given, random = stain(REFERENCE, task), np.random.default_rng(0)
    optimizer = torch.optim.Adam(built.network.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        labeled_loss(built, given, TrainingConfig(batch=4, crop=CROP), lambda crops, _: crops, random).backward()
        optimizer.step()
    return built, config


def save(path: Path, built: Built, config: NetworkConfig, task: Task, mode: Mode = "normalize") -> Path:
    said = NetworkDocument(
        task=task,
        network=config,
        crop=CROP,
        mode=mode,
        model=digest_model(read_weights(PRIOR)) if mode == "normalize" else "",
        temperature=1.7,
        scores={},
        weights="0" * 64,
        record={},
    )
    save_network(path, exchanged(built.network), said)
    return path


@pytest.fixture(scope="session")
def networks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Files of trained networks: two classes, three classes, patches, and two classes without normalization."""
    folder = tmp_path_factory.mktemp("networks")
    found = {}
    for name, task in (("binary", BINARY), ("three", THREE), ("patches", PATCHES)):
        found[name] = save(folder / f"{name}.safetensors", *train(task), task)
    found["plain"] = save(folder / "plain.safetensors", *train(BINARY), BINARY, "plain")
    return found


@pytest.fixture
def predictor(networks: dict[str, Path]) -> Predictor:
    return Predictor.load(networks["binary"])


@pytest.fixture(scope="session")
def lab() -> list[Labeled]:
    """Images of a lab that stains in its own way."""
    return stain(LABORATORIES[5], BINARY)


@pytest.fixture(scope="session")
def large() -> np.ndarray:
    """An image (H, W, 3) of 480 x 640 px in the reference stain, with a corner of glass."""
    tissue = draw_tissue(9, 0, 640)
    image = from_batch(render(tissue.concentration[None], REFERENCE))[0][:480].copy()
    image[:120, :160] = 244
    return image


@pytest.fixture(scope="session")
def slide(large: np.ndarray, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, twice as large in pixels of half the size, as a pyramid without loss."""
    tifffile = pytest.importorskip("tifffile", reason="needs pip install 'bottlegan[slides]'")
    pytest.importorskip("openslide", reason="needs pip install 'bottlegan[slides]'")
    path = tmp_path_factory.mktemp("slides") / "slide.tiff"
    finest = large.repeat(2, axis=0).repeat(2, axis=1)
    form = {"tile": (128, 128), "photometric": "rgb", "metadata": None, "compression": "deflate"}
    with tifffile.TiffWriter(path) as file:
        file.write(finest, resolution=(2e4, 2e4), resolutionunit="CENTIMETER", **form)
        file.write(large, subfiletype=1, **form)
        file.write(large[::2, ::2], subfiletype=1, **form)
    return path


@pytest.fixture(scope="session")
def labeled() -> dict[str, list[Labeled]]:
    """Labeled images in the reference stain, by the network that they are for."""
    return {name: stain(REFERENCE, task) for name, task in (("three", THREE), ("patches", PATCHES), ("plain", BINARY))}


@pytest.fixture(scope="session")
def save_as() -> Callable[[Path, NetworkConfig, Task], Path]:
    """Writes an untrained network."""

    def write(path: Path, config: NetworkConfig, task: Task) -> Path:
        return save(path, build_network(config, task, torch.Generator(), crop=CROP), config, task, "plain")

    return write
