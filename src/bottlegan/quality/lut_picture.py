"""A picture of a color map: mixtures of both stains, and slices through all colors, before and after."""

import numpy as np
from PIL import Image, ImageDraw

from bottlegan.colormap.table import Convert
from bottlegan.imaging.files import Pixels
from bottlegan.stain.style import Style, mix_stains

SLICES = (0, 64, 128, 192, 255)
"""Blue levels of the slices."""
SIDE, GAP, TEXT = 128, 12, 14
STRONGEST = 1.25
"""Concentration of each stain at the far corner of the mixtures; 1 is strong."""


def draw_map(convert: Convert, mixes: Pixels) -> Pixels:
    """Return a picture of mixtures (H, W, 3) of both stains, and of slices at some levels of blue, before and after.

    In the mixtures, hematoxylin increases to the right and eosin downward. In the slices, red and green do.
    """
    panels = {"stain mixes": mixes} | {f"blue {level}": cut_colors(level) for level in SLICES}
    rows = {"before": panels, "after": {name: _mapped(convert, panel) for name, panel in panels.items()}}
    width, height = (GAP + SIDE) * len(panels) + GAP, (TEXT + GAP + SIDE) * len(rows) + GAP
    sheet = Image.new("RGB", (width, height), "white")
    pen = ImageDraw.Draw(sheet)
    for row, (when, shown) in enumerate(rows.items()):
        top = GAP + row * (TEXT + GAP + SIDE)
        for column, (name, panel) in enumerate(shown.items()):
            left = GAP + column * (GAP + SIDE)
            pen.text((left, top), f"{name}, {when}", fill="black")
            picture = Image.fromarray(panel).resize((SIDE, SIDE), Image.Resampling.NEAREST)
            sheet.paste(picture, (left, top + TEXT))
    return np.asarray(sheet)


def mix_all(style: Style, side: int = 32) -> Pixels:
    """Return mixtures (S, S, 3) of a style's two stains: hematoxylin increases to the right, eosin downward."""
    amount = np.linspace(0, STRONGEST, side)
    eosin, hematoxylin = np.meshgrid(amount, amount, indexing="ij")
    return mix_stains(np.stack([hematoxylin, eosin], axis=-1), style)


def cut_colors(blue: int) -> Pixels:
    """Return every other color (S, S, 3) of one level of blue: red increases to the right, green downward."""
    green, red = np.meshgrid(np.linspace(0, 255, SIDE), np.linspace(0, 255, SIDE), indexing="ij")
    return np.stack([red, green, np.full_like(red, blue)], axis=-1).round().astype(np.uint8)


def _mapped(convert: Convert, panel: Pixels) -> Pixels:
    return convert(panel.reshape(-1, 3)).reshape(panel.shape)
