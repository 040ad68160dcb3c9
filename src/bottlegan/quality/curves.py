"""Curves over rounds as plain SVG: one panel per metric, several lines per panel, each line named at its end."""

from collections.abc import Mapping, Sequence

from markupsafe import Markup

from bottlegan.quality.drift_chart import choose_step, wrap_svg

Curve = Sequence[tuple[float, float]]
"""Points (round, value), by round."""

# Distinguishable for the color-blind, and readable on light and dark pages.
COLORS = ("#d9541e", "#2f86d1", "#2a9d6f", "#9467bd", "#b8860b", "#7f7f7f", "#c2407e", "#4b5d9b")
WIDE, HIGH = 360.0, 260.0
LEFT, RIGHT, TOP, BOTTOM = 44.0, 10.0, 26.0, 30.0
LEGEND = 20.0


def draw_curves(panels: Mapping[str, Mapping[str, Curve]], label: str) -> Markup:
    """Return panels side by side, each with a curve per name. A name has the same color in all panels."""
    names = list(dict.fromkeys(name for curves in panels.values() for name in curves))
    colors = {name: COLORS[i % len(COLORS)] for i, name in enumerate(names)}
    dashes = {name: "none" if i < len(COLORS) else "5 4" for i, name in enumerate(names)}
    parts = []
    for column, (title, curves) in enumerate(panels.items()):
        panel = _panel(title, curves, colors, dashes)
        parts.append(Markup('<g transform="translate({} 0)">{}</g>').format(column * WIDE, panel))
    for i, name in enumerate(names):
        parts.append(_key(name, colors[name], dashes[name], LEFT + (i % 3) * WIDE, HIGH + 16 + i // 3 * LEGEND))
    height = HIGH + 16 + (len(names) + 2) // 3 * LEGEND
    return wrap_svg(WIDE * len(panels), height, label, parts)


def _panel(title: str, curves: Mapping[str, Curve], colors: Mapping[str, str], dashes: Mapping[str, str]) -> Markup:
    points = [point for curve in curves.values() for point in curve]
    last = max((x for x, _ in points), default=1)
    highest = max([y for _, y in points] + [1e-3]) * 1.05

    def place(x: float, y: float) -> str:
        across = LEFT + (WIDE - LEFT - RIGHT) * x / last
        return f"{across:.1f},{HIGH - BOTTOM - (HIGH - TOP - BOTTOM) * y / highest:.1f}"

    step = choose_step(highest)
    parts = [Markup('<text x="{}" y="14" font-weight="600">{}</text>').format(LEFT, title)]
    parts += [_tick(place(0, i * step), f"{i * step:.4g}") for i in range(int(highest / step) + 1)]
    wide = choose_step(last)
    parts += [_round(place(i * wide, 0), f"{i * wide:.4g}") for i in range(int(last / wide) + 1)]
    for name, curve in curves.items():
        parts.append(
            Markup(
                '<polyline points="{}" fill="none" stroke="{}" stroke-width="2" stroke-dasharray="{}" '
                'stroke-linejoin="round"><title>{}</title></polyline>'
            ).format(" ".join(place(x, y) for x, y in curve), colors[name], dashes[name], name)
        )
    return Markup("").join(parts)


def _tick(place: str, text: str) -> Markup:
    x, y = place.split(",")
    return Markup(
        '<line x1="{0}" x2="{1}" y1="{2}" y2="{2}" stroke="currentColor" stroke-opacity=".15"/>'
        '<text x="{3}" y="{2}" dy="4" text-anchor="end" fill-opacity=".7">{4}</text>'
    ).format(x, WIDE - RIGHT, y, LEFT - 6, text)


def _round(place: str, text: str) -> Markup:
    x, y = place.split(",")
    return Markup('<text x="{}" y="{}" dy="16" text-anchor="middle" fill-opacity=".7">{}</text>').format(x, y, text)


def _key(name: str, color: str, dashes: str, x: float, y: float) -> Markup:
    return Markup(
        '<line x1="{0}" x2="{1}" y1="{2}" y2="{2}" stroke="{3}" stroke-width="3" stroke-dasharray="{4}"/>'
        '<text x="{5}" y="{2}" dy="4">{6}</text>'
    ).format(x, x + 24, y, color, dashes, x + 30, name)
