"""Reading `drift.json` back, checked: all that `bottlegan drift` found out, to be shown again."""

from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from pydantic import Field

from bottlegan.core.config import document, load
from bottlegan.core.errors import ConfigError
from bottlegan.onboarding.verdict import Verdict
from bottlegan.quality.drift import STEPS, Batch, Drift, Limit, Point
from bottlegan.quality.drift_report import KNOWN

Level = Annotated[int, Field(ge=0, le=255)]
Colors = tuple[tuple[tuple[Level, Level, Level], ...], ...]


@document
class LimitDocument:
    """What to expect of a batch's distance while nothing drifts."""

    center: float
    upper: float


@document
class BatchDocument:
    """A batch, and how far it is from the baseline."""

    batch: str
    images: int
    verdict: Verdict
    reason: str
    in_baseline: bool
    code_distance: float | None
    delta_e: float | None
    out_of_control: bool
    code: tuple[float, ...]
    colors: Colors


@document
class DriftDocument:
    """How a lab's stain went from batch to batch."""

    style: str
    compared_with: str
    baseline: tuple[str, ...]
    drifted: tuple[str, ...]
    limit: LimitDocument | None
    colors: Colors
    batches: tuple[BatchDocument, ...]


def read_drift(path: Path) -> Drift:
    """Return what `bottlegan drift` wrote to `drift.json`."""
    said = load(DriftDocument, path)
    pictures = [said.colors, *(each.colors for each in said.batches)]
    if any(len(row) != STEPS for picture in pictures for row in (picture, *picture)):
        raise ConfigError(f"{path}: holds other colors than {STEPS} x {STEPS}; run bottlegan drift again")
    points = [
        Point(
            Batch(each.batch, each.images, each.verdict, each.reason, torch.tensor(each.code)),
            each.in_baseline,
            each.code_distance,
            each.delta_e,
            each.out_of_control,
            np.array(each.colors, np.uint8),
        )
        for each in said.batches
    ]
    limit = None if said.limit is None else Limit(said.limit.center, said.limit.upper)
    return Drift(said.style, said.compared_with == KNOWN, points, limit, np.array(said.colors, np.uint8))
