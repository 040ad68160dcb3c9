"""Images with labels: masks of class ids beside patches, or one class per patch.

Patches with one class each are in one folder per class, or all in one folder with `labels.csv`, which has the columns
`image` and `label`. Errors name the file and the remedy.
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
"""Class ids of pixels (H, W), IGNORED where they do not count, or the class id () of a whole patch."""
LABELS = "labels.csv"
COLUMNS = ("image", "label")


@dataclass(frozen=True)
class Labeled:
    """An image (H, W, 3) and its true classes."""

    image: Pixels
    truth: Truth


def read_labeled(folder: Path, task: Task) -> list[Labeled]:
    """Return all labeled images in a folder."""
    if task.kind == "classification":
        return [Labeled(read_image(file), np.array(k, np.uint8)) for file, k in list_labels(folder, task).items()]
    labeled = []
    for patch in list_patches(folder):
        if patch.mask is None:
            raise MissingError(f"{patch.image}: has no mask; put one beside it as {patch.name}{MASK_ENDING}.png")
        image = patch.read_image()
        labeled.append(Labeled(image, read_truth(patch.mask, image, task)))
    return labeled


def read_truth(path: Path, image: Pixels, task: Task) -> Truth:
    """Return the class ids (H, W) of the mask in `path`, which must have the size of `image`.

    With two classes and no ignored value, any value except 0 means the second class: masks of 0 and 255 are common.
    """
    values = read_values(path)
    check_fitting(path, values, image)
    distinct = np.unique(values)
    if task.count == 2 and task.ignore is None and len(distinct) <= 2 and (len(distinct) == 1 or distinct[0] == 0):
        return (values != 0).astype(np.uint8)
    unknown = [value for value in distinct.tolist() if value != task.ignore and value not in task.ids]
    if unknown:
        raise ImageError(
            f"{path}: holds {unknown[0]}, which is no class id; the classes are "
            f"{list_classes(task.classes, task.ids)}; correct the mask, or set phase2.task.ignore = {unknown[0]}"
        )
    truth = np.full(values.shape, IGNORED, np.uint8)
    for k, value in enumerate(task.ids):
        truth[values == value] = k
    return truth


def list_labels(folder: Path, task: Task) -> dict[Path, int]:
    """Return the class id of each image in a folder of patches with one class each."""
    if not folder.is_dir():
        raise MissingError(f"{folder}: there is no such folder; check the path")
    table = folder / LABELS
    return _read_table(table, task) if table.exists() else _list_folders(folder, task)


def _list_folders(folder: Path, task: Task) -> dict[Path, int]:
    inside = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    folders = [path for path in inside if path.is_dir()]
    if not folders:
        raise MissingError(
            f"{folder}: holds neither {LABELS} nor a folder for each class; the classes are {', '.join(task.classes)}"
        )
    loose = [path for path in inside if path.suffix.lower() in FORMATS and path.is_file()]
    if loose:
        raise InputError(f"{loose[0]}: lies beside the folders of the classes; move it into the folder of its class")
    classes_by_image: dict[Path, int] = {}
    for path in folders:
        classes_by_image |= {patch.image: _find_class(path.name, path, task) for patch in list_patches(path)}
    return classes_by_image


def _read_table(path: Path, task: Task) -> dict[Path, int]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path}: cannot be read as a table ({error}); save it as CSV in UTF-8") from None
    classes_by_image: dict[Path, int] = {}
    for number, row in enumerate(rows, start=2):
        name, label = (row.get(column) for column in COLUMNS)
        if not name or label is None:
            raise InputError(f"{path}: line {number} has no image or label; give the columns {' and '.join(COLUMNS)}")
        image = path.parent / name
        if Path(name).is_absolute() or ".." in Path(name).parts or not image.is_file():
            raise MissingError(f"{path}: line {number} names {name}, which is no image in {path.parent}; correct it")
        if image in classes_by_image:
            raise InputError(f"{path}: names {name} twice; remove one of the lines")
        classes_by_image[image] = _find_class(label, path, task)
    if not classes_by_image:
        raise MissingError(f"{path}: names no image; give a line of image and label for each")
    return classes_by_image


def _find_class(name: str, place: Path, task: Task) -> int:
    if name not in task.classes:
        raise InputError(
            f"{place}: there is no class called {name[:80]!r}; the classes are {', '.join(task.classes)}; rename it"
        )
    return task.classes.index(name)
