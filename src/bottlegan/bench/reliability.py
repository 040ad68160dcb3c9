"""The reliability of onboarding's verdicts: expected and true error of simulated labs that were not used for tuning.

A lab is known by its first three patches. Its true error, in levels, is the mean of two root mean square errors over
all of its patches, shown or not: of normalizing them, and of restaining the truth. What is not H&E has no truth; it
has to be refused.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from markupsafe import Markup
from numpy.typing import NDArray
from scipy.stats import spearmanr

from bottlegan.core.errors import InputError
from bottlegan.core.files import write_text
from bottlegan.core.progress import Json, Progress, Silent
from bottlegan.imaging.files import Pixels
from bottlegan.imaging.tensors import to_batch
from bottlegan.metrics.image import mean_squared_error
from bottlegan.models.document import PRIOR
from bottlegan.models.files import to_weights
from bottlegan.models.paradigms import BottleGAN
from bottlegan.models.weights import ModelWeights
from bottlegan.normalize.normalizer import Normalizer
from bottlegan.onboarding.fit import onboard
from bottlegan.onboarding.verdict import GOOD_ERROR, Verdict
from bottlegan.quality.drift_chart import ALARM, CALM, choose_step, wrap_svg
from bottlegan.reproduce.table2_files import find_commit
from bottlegan.simulation.lab import SimulatedLab, draw_labs

SEED = 2025
"""Seed of the labs; no other part of the project uses it."""
LABS = 400
BATCH = 50
"""Number of labs that show parts of the same tissues."""
SHOWN = 3
"""Number of patches for onboarding a lab."""
GROUPS = 10
"""Number of groups of labs by expected error: deciles."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class JudgedLab:
    """Onboarding's verdict on a lab, and the truth."""

    is_he: bool
    verdict: Verdict
    expected: float
    """Expected error in levels of 255."""
    true: float
    """True error in levels of 255 if the style is used whatever the verdict; NaN if the lab is not H&E."""


def bench_reliability(labs: int = LABS, progress: Progress | None = None) -> dict[str, Json]:
    """Return how expected and true errors of labs agree, and how reliable the verdicts are."""
    if labs < 1:
        raise InputError(f"expected at least one lab, got {labs}; give a larger number")
    judged = judge_labs(BottleGAN.load(PRIOR), labs, SEED, progress)
    return {
        **summarize(judged),
        "threads": torch.get_num_threads(),
        "load average": os.getloadavg()[0],
        "commit": find_commit(),
    }


def judge_labs(model: BottleGAN, count: int, seed: int, progress: Progress | None = None) -> list[JudgedLab]:
    """Onboard simulated labs of a seed, and measure the errors."""
    weights = to_weights(model)
    tracked = (progress or Silent()).track(_draw(count, seed), "expected and true errors", count)
    return [judge_lab(lab, weights) for lab in tracked]


def _draw(count: int, seed: int) -> Iterator[SimulatedLab]:
    for batch, first in enumerate(range(0, count, BATCH)):
        yield from draw_labs(seed, batch, min(BATCH, count - first))


def judge_lab(lab: SimulatedLab, model: ModelWeights) -> JudgedLab:
    """Onboard one lab, and measure the error."""
    fitted = onboard(lab.images[:SHOWN], model)
    true = np.nan
    if lab.is_he:
        normalizer = Normalizer(model, fitted.code, diagnosis=fitted.diagnosis, forced=True)
        true = measure_error(normalizer, lab.images, lab.truth)
    return JudgedLab(lab.is_he, fitted.diagnosis.verdict, fitted.diagnosis.expected_error, true)


def measure_error(normalizer: Normalizer, images: Sequence[Pixels], truth: Sequence[Pixels]) -> float:
    """Return the mean of the root mean square errors of normalizing images and of restaining the truth, in levels."""
    styled, reference = (torch.cat([to_batch(image) for image in stack]) for stack in (images, truth))
    ways = ((normalizer(styled), reference), (normalizer.restain(reference), styled))
    return float(np.mean([255 * mean_squared_error(output, wanted).mean().sqrt().item() for output, wanted in ways]))


def summarize(judged: Sequence[JudgedLab]) -> dict[str, Json]:
    """Return all figures of these labs."""
    stained = [lab for lab in judged if lab.is_he]
    others = [lab for lab in judged if not lab.is_he]
    expected, true = (np.array([getattr(lab, name) for lab in stained]) for name in ("expected", "true"))
    return {
        "H&E labs": len(stained),
        "other labs": len(others),
        "rank correlation": correlate_ranks(expected, true),
        "factor between expected and true": measure_factor(expected, true),
        "deciles": list[Json](group_by_expected(expected, true)),
        "good below": GOOD_ERROR,
        "verdicts": {verdict.value: describe_verdict(verdict, stained) for verdict in Verdict},
        "H&E labs refused": sum(lab.verdict == Verdict.REFUSED for lab in stained),
        "other labs not refused": sum(lab.verdict != Verdict.REFUSED for lab in others),
    }


def correlate_ranks(expected: Floats, true: Floats) -> float | None:
    """Return Spearman's rank correlation of two series (N,); None if either does not vary."""
    if len(expected) < 2 or np.ptp(expected) == 0 or np.ptp(true) == 0:
        return None
    return float(spearmanr(expected, true).statistic)


def measure_factor(expected: Floats, true: Floats) -> float | None:
    """Return the median factor, in either direction, between the errors (N,). 1 is perfect; ranks cannot show it."""
    return float(np.exp(np.median(np.abs(np.log(expected / true))))) if len(true) else None


def group_by_expected(expected: Floats, true: Floats) -> list[dict[str, Json]]:
    """Return means of both errors (N,), and percentiles of the true one, in groups of similar expected error."""
    groups = np.array_split(np.argsort(expected, kind="stable"), GROUPS)
    return [
        {
            "labs": len(rows),
            "expected": float(expected[rows].mean()),
            "true": float(true[rows].mean()),
            "true, 10th percentile": float(np.quantile(true[rows], 0.1)),
            "true, 90th percentile": float(np.quantile(true[rows], 0.9)),
        }
        for rows in groups
        if len(rows)
    ]


def describe_verdict(verdict: Verdict, stained: Sequence[JudgedLab]) -> dict[str, Json]:
    """Return the frequency of a verdict among H&E labs, and the errors of those labs."""
    true = [lab.true for lab in stained if lab.verdict == verdict]
    return {
        "share": len(true) / len(stained) if stained else None,
        "true error, median": float(np.median(true)) if true else None,
        "true error, 90th percentile": float(np.quantile(true, 0.9)) if true else None,
    }


WIDE = 480.0
HIGH = 440.0
LEFT, RIGHT, TOP, BOTTOM = 56.0, 20.0, 48.0, 50.0
STYLE = """<style>
svg { font-family: sans-serif; color: #1f2328 } .page { fill: #ffffff }
@media (prefers-color-scheme: dark) { svg { color: #e6edf3 } .page { fill: #0d1117 } }
</style>"""
"""A standalone file contains its own page background, so that its text is readable everywhere."""


def draw_reliability(figures: dict[str, Any], path: Path) -> None:
    """Write an SVG of the true against the expected error by deciles, with the diagonal and the line of the verdict."""
    deciles, line = figures["deciles"], figures["good below"]
    if not deciles:
        raise InputError("there is no H&E lab to draw; measure more labs")
    highest = 1.05 * max([line, *(group[key] for group in deciles for key in ("expected", "true, 90th percentile"))])
    step = choose_step(highest)

    def x(value: float) -> str:
        return f"{LEFT + (WIDE - LEFT - RIGHT) * value / highest:.1f}"

    def y(value: float) -> str:
        return f"{HIGH - BOTTOM - (HIGH - TOP - BOTTOM) * value / highest:.1f}"

    ticks = [i * step for i in range(int(highest / step) + 1)]
    parts = [
        Markup(STYLE),  # noqa: S704 - a constant
        Markup('<rect class="page" width="{}" height="{}"/>').format(WIDE, HIGH),
        *(_tick(x(value), y(value), f"{value:.4g}") for value in ticks),
        *_titles(figures),
        _diagonal(x(0), y(0), x(highest), y(highest)),
        _limit(x(line), f"good below {line:.4g} levels"),
        Markup('<polyline points="{}" fill="none" stroke="{}" stroke-width="2"/>').format(
            " ".join(f"{x(group['expected'])},{y(group['true'])}" for group in deciles), CALM
        ),
    ]
    for group in deciles:
        whisker = [y(group[f"true, {percent}th percentile"]) for percent in (10, 90)]
        parts.append(_mark(x(group["expected"]), y(group["true"]), whisker, group))
    drawn = str(wrap_svg(WIDE, HIGH, "True against expected error, by deciles of simulated labs", parts))
    # Inside a page a browser recognizes <svg>; a standalone file needs the namespace.
    write_text(path, drawn.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1) + "\n")


def _tick(x: str, y: str, text: str) -> Markup:
    return Markup(
        '<path d="M{0},{2} V{3} M{4},{1} H{5}" stroke="currentColor" stroke-opacity=".12"/>'
        '<text x="{0}" y="{3}" dy="16" text-anchor="middle" fill-opacity=".75">{6}</text>'
        '<text x="{4}" y="{1}" dx="-6" dy="4" text-anchor="end" fill-opacity=".75">{6}</text>'
    ).format(x, y, TOP, HIGH - BOTTOM, LEFT, WIDE - RIGHT, text)


def _titles(figures: dict[str, Any]) -> list[Markup]:
    rank = figures["rank correlation"]
    correlation = "" if rank is None else f", rank correlation {rank:.2f}"
    text = f"{figures['H&E labs']} simulated labs{correlation}"
    return [
        Markup('<text x="{}" y="20" font-weight="600">{}</text>').format(LEFT, text),
        Markup('<text x="{}" y="36" fill-opacity=".75">Means of deciles; bars: 10th to 90th percentile</text>').format(
            LEFT
        ),
        Markup('<text x="{}" y="{}" text-anchor="middle">expected error, levels</text>').format(
            (LEFT + WIDE - RIGHT) / 2, HIGH - 12
        ),
        Markup('<text transform="translate(16 {}) rotate(-90)" text-anchor="middle">true error, levels</text>').format(
            (TOP + HIGH - BOTTOM) / 2
        ),
    ]


def _diagonal(left: str, low: str, right: str, high: str) -> Markup:
    return Markup(
        '<line class="diagonal" x1="{}" y1="{}" x2="{}" y2="{}" stroke="currentColor" stroke-opacity=".6" '
        'stroke-dasharray="2 4"/>'
    ).format(left, low, right, high)


def _limit(x: str, text: str) -> Markup:
    # On the side of the line with more room.
    shift, anchor = (-6, "end") if float(x) > WIDE / 2 else (6, "start")
    return Markup(
        '<line class="limit" x1="{0}" x2="{0}" y1="{1}" y2="{2}" stroke="{3}" stroke-width="1.5" '
        'stroke-dasharray="7 5"/><text x="{0}" y="{1}" dx="{4}" dy="12" text-anchor="{5}" fill="{3}">{6}</text>'
    ).format(x, TOP, HIGH - BOTTOM, ALARM, shift, anchor, text)


def _mark(x: str, y: str, whisker: Sequence[str], group: dict[str, Any]) -> Markup:
    return Markup(
        '<line x1="{0}" x2="{0}" y1="{2}" y2="{3}" stroke="{4}" stroke-width="2" stroke-opacity=".45"/>'
        '<circle cx="{0}" cy="{1}" r="4.5" fill="{4}"><title>{5} labs: expected {6}, true {7}</title></circle>'
    ).format(x, y, *whisker, CALM, group["labs"], f"{group['expected']:.1f}", f"{group['true']:.1f}")
