"""Scoring a folder of results against a folder of ground truth."""

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from torch import Tensor

from bottlegan.core.errors import ImageError, InputError
from bottlegan.core.progress import Json, Progress, Silent
from bottlegan.data.patches import Patch, list_patches
from bottlegan.imaging.files import Pixels
from bottlegan.imaging.tensors import to_batch
from bottlegan.metrics.features import FeatureExtractor
from bottlegan.metrics.fid import FrechetDistance, frechet_distance
from bottlegan.metrics.image import compare_images


@dataclass(frozen=True)
class Row:
    """The scores of one image."""

    name: str
    mse: float
    psnr: float
    ssim: float
    delta_e: float


@dataclass(frozen=True)
class Evaluation:
    """The scores of all images, and the distance between the two sets, which needs at least two images."""

    rows: tuple[Row, ...]
    fid: FrechetDistance | None

    def summary(self) -> dict[str, dict[str, float]]:
        """Return the mean, median and 90th percentile over the images of each score."""
        columns = {key: [getattr(row, key) for row in self.rows] for key in ("mse", "psnr", "ssim", "delta_e")}
        return {
            key: {"mean": float(np.mean(v)), "median": float(np.median(v)), "p90": float(np.quantile(v, 0.9))}
            for key, v in columns.items()
        }

    def to_json(self) -> Json:
        """Return everything in a form that JSON can hold."""
        return {
            "count": len(self.rows),
            "summary": {key: dict(values) for key, values in self.summary().items()},
            "fid": None if self.fid is None else asdict(self.fid),
            "images": [asdict(row) for row in self.rows],
        }


def evaluate_folders(
    output: Path, truth: Path, extractor: FeatureExtractor | None = None, progress: Progress | None = None
) -> Evaluation:
    """Compare the images in `output` with those of the same name in `truth`. Each image must have a counterpart."""
    progress = progress or Silent()
    pairs = pair_patches(output, truth)
    rows = [_compare(*pair) for pair in progress.track(pairs, "comparing images", len(pairs))]
    fid = None
    if len(pairs) > 1:
        outputs, truths = zip(*pairs, strict=True)
        fid = frechet_distance(
            _read(progress.track(outputs, "describing the output", len(pairs))),
            _read(progress.track(truths, "describing the truth", len(pairs))),
            extractor,
        )
    return Evaluation(tuple(rows), fid)


def pair_patches(output: Path, truth: Path) -> list[tuple[Patch, Patch]]:
    """Return the patches of both folders that have the same name."""
    outputs, truths = ({patch.name: patch for patch in list_patches(folder)} for folder in (output, truth))
    for here, there, folder, other in ((outputs, truths, output, truth), (truths, outputs, truth, output)):
        alone = sorted(here.keys() - there.keys())
        if alone:
            more = f" (and {len(alone) - 1} more)" if len(alone) > 1 else ""
            raise InputError(
                f"{folder / here[alone[0]].image.name}: has no counterpart in {other}{more}; add or remove it"
            )
    return [(outputs[name], truths[name]) for name in sorted(outputs)]


def _read(patches: Iterable[Patch]) -> Iterator[Tensor]:
    return (to_batch(patch.read_image()) for patch in patches)


def _compare(output: Patch, truth: Patch) -> Row:
    images = output.read_image(), truth.read_image()
    if images[0].shape != images[1].shape:
        sizes = [_size(levels) for levels in images]
        raise ImageError(f"{output.image}: is {sizes[0]} px, but its ground truth is {sizes[1]} px; use the same size")
    scores = compare_images(*(to_batch(levels) for levels in images))
    values = (scores.mse, scores.psnr, scores.ssim, scores.delta_e)
    return Row(output.name, *(value.item() for value in values))


def _size(levels: Pixels) -> str:
    return f"{levels.shape[1]} x {levels.shape[0]}"
