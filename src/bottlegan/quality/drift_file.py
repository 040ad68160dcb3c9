"""Reading `drift.json`, checked, to show again what `bottlegan drift` found."""

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
    """The range of a batch's distance to expect without drift."""

    center: float
    upper: float


@document
class BatchDocument:
    """A batch, and its distance from the baseline."""

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
    """The course of a lab's stain from batch to batch."""

    style: str
    compared_with: str
    baseline: tuple[str, ...]
    drifted: tuple[str, ...]
    limit: LimitDocument | None
    colors: Colors
    batches: tuple[BatchDocument, ...]


def read_drift(path: Path) -> Drift:
    """Return the content of a `drift.json` that `bottlegan drift` wrote."""
    document = load(DriftDocument, path)
    pictures = [document.colors, *(batch.colors for batch in document.batches)]
    if any(len(row) != STEPS for picture in pictures for row in (picture, *picture)):
        raise ConfigError(f"{path}: holds other colors than {STEPS} x {STEPS}; run bottlegan drift again")
    points = [
        Point(
            Batch(batch.batch, batch.images, batch.verdict, batch.reason, torch.tensor(batch.code)),
            batch.in_baseline,
            batch.code_distance,
            batch.delta_e,
            batch.out_of_control,
            np.array(batch.colors, np.uint8),
        )
        for batch in document.batches
    ]
    limit = None if document.limit is None else Limit(document.limit.center, document.limit.upper)
    return Drift(document.style, document.compared_with == KNOWN, points, limit, np.array(document.colors, np.uint8))
