"""Figure 2: all styles, the same patches normalized, and the same tissue restained to each style."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from bottlegan.core.files import make_folder
from bottlegan.core.progress import Progress, Silent
from bottlegan.imaging.files import Pixels, write_image
from bottlegan.imaging.tensors import from_batch, to_batch
from bottlegan.models.paradigms import StyleModel
from bottlegan.reproduce.paired import Half, Scale, load_halves
from bottlegan.reproduce.table2 import Table2Options, obtain_model

VIEW = 160
"""Side of the part of a patch that is shown, in its pixels, if the patch is that large."""
TILE = 40
"""Side of a style's tile in the figure."""
DETAILED = 8
"""Number of styles in the detailed figure."""
GAP = 2
TITLE = 28


@dataclass(frozen=True)
class Shown:
    """The pictures of one style: the middle of its patch, uint8 (H, W, 3)."""

    name: str
    styled: Pixels
    normalized: Pixels
    truth: Pixels
    restained: Pixels
    """The truth, restained to the style."""


def run_figure2(
    scale: Scale, out: Path, data: Path | None = None, seed: int = 0, progress: Progress | None = None
) -> Path:
    """Draw `figure2.png`, and `figure2_detail.png` with a few large styles, in `out`; return the former's path.

    BottleGAN models that `run_table2` has saved there are used. If there are none, they are trained and saved.
    """
    make_folder(out)
    setting = Table2Options(scale, seed, out, progress or Silent())
    shown: list[Shown] = []
    for half in load_halves(scale, data, seed, setting.progress):
        model, _ = obtain_model("bottlegan", setting, half)
        shown += map_half(model, half, setting.progress)
    shown.sort(key=lambda style: style.name)
    path = out / "figure2.png"
    write_image(path, draw_figure(shown))
    write_image(out / "figure2_detail.png", draw_detail(shown))
    return path


@torch.no_grad()
def map_half(model: StyleModel, half: Half, progress: Progress) -> list[Shown]:
    """Map the styles of one half in both directions."""
    shown = []
    patches = list(zip(half.names, half.styled, half.truths, strict=True))
    for name, *pair in progress.track(patches, "mapping styles", len(patches)):
        styled, truth = (middle(to_batch(levels)) for levels in pair)
        code = model.codes[name]
        pictures = (styled, model.normalize(styled, code), truth, model.restain(truth, code))
        shown.append(Shown(name, *(from_batch(picture)[0] for picture in pictures)))
    return shown


def middle(images: Tensor) -> Tensor:
    """Return the middle VIEW x VIEW pixels of images (N, 3, H, W), or all of them if there are fewer."""
    height, width = images.shape[2:]
    top, left = max(0, (height - VIEW) // 2), max(0, (width - VIEW) // 2)
    return images[:, :, top : top + VIEW, left : left + VIEW]


def draw_figure(shown: Sequence[Shown]) -> Pixels:
    """Return three mosaics side by side, in which each style has the same place."""
    blocks = {
        f"{len(shown)} styles": [style.styled for style in shown],
        "normalized": [style.normalized for style in shown],
        "restained": [style.restained for style in shown],
    }
    columns = max(4, int(np.ceil(np.sqrt(len(shown)))))
    parts = [titled(title, mosaic(tiles, columns, TILE)) for title, tiles in blocks.items()]
    return np.concatenate([np.pad(part, ((0, 0), (0, 8 * GAP), (0, 0)), constant_values=255) for part in parts], axis=1)


def draw_detail(shown: Sequence[Shown]) -> Pixels:
    """Return a few evenly spaced styles in large tiles, one column per style."""
    picked = [shown[i] for i in np.linspace(0, len(shown) - 1, min(DETAILED, len(shown))).round().astype(int)]
    rows = {
        "style": [style.styled for style in picked],
        "normalized": [style.normalized for style in picked],
        "truth: the same tissue in the reference stain": [style.truth for style in picked],
        "the truth, restained to each style": [style.restained for style in picked],
    }
    return np.concatenate([titled(title, mosaic(tiles, len(picked), VIEW)) for title, tiles in rows.items()])


def mosaic(tiles: Sequence[Pixels], columns: int, side: int) -> Pixels:
    """Return the tiles, scaled to squares of `side` pixels, in rows of `columns` tiles on white."""
    cell = side + GAP
    sheet = Image.new("RGB", (cell * columns, cell * -(-len(tiles) // columns)), "white")
    for index, levels in enumerate(tiles):
        row, column = divmod(index, columns)
        tile = Image.fromarray(levels).resize((side, side), Image.Resampling.BOX)
        sheet.paste(tile, (cell * column, cell * row))
    return np.asarray(sheet)


def titled(title: str, picture: Pixels) -> Pixels:
    """Return the picture below a line of text."""
    strip = Image.new("RGB", (picture.shape[1], TITLE), "white")
    ImageDraw.Draw(strip).text((GAP, 5), title, fill="black", font=ImageFont.load_default(16))
    return np.concatenate([np.asarray(strip), picture])
