"""Charts of stain drift as plain SVG. Everything but data has the color of the page's text, so both themes work."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from bottlegan.imaging.files import Pixels

# Visible on light and dark pages, and distinguishable for the color-blind; the shapes differ as well.
CALM, ALARM = "#2f86d1", "#d9541e"
LEFT, RIGHT, TOP, BOTTOM = 48.0, 150.0, 14.0, 72.0
WIDE, HIGH = 960.0, 310.0
MOST_NAMES = 26
"""Most names under a chart. With more batches, only every second, third, ... is named."""


@dataclass(frozen=True)
class Mark:
    """A point of a chart, for a batch."""

    name: str
    value: float | None
    """None if it was not measured."""
    alarm: bool
    hollow: bool
    """Whether it belongs to the baseline."""


@dataclass(frozen=True)
class Level:
    """A line across a chart."""

    label: str
    value: float
    alarm: bool = False


def draw_chart(marks: Sequence[Mark], levels: Sequence[Level], label: str) -> Markup:
    """Return a line chart of the marks in order, with lines across it."""
    values = [mark.value for mark in marks if mark.value is not None]
    highest = max([*values, *(level.value for level in levels), 1e-3]) * 1.08
    step = choose_step(highest)
    across = (WIDE - LEFT - RIGHT) / max(1, len(marks) - 1)

    def x(index: int) -> str:
        return f"{LEFT + 12 + index * (across - 24 / max(1, len(marks) - 1)):.1f}"

    def y(value: float) -> str:
        return f"{HIGH - BOTTOM - (HIGH - TOP - BOTTOM) * value / highest:.1f}"

    parts = [_tick(y(i * step), f"{i * step:.4g}") for i in range(math.floor(highest / step) + 1)]
    parts += [_level(y(level.value), level) for level in levels]
    parts.append(_line([f"{x(i)},{y(mark.value)}" for i, mark in enumerate(marks) if mark.value is not None]))
    parts += [_mark(x(i), y(mark.value or 0), mark) for i, mark in enumerate(marks)]
    every = math.ceil(len(marks) / MOST_NAMES)
    parts += [_name(x(i), mark.name) for i, mark in enumerate(marks) if i % every == 0]
    return wrap_svg(WIDE, HIGH, label, parts)


def draw_strip(baseline: Pixels, batch: Pixels, label: str) -> Markup:
    """Return a row of color patches: the baseline's (H, W, 3) in the upper half, the batch's in the lower half."""
    side, half = 22.0, 20.0
    pairs = zip(baseline.reshape(-1, 3).tolist(), batch.reshape(-1, 3).tolist(), strict=True)
    parts = [
        Markup('<rect x="{}" y="{}" width="{}" height="{}" fill="rgb({},{},{})"/>').format(
            i * side, row * half, side, half, *color
        )
        for i, pair in enumerate(pairs)
        for row, color in enumerate(pair)
    ]
    return wrap_svg(side * (len(parts) // 2), 2 * half, label, parts)


def choose_step(highest: float) -> float:
    """Return a round distance between ticks, so that three to eight fit below the highest value."""
    power = 10 ** math.floor(math.log10(highest / 3))
    return max(factor * power for factor in (1, 2, 5) if factor * power <= highest / 3)


def wrap_svg(width: float, height: float, label: str, parts: Sequence[Markup]) -> Markup:
    """Return a picture of these parts, for a page."""
    opening = Markup(
        '<svg viewBox="0 0 {0} {1}" width="{0}" height="{1}" role="img" aria-label="{2}" '
        'font-family="inherit" font-size="12" fill="currentColor">'
    ).format(width, height, label)
    return opening + Markup("\n").join(parts) + Markup("</svg>")


def _tick(y: str, text: str) -> Markup:
    return Markup(
        '<line x1="{0}" x2="{1}" y1="{2}" y2="{2}" stroke="currentColor" stroke-opacity=".15"/>'
        '<text x="{3}" y="{2}" dy="4" text-anchor="end" fill-opacity=".7">{4}</text>'
    ).format(LEFT, WIDE - RIGHT, y, LEFT - 8, text)


def _level(y: str, level: Level) -> Markup:
    color, dashes = (ALARM, "7 5") if level.alarm else ("currentColor", "2 4")
    return Markup(
        '<line x1="{0}" x2="{1}" y1="{2}" y2="{2}" stroke="{3}" stroke-width="1.5" stroke-dasharray="{4}"/>'
        '<text x="{5}" y="{2}" dy="4" fill="{3}">{6} {7}</text>'
    ).format(LEFT, WIDE - RIGHT, y, color, dashes, WIDE - RIGHT + 6, level.label, f"{level.value:.3g}")


def _line(points: Sequence[str]) -> Markup:
    return Markup('<polyline points="{}" fill="none" stroke="{}" stroke-width="2" stroke-linejoin="round"/>').format(
        " ".join(points), CALM
    )


def _mark(x: str, y: str, mark: Mark) -> Markup:
    if mark.value is None:
        return Markup(
            '<path d="M-5,-5 5,5 M-5,5 5,-5" transform="translate({} {})" stroke="currentColor" stroke-width="2">'
            "<title>{}: refused</title></path>"
        ).format(x, y, mark.name)
    if mark.alarm:
        return Markup(
            '<rect x="-6" y="-6" width="12" height="12" transform="translate({} {}) rotate(45)" fill="{}">'
            "<title>{}: {}, out of control</title></rect>"
        ).format(x, y, ALARM, mark.name, f"{mark.value:.3g}")
    return Markup(
        '<circle cx="{}" cy="{}" r="5" stroke="{}" stroke-width="2" fill="{}"><title>{}: {}</title></circle>'
    ).format(x, y, CALM, "Canvas" if mark.hollow else CALM, mark.name, f"{mark.value:.3g}")


def _name(x: str, name: str) -> Markup:
    shown = name if len(name) <= 12 else name[:11] + "…"
    return Markup(
        '<text transform="translate({} {}) rotate(-35)" text-anchor="end" fill-opacity=".7">{}</text>'
    ).format(x, HIGH - BOTTOM + 16, shown)
