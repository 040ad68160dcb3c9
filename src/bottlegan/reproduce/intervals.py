"""Means with confidence intervals, for tables of few runs."""

import math
from collections.abc import Sequence
from statistics import fmean, stdev

from scipy.stats import t as student

LEVEL = 0.95


def half_width(values: Sequence[float]) -> float:
    """Return half the width of the mean's 95 % interval, by Student's t; NaN for fewer than two values."""
    if len(values) < 2:
        return math.nan
    return float(student.ppf((1 + LEVEL) / 2, len(values) - 1)) * stdev(values) / math.sqrt(len(values))


def format_interval(values: Sequence[float], digits: int = 3) -> str:
    """Return the mean, with half the width of its interval if there is one; a dash without values."""
    if not values:
        return "-"
    mean = f"{fmean(values):.{digits}f}"
    return f"{mean} ± {half_width(values):.{digits}f}" if len(values) > 1 else mean


def format_difference(pairs: Sequence[tuple[float, float]], digits: int = 3) -> str:
    """Return the signed mean difference of pairs (first minus second), with half the width of its interval."""
    text = format_interval([ours - other for ours, other in pairs], digits)
    return text if text.startswith("-") else f"+{text}"
