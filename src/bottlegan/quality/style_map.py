"""Pictures of styles: a swatch of each stain, and a map of how similar the styles are."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from bottlegan.imaging.files import Pixels
from bottlegan.quality.drift_chart import ALARM, choose_step, wrap_svg

CELL = 8.0
"""Side of a color cell in a swatch."""
WIDE, HIGH, EDGE = 960.0, 520.0, 60.0
SMALLER = 0.8
"""Size of swatches on the map."""
NEGLIGIBLE = 1e-9
MOST_NAMES = 40
"""Most styles to name on the map. With more, the page shows a name on hovering."""


@dataclass(frozen=True)
class Stain:
    """A style and its colors."""

    name: str
    code: NDArray[np.float32]
    """(K,)."""
    colors: Pixels
    """(H, W, 3): mixtures of both stains. Hematoxylin increases to the right, eosin downward."""
    alarm: bool = False
    """Whether to mark it as needing attention."""


@dataclass(frozen=True)
class StyleMap:
    """Positions of styles in the plane that shows most of their differences."""

    places: NDArray[np.float64]
    """(N, 2), in the units of `measure_apart`."""
    shown: float
    """Share of the differences that the plane shows."""


def measure_apart(codes: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the distances (N, N) between codes (N, K): the root mean square of their difference."""
    differences = codes[:, None].astype(np.float64) - codes[None]
    return np.sqrt(np.square(differences).mean(axis=2))


def place_styles(codes: NDArray[np.float32]) -> StyleMap:
    """Project codes (N, K) onto the plane of their two main directions, which preserves distances best."""
    centered = codes.astype(np.float64) - codes.mean(axis=0, dtype=np.float64)
    sides, lengths, _ = np.linalg.svd(centered, full_matrices=False)
    flat = np.zeros((len(codes), 2))
    count = min(2, len(lengths))
    flat[:, :count] = sides[:, :count] * lengths[:count] / np.sqrt(codes.shape[1])
    total = float(np.square(lengths).sum())
    return StyleMap(flat, 1.0 if total == 0 else float(np.square(lengths[:2]).sum()) / total)


def find_nearest(stains: Sequence[Stain]) -> dict[str, tuple[str, float]]:
    """Return the nearest other style of each style, and its distance; nothing for a single style."""
    if len(stains) < 2:
        return {}
    apart = measure_apart(np.stack([stain.code for stain in stains]))
    np.fill_diagonal(apart, np.inf)
    pairs = list(enumerate(apart.argmin(axis=1).tolist()))
    return {stains[one].name: (stains[other].name, float(apart[one, other])) for one, other in pairs}


def draw_swatch(colors: Pixels, label: str) -> Markup:
    """Return the colors (H, W, 3) of a stain as a small picture."""
    height, width = colors.shape[:2]
    return wrap_svg(CELL * width, CELL * height, label, [_paint(colors)])


def draw_style_map(stains: Sequence[Stain], label: str, *, in_order: bool = False) -> Markup:
    """Return a map of styles as swatches, each connected to the nearest one or, `in_order`, to the next."""
    placed = place_styles(np.stack([stain.code for stain in stains]))
    low, high = placed.places.min(axis=0), placed.places.max(axis=0)
    room = np.array([WIDE - 2 * EDGE, HIGH - 2 * EDGE])
    spread = np.maximum(high - low, NEGLIGIBLE)
    scale = float((room / spread).min())
    middle = np.array([EDGE, EDGE]) + (room - scale * (high - low)) / 2
    points = {stain.name: middle + scale * (at - low) for stain, at in zip(stains, placed.places, strict=True)}
    names = [stain.name for stain in stains]
    pairs = list(pairwise(names)) if in_order else _pair_nearest(stains)
    parts = [_join(points[one], points[other]) for one, other in pairs]
    parts += [_place(stain, points[stain.name], len(stains) <= MOST_NAMES) for stain in stains]
    if spread.max() > NEGLIGIBLE:
        parts.append(_draw_scale(choose_step(float(spread.max())), scale))
    return wrap_svg(WIDE, HIGH, label, parts)


def _pair_nearest(stains: Sequence[Stain]) -> list[tuple[str, str]]:
    pairs = {(min(name, other), max(name, other)) for name, (other, _) in find_nearest(stains).items()}
    return sorted(pairs)


def _join(start: NDArray[np.float64], end: NDArray[np.float64]) -> Markup:
    line = Markup('<line x1="{}" y1="{}" x2="{}" y2="{}" stroke="currentColor" stroke-opacity=".35"/>')
    return line.format(*(f"{value:.1f}" for value in (*start, *end)))


def _place(stain: Stain, at: NDArray[np.float64], named: bool) -> Markup:
    height, width = (CELL * SMALLER * side for side in stain.colors.shape[:2])
    corner = f"{at[0] - width / 2:.1f} {at[1] - height / 2:.1f}"
    frame = Markup('<rect x="-2" y="-2" width="{:.1f}" height="{:.1f}" fill="{}"/>').format(
        width + 4, height + 4, ALARM if stain.alarm else "#888"
    )
    name = Markup('<text x="{}" y="{}" text-anchor="middle">{}</text>').format(width / 2, height + 16, stain.name)
    picture = Markup('<g transform="scale({})">{}</g>').format(SMALLER, _paint(stain.colors))
    return Markup('<g transform="translate({})"><title>{}</title>{}{}{}</g>').format(
        corner, stain.name, frame, picture, name if named else ""
    )


def _draw_scale(length: float, scale: float) -> Markup:
    return Markup(
        '<path d="M12 {0}v6h{1:.1f}v-6" fill="none" stroke="currentColor" stroke-opacity=".7"/>'
        '<text x="{2:.1f}" y="{3}" fill-opacity=".7">{4:.3g} apart</text>'
    ).format(HIGH - 18, scale * length, scale * length + 20, HIGH - 8, length)


def _paint(colors: Pixels) -> Markup:
    # A little wider than their spacing, so that no lines show between them.
    cell = Markup('<rect x="{}" y="{}" width="{}" height="{}" fill="rgb({},{},{})"/>')
    return Markup("").join(
        cell.format(x * CELL, y * CELL, CELL + 0.3, CELL + 0.3, *color)
        for y, row in enumerate(colors.tolist())
        for x, color in enumerate(row)
    )
