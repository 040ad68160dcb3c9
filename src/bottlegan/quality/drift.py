"""Stain drift: whether a lab's stain changes, seen in the style codes of its successive batches.

The network is frozen, so a style is its code, and the stain has drifted as far as the code has. Two distances measure
how far a batch is from the baseline, which is a style that the model knows or the mean of the first batches:

- between codes: the root mean square of their difference. A prior's codes have unit variance in each component, so this
  norm weighs all components alike. Two unrelated styles are about 1.4 apart.
- between colors, as an eye sees them: the mean CIEDE2000 difference of fixed mixtures of both stains, restained with
  either code. About 1 is just visible side by side.

Tissue differs from batch to batch and moves a fitted code a little even if the stain does not change. The baseline
batches show how much, as in a Shewhart chart of individual values: see `find_limit`. Only the distance between codes
has a limit. On simulated labs it separates drift from tissue earlier than the colors do; a second limit would find
hardly more but double the false alarms. With 8 images per batch, the limit marks about 9 of 100 batches of a steady lab
with 3 baseline batches, 5 with the default of 5, and 1 with 8. Of batches with 30 % less eosin, it marks 97 or more.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor

from bottlegan.core.errors import InputError, MissingError
from bottlegan.core.progress import Progress, Silent
from bottlegan.data.lab import MOST_IMAGES, spread
from bottlegan.data.patches import Patch, list_patches
from bottlegan.imaging.files import Pixels
from bottlegan.imaging.tensors import from_batch
from bottlegan.metrics.image import delta_e
from bottlegan.models.files import to_weights
from bottlegan.models.paradigms import BottleGAN
from bottlegan.models.reference_stain import ReferenceStain
from bottlegan.onboarding.fit import onboard
from bottlegan.onboarding.verdict import Verdict
from bottlegan.stain.density import to_rgb

STEPS = 5
"""Number of concentrations per stain, from none to strong, in the mixtures whose colors are compared."""
JUST_VISIBLE = 1.0
"""CIEDE2000 difference that is just visible side by side."""
LEAST_BASELINE = 3
"""Fewest baseline batches for a limit: two moving ranges."""
THREE_SIGMA = 2.66
"""Three standard deviations in units of the mean moving range, which is 1.128 standard deviations on average."""


@dataclass(frozen=True)
class Batch:
    """A batch of images, and the style that was fitted to it."""

    name: str
    images: int
    verdict: Verdict
    reason: str
    code: Tensor
    """(K,)."""


@dataclass(frozen=True)
class Limit:
    """The range of a batch's distance to expect without drift."""

    center: float
    upper: float


@dataclass(frozen=True)
class Point:
    """The distance of a batch from the baseline. A refused batch has no style, hence no distances."""

    batch: Batch
    in_baseline: bool
    code_distance: float | None
    delta_e: float | None
    out_of_control: bool
    colors: Pixels
    """(STEPS, STEPS, 3): the batch's stain, hematoxylin growing to the right, eosin downward."""


@dataclass(frozen=True)
class Drift:
    """The course of a lab's stain from batch to batch."""

    style: str
    known: bool
    """Whether the baseline is the model's style of this name, rather than the mean of the baseline batches."""
    points: Sequence[Point]
    limit: Limit | None
    """Limit of the distance between codes; None if there are too few baseline batches."""
    colors: Pixels
    """(STEPS, STEPS, 3): the baseline's stain."""

    @property
    def baseline(self) -> list[str]:
        """The names of the baseline batches."""
        return [point.batch.name for point in self.points if point.in_baseline]

    @property
    def drifted(self) -> list[str]:
        """The names of the batches that are out of control."""
        return [point.batch.name for point in self.points if point.out_of_control]


def list_batches(folder: Path) -> dict[str, list[Patch]]:
    """Return the patches of each batch, one sub-folder each, in natural order of their names: 2026-2 before 2026-10."""
    if not folder.is_dir():
        raise MissingError(f"{folder}: there is no such folder; check the path")
    batches = [path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")]
    if not batches:
        raise MissingError(
            f"{folder}: holds no sub-folder; make one for each batch, named by its date, such as 2026-01"
        )
    ordered = sorted(batches, key=lambda path: (re.sub(r"\d+", lambda n: n[0].zfill(20), path.name), path.name))
    return {path.name: list_patches(path) for path in ordered}


def fit_batches(
    batches: Mapping[str, Sequence[Patch]], model: BottleGAN, progress: Progress | None = None
) -> list[Batch]:
    """Fit a style code to each batch."""
    fitted, weights = [], to_weights(model)
    for name, patches in (progress or Silent()).track(batches.items(), "fitting batches", len(batches)):
        # Images that `onboard` would not use are not read.
        style = onboard([patch.read_image() for patch in spread(patches, MOST_IMAGES)], weights)
        fitted.append(
            Batch(name, len(patches), style.diagnosis.verdict, style.diagnosis.reason, torch.from_numpy(style.code))
        )
    return fitted


@torch.no_grad()
def measure_drift(batches: Sequence[Batch], model: BottleGAN, style: str, baseline: int = LEAST_BASELINE) -> Drift:
    """Measure the distance of each batch from the baseline, and which batches are beyond the limit.

    Args:
        batches: Batches in the order of time.
        model: The model that they were fitted with. If it knows the style, batches are compared with that.
        style: Name of the style, or a label for it.
        baseline: Number of initial batches with a style that form the baseline. They give the limit and, unless the
            model knows the style, the style that batches are compared with.
    """
    usable = [batch for batch in batches if batch.verdict != Verdict.REFUSED]
    if not usable:
        raise InputError(f"no batch shows a style ({batches[0].name}: {batches[0].reason}); give images of H&E tissue")
    first = usable[:baseline]
    is_known = style in model.codes
    middle = model.codes[style] if is_known else mean_code(first)
    colors = mix_colors(model.reference)
    distances = {}
    for batch in usable:
        compared = middle if is_known else mean_code([other for other in first if other is not batch] or first)
        distances[batch.name] = measure_distances(model, colors, batch.code, compared)
    limit = find_limit([distances[batch.name][0] for batch in first])
    points = []
    for batch in batches:
        code, seen = distances.get(batch.name, (None, None))
        out = code is not None and limit is not None and code > limit.upper
        restained = to_picture(model.restain(colors, batch.code))
        points.append(Point(batch, any(batch is other for other in first), code, seen, out, restained))
    return Drift(style, is_known, points, limit, to_picture(model.restain(colors, middle)))


def mean_code(batches: Sequence[Batch]) -> Tensor:
    """Return the mean code (K,) of batches.

    A baseline batch is compared with the mean of the OTHERS. With its own code in the mean it would seem nearer than
    any later batch, and the limit would be too tight.
    """
    return torch.stack([batch.code for batch in batches]).mean(0)


def mix_colors(reference: ReferenceStain) -> Tensor:
    """Return mixtures of both reference stains as an image (1, 3, STEPS, STEPS), with hematoxylin increasing rightward.

    Concentrations increase as squares, because most tissue is pale and changes in dark colors are hard to see.
    """
    levels = torch.linspace(0, 1, STEPS).square()
    eosin, hematoxylin = torch.meshgrid(levels, levels, indexing="ij")
    concentration = torch.stack([hematoxylin, eosin], dim=-1)
    density = concentration @ reference.stains
    return to_rgb(density).permute(2, 0, 1)[None]


def measure_distances(model: BottleGAN, colors: Tensor, code: Tensor, compared: Tensor) -> tuple[float, float]:
    """Return the distance of two codes (K,), and the difference of colors (1, 3, H, W) restained with either."""
    apart = (code - compared).square().mean().sqrt().item()
    return apart, delta_e(model.restain(colors, code), model.restain(colors, compared)).item()


def find_limit(values: Sequence[float]) -> Limit | None:
    """Return the limit of a Shewhart chart of individual values, or None if there are too few values.

    It is their mean plus three standard deviations, estimated from the ranges between successive values. A trend within
    the baseline therefore does not widen the limit, as it would with the usual standard deviation.
    """
    if len(values) < LEAST_BASELINE:
        return None
    center = sum(values) / len(values)
    moving_range = sum(abs(after - before) for before, after in pairwise(values)) / (len(values) - 1)
    return Limit(center, center + THREE_SIGMA * moving_range)


def to_picture(images: Tensor) -> Pixels:
    """Return the first of images (N, 3, H, W) as RGB levels (H, W, 3)."""
    return from_batch(images[:1])[0]
