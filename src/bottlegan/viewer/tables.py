"""A map of colors for the browser: a coarse table to interpolate, or the exact table.

The coarse table has every third level of each channel, 86 x 86 x 86 colors, which the graphics processor interpolates.
It is exact at its own colors. The exact table has all 256 x 256 x 256 colors.
"""

from collections.abc import Iterator

import numpy as np

from bottlegan.colormap.ink import weigh_ink
from bottlegan.colormap.keys import COLORS, count_colors
from bottlegan.colormap.levels import DENSITY
from bottlegan.colormap.table import Convert
from bottlegan.imaging.files import Pixels
from bottlegan.normalize.normalizer import Normalizer

SPACING = 3
"""Levels between colors of the coarse table. 255 is a multiple, so that the table contains black and white."""
STEPS = 255 // SPACING + 1
DOUBT = 0.5
"""Optical density of the uncertainty that is shown at full strength: half of a strong stain."""
BLOCK = 2**19
"""Number of colors of the exact table to send at a time."""


def sample_map(convert: Convert) -> bytes:
    """Return the coarse table: red, green and blue of each color; blue changes fastest, then green, then red."""
    return convert(_list_colors()).tobytes()


def sample_doubts(normalizer: Normalizer) -> bytes:
    """Return the uncertainty and the pen share, 0 to 255, of each color of the coarse table, in the same order."""
    colors = _list_colors()
    doubt, ink = normalizer.uncertainty(colors), normalizer.color_map().network.ink
    pen = np.zeros(doubt.size) if ink is None else weigh_ink(DENSITY[colors.reshape(-1, 3)], ink)
    both = np.stack([doubt.reshape(-1) / DOUBT, pen], axis=1).clip(0, 1)
    return np.round(255 * both).astype(np.uint8).tobytes()


def iterate_map(convert: Convert) -> Iterator[bytes]:
    """Yield the exact table in parts, in the same order."""
    for start in range(0, COLORS, BLOCK):
        yield convert(count_colors(start, start + BLOCK)[None]).tobytes()


def _list_colors() -> Pixels:
    """Return the colors of the coarse table as an image (STEPS, STEPS * STEPS, 3)."""
    levels = np.arange(0, 256, SPACING, dtype=np.uint8)
    return np.stack(np.meshgrid(levels, levels, levels, indexing="ij"), axis=-1).reshape(STEPS, -1, 3)
