"""Images and folders of images: masks as PNG, or a table of classes."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bottlegan.core.errors import ImageError, InputError
from bottlegan.core.files import check_apart, make_folder
from bottlegan.core.progress import Progress, Silent
from bottlegan.data.patches import list_patches
from bottlegan.imaging.files import read_image, write_values
from bottlegan.predict.outlines import count_pixels, list_colors
from bottlegan.predict.predictor import Prediction, Predictor
from bottlegan.predict.tables import name_maps, write_areas, write_scores

AREAS, SCORES = "areas.csv", "scores.csv"


@dataclass(frozen=True)
class ImagePrediction:
    """The result for images."""

    files: list[Path]
    """The files that were written."""
    counts: dict[str, dict[str, int]]
    """By image name: the number of pixels of each class or, for patches, 1 for their class."""
    failures: list[ImageError]
    """Why some images of a folder could not be read."""


def predict_images(
    predictor: Predictor,
    source: Path,
    target: Path,
    *,
    probabilities: bool = False,
    progress: Progress | None = None,
) -> ImagePrediction:
    """Predict an image, or all images of a folder. Masks beside them are ignored.

    Args:
        predictor: A predictor with the normalizer of the lab, if it needs one.
        source: An image file, or a folder.
        target: For an image, a mask (.png) or, if patches are classified, a table (.csv). For a folder, a folder.
        probabilities: Whether to write a gray image of the probability of each class except the first.
        progress: Receives progress.
    """
    check_output(predictor, source, target)
    images = [patch.image for patch in list_patches(source)] if source.is_dir() else [source]
    tells_pixels, names = predictor.task.kind == "segmentation", predictor.task.classes
    files: list[Path] = []
    counts: dict[str, dict[str, int]] = {}
    scores: list[tuple[Sequence[str], Sequence[float]]] = []
    failures: list[ImageError] = []
    for image in (progress or Silent()).track(images, "predicting", len(images)):
        try:
            pixels = read_image(image)
        except ImageError as error:
            if not source.is_dir():
                raise
            failures.append(error)
            continue
        prediction = predictor(pixels)
        counts[image.name] = dict(zip(names, count_pixels(prediction.classes, len(names)).tolist(), strict=True))
        if source.is_dir():
            make_folder(target)
        if tells_pixels:
            mask = target / f"{image.stem}.png" if source.is_dir() else target
            files += write_masks(mask, prediction, probabilities)
        else:
            scores.append(([image.name], prediction.probabilities.tolist()))
    if not counts:
        raise failures[0]
    table = target / (AREAS if tells_pixels else SCORES) if source.is_dir() else target.with_suffix(".csv")
    if tells_pixels:
        side = predictor.task.micrometers
        write_areas(table, counts, None if side is None else (side, side))
    else:
        write_scores(table, names, scores)
    return ImagePrediction([*files, table], counts, failures)


def check_output(predictor: Predictor, source: Path, target: Path) -> None:
    """Refuse an output path that does not match the predictions, before any work is done."""
    check_apart([target], [source])
    ending = ".png" if predictor.task.kind == "segmentation" else ".csv"
    if not source.is_dir() and (target.suffix.lower() != ending or target.is_dir()):
        raise InputError(f"{target}: the prediction of one image is a {ending} file; end the name in {ending}")


def write_masks(path: Path, prediction: Prediction, probabilities: bool) -> list[Path]:
    """Write the classes of an image to `path` and, if requested, the probabilities of all but the first beside it."""
    write_values(path, prediction.classes, list_colors(len(prediction.names)))
    maps = name_maps(path, prediction.names[1:]) if probabilities else []
    for file, share in zip(maps, prediction.probabilities[1:], strict=False):
        write_values(file, (255 * share + 0.5).astype(np.uint8))
    return [path, *maps]
