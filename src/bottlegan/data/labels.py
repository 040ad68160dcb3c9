"""Images with labels: masks of class ids beside patches, or whole patches of one class.

Patches of one class each are in a folder a class, or all in one folder with `labels.csv`, which has the columns `image`
and `label`. What is wrong is told with the file and what to do.
"""

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bottlegan.core.errors import ImageError, InputError, MissingError
from bottlegan.core.task import IGNORED, Task, list_classes
from bottlegan.data.patches import check_fitting, list_patches
from bottlegan.imaging.files import FORMATS, MASK_ENDING, Pixels, read_image, read_values

Truth = NDArray[np.uint8]
"""Class ids of pixels (H, W), IGNORED where they do not count; or () of a whole patch."""
LABELS = "labels.csv"
COLUMNS = ("image", "label")


@dataclass(frozen=True)
class Labeled:
    """An image (H, W, 3), and what is true of it."""

    image: Pixels
    truth: Truth


def read_labeled(folder: Path, task: Task) -> list[Labeled]:
    """Return all labeled images in a folder."""
    if task.kind == "classification":
        return [Labeled(read_image(file), np.array(k, np.uint8)) for file, k in list_labels(folder, task).items()]
    found = []
    for patch in list_patches(folder):
        if patch.mask is None:
            raise MissingError(f"{patch.image}: has no mask; put one beside it as {patch.name}{MASK_ENDING}.png")
        image = patch.read_image()
        found.append(Labeled(image, read_truth(patch.mask, image, task)))
    return found


def read_truth(path: Path, image: Pixels, task: Task) -> Truth:
    """Return the class ids (H, W) of the mask in `path`, which must be of the size of `image`.

    Of two classes without a value that is ignored, any value but 0 stands for the second: masks of 0 and 255 are usual.
    """
    values = read_values(path)
    check_fitting(path, values, image)
    found = np.unique(values)
    if task.count == 2 and task.ignore is None and len(found) <= 2 and (len(found) == 1 or found[0] == 0):
        return (values != 0).astype(np.uint8)
    unknown = [value for value in found.tolist() if value != task.ignore and value not in task.ids]
    if unknown:
        raise ImageError(
            f"{path}: holds the class id {unknown[0]}, which no class has; the classes are "
            f"{list_classes(task.classes, task.ids)}; correct the mask, or set phase2.task.ignore = {unknown[0]}"
        )
    truth = np.full(values.shape, IGNORED, np.uint8)
    for k, value in enumerate(task.ids):
        truth[values == value] = k
    return truth


def list_labels(folder: Path, task: Task) -> dict[Path, int]:
    """Return the class id of each image in a folder of patches of one class each."""
    if not folder.is_dir():
        raise MissingError(f"{folder}: there is no such folder; check the path")
    table = folder / LABELS
    return _read_table(table, task) if table.exists() else _list_folders(folder, task)


def _list_folders(folder: Path, task: Task) -> dict[Path, int]:
    inside = sorted(each for each in folder.iterdir() if not each.name.startswith("."))
    folders = [each for each in inside if each.is_dir()]
    if not folders:
        raise MissingError(
            f"{folder}: holds neither {LABELS} nor a folder for each class; the classes are {', '.join(task.classes)}"
        )
    loose = [each for each in inside if each.suffix.lower() in FORMATS and each.is_file()]
    if loose:
        raise InputError(f"{loose[0]}: lies beside the folders of the classes; move it into that of its class")
    found: dict[Path, int] = {}
    for each in folders:
        found |= {patch.image: _find_class(each.name, each, task) for patch in list_patches(each)}
    return found


def _read_table(path: Path, task: Task) -> dict[Path, int]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path}: cannot be read as a table ({error}); save it as CSV in UTF-8") from None
    found: dict[Path, int] = {}
    for number, row in enumerate(rows, start=2):
        name, label = (row.get(column) for column in COLUMNS)
        if not name or label is None:
            raise InputError(f"{path}: line {number} has no image or label; give the columns {' and '.join(COLUMNS)}")
        image = path.parent / name
        if Path(name).is_absolute() or ".." in Path(name).parts or not image.is_file():
            raise MissingError(f"{path}: line {number} names {name}, which is no image in {path.parent}; correct it")
        if image in found:
            raise InputError(f"{path}: names {name} twice; remove one of the lines")
        found[image] = _find_class(label, path, task)
    if not found:
        raise MissingError(f"{path}: names no image; give a line of image and label for each")
    return found


def _find_class(name: str, place: Path, task: Task) -> int:
    if name not in task.classes:
        raise InputError(
            f"{place}: there is no class called {name[:80]!r}; the classes are {', '.join(task.classes)}; rename it"
        )
    return task.classes.index(name)
