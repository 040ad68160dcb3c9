"""A federation on one machine, with all labs in one process: labs from a folder, or simulated labs.

Simulated labs are written as the files that a hospital would have, and then read like any other lab's.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from bottlegan.core.config import document, load, to_json, to_toml
from bottlegan.core.errors import ConfigError, InputError
from bottlegan.core.files import make_folder, write_text
from bottlegan.core.progress import Progress, Silent
from bottlegan.core.seeding import torch_stream
from bottlegan.data.partition import LabShare, PartitionSpec, draw_partition
from bottlegan.data.patches import list_patches
from bottlegan.federated.client.client import open_client
from bottlegan.federated.client.holdings import LAB_FILE, LabConfig, find_labs
from bottlegan.federated.protocol.exchange import LocalExchange
from bottlegan.federated.server.config import FederationConfig
from bottlegan.federated.server.federation import run_federation
from bottlegan.federated.server.rounds import State
from bottlegan.imaging.files import MASK_ENDING, Pixels, write_image
from bottlegan.imaging.tensors import from_batch
from bottlegan.simulation.styles import render
from bottlegan.simulation.tissue import Tissue, draw_tissue
from bottlegan.stain.style import LABS, PAPER, REFERENCE, WIDE, Style

VARIETIES = {"paper": PAPER, "labs": LABS, "wide": WIDE}


@document
class LabsConfig:
    """The labs of a simulation: labs from a folder, or `count` labs with procedural tissue in simulated styles."""

    folder: Path | None = None
    """Folder with a sub-folder per lab, each with a lab.toml, relative to this file. Without it, labs are simulated."""
    reference: Path | None = None
    """With `folder`: folder of the public reference set. Required unless phase1.method is code."""
    prior: Path | None = None
    """Model file for fitting styles, relative to this file; by default the shipped one."""
    count: int = 4
    train: int = 2
    """Number of training patches of each lab."""
    test: int = 2
    """Number of test patches of each lab."""
    size: int = 192
    """Side of a patch in pixels."""
    labeled: int = 2
    """Number of labs with labels."""
    windows: int = 6
    """Total number of labeled squares of patches."""
    window_size: int = 128
    reference_patches: int = 8
    """Number of patches in the public reference set."""
    variety: Literal["paper", "labs", "wide"] = "paper"
    """How widely styles differ: as in the paper, as between real labs, or more than both."""


@document
class SimulationConfig(FederationConfig):
    """A federation and its labs."""

    labs: LabsConfig = LabsConfig()

    @property
    def federation(self) -> FederationConfig:
        """The settings of the federation, without those of the labs."""
        return FederationConfig(**{part.name: getattr(self, part.name) for part in fields(FederationConfig)})


def prepare_labs(
    path: Path, config: SimulationConfig, out: Path, progress: Progress | None = None
) -> tuple[dict[str, Path], list[Pixels]]:
    """Return the lab.toml of each lab by name, and the reference set: beside `path`, or simulated below `out`."""
    labs_config = config.labs
    task = config.phase2.task
    if labs_config.folder is None and (task.kind, task.count, task.ignore) != ("segmentation", 2, None):
        raise ConfigError("simulated labs have masks of epithelium only; set labs.folder for any other task")
    if labs_config.folder is not None:
        public = None if labs_config.reference is None else path.parent / labs_config.reference
        labs = find_labs(path.parent / labs_config.folder)
    else:
        draw_labs(labs_config, config.seed, out, progress or Silent())
        labs, public = find_labs(out / "labs"), out / "reference"
    return labs, [] if public is None else [patch.read_image() for patch in list_patches(public)]


def run_local(
    labs: Mapping[str, Path],
    config: FederationConfig,
    folder: Path,
    *,
    reference_set: Sequence[Pixels] | None = None,
    prior: Path | None = None,
    progress: Progress | None = None,
) -> State:
    """Run a federation of labs in this process, one after the other."""
    exchange = LocalExchange({name: open_client(path).answer for name, path in labs.items()})
    return run_federation(exchange, config, folder, reference_set=reference_set, prior=prior, progress=progress)


def draw_labs(config: LabsConfig, seed: int, out: Path, progress: Progress) -> None:
    """Write simulated labs to `out`/labs and the reference set to `out`/reference, unless they exist."""
    drawn = out / "labs.json"
    if drawn.exists():
        if load(LabsConfig, drawn) != config:
            raise InputError(f"{out}: holds other labs; choose another folder, or remove it")
        return
    spec = PartitionSpec(
        clients=config.count,
        train=config.train,
        test=config.test,
        reference=config.reference_patches,
        labeled_clients=config.labeled,
        windows=config.windows,
        window_size=config.window_size,
        most_windows=max(1, config.windows),
        folds=1,
        variety=VARIETIES[config.variety],
    )
    if config.window_size > config.size:
        raise ConfigError(f"labs: a window of {config.window_size} px is larger than a patch of {config.size} px")
    needed = config.count * (config.train + config.test) + config.reference_patches
    names = [f"{index:04d}" for index in range(needed)]
    partition = draw_partition(dict.fromkeys(names, (config.size, config.size)), spec, seed, fold=0)
    tissues = {
        name: draw_tissue(seed, int(name), config.size) for name in progress.track(names, "drawing tissue", needed)
    }
    make_folder(out / "reference")
    for name in partition.reference:
        write_image(out / "reference" / f"{name}.png", stain(tissues[name], REFERENCE, seed, name))
    for client in partition.clients:
        write_lab(out / "labs" / client.name, client, tissues, seed)
    write_text(drawn, to_json(config))


def write_lab(folder: Path, client: LabShare, tissues: Mapping[str, Tissue], seed: int) -> None:
    """Write one lab: its images, labeled windows of them, test patches, and its lab.toml."""
    for part in ("images", "labeled", "test") if client.labeled else ("images", "test"):
        make_folder(folder / part)
    images = {name: stain(tissues[name], client.style, seed, name) for name in (*client.train, *client.test)}
    for name in client.train:
        write_image(folder / "images" / f"{name}.png", images[name])
    for row, window in enumerate(client.windows):
        inside = np.s_[window.top : window.top + window.size, window.left : window.left + window.size]
        mask = tissues[window.patch].epithelium.numpy()
        write_patch(folder / "labeled", f"{row:02d}", images[window.patch][inside], mask[inside])
    for name in client.test:
        write_patch(folder / "test", name, images[name], tissues[name].epithelium.numpy())
    lab = LabConfig(
        images=(Path("images"),),
        labeled=Path("labeled") if client.labeled else None,
        test=Path("test"),
        reference=Path("..", "..", "reference"),
    )
    write_text(folder / LAB_FILE, to_toml(lab))


def stain(tissue: Tissue, style: Style, seed: int, name: str) -> Pixels:
    """Render tissue in a style as a scanner would, uint8 (H, W, 3)."""
    return from_batch(render(tissue.concentration[None], style, torch_stream(seed, "noise", name)))[0]


def write_patch(folder: Path, name: str, image: Pixels, mask: NDArray[np.bool_]) -> None:
    """Write an image and its mask beside it."""
    write_image(folder / f"{name}.png", np.ascontiguousarray(image))
    write_image(folder / f"{name}{MASK_ENDING}.png", np.repeat(mask[..., None].astype(np.uint8) * 255, 3, axis=2))
