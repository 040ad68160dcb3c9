"""A lab's holdings: its images and masks, in the folders that its lab.toml names, or in memory."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bottlegan.core.config import document
from bottlegan.core.errors import MissingError
from bottlegan.core.task import Task
from bottlegan.data.lab import read_lab
from bottlegan.data.labels import Labeled, read_labeled
from bottlegan.data.patches import list_patches
from bottlegan.imaging.files import Pixels

LAB_FILE = "lab.toml"


@document
class Demands:
    """A lab's own conditions, whatever the server asks for."""

    secure: bool = False
    """Take part only if the server learns sums over several labs' updates, and never this lab's own update."""
    epsilon: float | None = None
    """Take part only until this privacy budget is spent, counted over all federations of this lab."""
    delta: float = 1e-5
    """The delta to which epsilon refers."""


@document
class LabConfig:
    """The locations of a lab's files. Paths are relative to the folder of this file, which never leaves the lab."""

    images: tuple[Path, ...]
    """Image files, folders or slides, for the lab's style and FixMatch. At most 32 images are read."""
    labeled: Path | None = None
    """Folder of training patches: with masks beside them, in one folder per class, or with a labels.csv."""
    test: Path | None = None
    """Folder of test patches, likewise."""
    classes: tuple[str, ...] | None = None
    """Names of the classes by id, if the lab wants to verify that the federation's are the same."""
    factories: tuple[str, ...] = ()
    """Custom networks that may be built here, as `package.module:function`. Their code runs on this machine."""
    privacy: Demands = Demands()
    reference: Path | None = None
    """Folder with the public reference set. Required unless phase1.method is code."""
    state: Path = Path("state")
    """Folder for the lab's state between requests."""


@dataclass(frozen=True)
class Holdings:
    """A lab's data, read on demand."""

    images: Callable[[], Sequence[Pixels]]
    """Images of the lab, labeled or not."""
    labeled: Callable[[Task], Sequence[Labeled]]
    """Images to train on."""
    test: Callable[[Task], Sequence[Labeled]]
    """Images to score on."""
    reference_set: Callable[[], Sequence[Pixels] | None]
    """The public reference set, if the lab has a copy."""
    classes: tuple[str, ...] | None = None
    """Names of the labels' classes, if the lab states them."""
    factories: tuple[str, ...] = ()
    """Networks that may be built here, besides those of this package."""
    demands: Demands = field(default_factory=Demands)
    """The lab's conditions for taking part."""


def open_holdings(config: LabConfig, folder: Path) -> Holdings:
    """Return the holdings of a lab whose configuration has paths relative to `folder`."""
    return Holdings(
        images=lambda: read_lab([folder / source for source in config.images]),
        labeled=lambda task: [] if config.labeled is None else read_labeled(folder / config.labeled, task),
        test=lambda task: [] if config.test is None else read_labeled(folder / config.test, task),
        reference_set=lambda: read_reference_set(folder, config.reference),
        classes=config.classes,
        factories=config.factories,
        demands=config.privacy,
    )


def hold(
    images: Sequence[Pixels],
    labeled: Sequence[Labeled],
    test: Sequence[Labeled],
    reference_set: Sequence[Pixels] | None = None,
) -> Holdings:
    """Return the holdings of a lab whose images are in memory."""
    return Holdings(lambda: images, lambda _: labeled, lambda _: test, lambda: reference_set)


def read_reference_set(folder: Path, below: Path | None) -> list[Pixels] | None:
    """Return the images of the public reference set in a sub-folder, if one is given."""
    return None if below is None else [patch.read_image() for patch in list_patches(folder / below)]


def find_labs(folder: Path) -> dict[str, Path]:
    """Return the lab.toml of each lab in a folder, by the name of the lab's sub-folder."""
    if not folder.is_dir():
        raise MissingError(f"{folder}: there is no such folder; check the path")
    labs = {path.parent.name: path for path in sorted(folder.glob(f"*/{LAB_FILE}"))}
    if not labs:
        raise MissingError(f"{folder}: holds no lab; give each a sub-folder with a {LAB_FILE}")
    return labs
