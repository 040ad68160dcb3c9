"""Sheets of real images before and after normalization, for judging by eye.

The images must not be redistributed, so the sheets belong in the user's own folder and nowhere else.
"""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from bottlegan.bench.real_methods import Fitted, LabMethod, apply, fit_ours, write_slide
from bottlegan.core.files import make_folder
from bottlegan.core.progress import Progress, Silent
from bottlegan.data.lab import spread
from bottlegan.data.real import RealData, read_whole
from bottlegan.imaging.files import Pixels, read_image, write_image

SIDE = 220
"""Side of a picture on a sheet, in pixels."""
SMALL = 130
"""Side of a picture if many are in a row."""
SLIDE_HEIGHT = 1000
GAP, TEXT, LINES = 4, 12, 3
"""Pixels between pictures, size of letters, and lines below a picture."""
SHOWN = 3
"""Number of images to show of a lab."""
ROWS, ACROSS = 9, 4
"""Of a sheet; across, so many images are shown before and after."""


@dataclass(frozen=True)
class Panel:
    """A picture with a caption."""

    image: Pixels
    words: str


def save_pictures(
    data: RealData, folder: Path, model: Path | None = None, progress: Progress | None = None
) -> list[Path]:
    """Write sheets of all real images before and after normalization into a folder, and return their paths.

    `labs-N.png` show a few images of each lab, to all of which the style was fitted; `images-N.png` all of them, each
    fitted alone; `restained.png` one style a staining, a row of places before and one after; `odd.png` what is hard or
    no H&E, each alone; `slide.png` the slide as it is written.

    Args:
        data: Real images.
        folder: The output folder, which is created if necessary.
        model: The model file for the fits; by default the one shipped in the package.
        progress: Receives progress.
    """
    make_folder(folder)
    method, progress = LabMethod(fit_ours(model)), progress or Silent()
    sheets: dict[str, Pixels] = {}
    labs = list(data.labs)
    for page, start in enumerate(range(0, len(labs), ROWS), 1):
        sheets[f"labs-{page}"] = draw_labs(method, data, labs[start : start + ROWS], progress)
    alone = [image.path for image in data.images]
    for page, start in enumerate(range(0, len(alone), ROWS * ACROSS), 1):
        sheets[f"images-{page}"] = draw_alone(method, alone[start : start + ROWS * ACROSS], progress)
    if data.restained:
        sheets["restained"] = draw_restained(method, data.restained, progress)
    if data.odd:
        sheets["odd"] = draw_alone(method, data.odd, progress)
    if data.slide is not None:
        sheets["slide"] = draw_slide(data.slide, model)
    for name, sheet in sheets.items():
        write_image(folder / f"{name}.png", sheet)
    return [folder / f"{name}.png" for name in sheets]


def draw_labs(method: LabMethod, data: RealData, labs: Sequence[str], progress: Progress) -> Pixels:
    """Return a sheet with a row for each lab: some images before, and the same images after."""
    rows = []
    for lab in progress.track(labs, "pictures of labs", len(labs)):
        images = [entry.read() for entry in data.labs[lab]]
        fitted = method.fit(images)
        rows.append([panel for image in spread(images, SHOWN) for panel in pair(image, lab, fitted)])
    return draw_sheet(rows)


def draw_alone(method: LabMethod, paths: Sequence[Path], progress: Progress) -> Pixels:
    """Return a sheet of images before and after, each fitted alone."""
    panels: list[Panel] = []
    for path in progress.track(paths, "pictures of images", len(paths)):
        image = read_image(path)
        panels += pair(image, f"{path.parent.name}/{path.stem}", method.fit([image]))
    return draw_sheet([panels[start : start + 2 * ACROSS] for start in range(0, len(panels), 2 * ACROSS)])


def draw_restained(method: LabMethod, restained: dict[int, dict[int, Path]], progress: Progress) -> Pixels:
    """Return a sheet with two rows for each place, before and after, and a column for each staining."""
    tiles = {place: {key: read_image(path) for key, path in paths.items()} for place, paths in restained.items()}
    stainings = list(next(iter(tiles.values())))
    fits = {
        staining: method.fit([of[staining] for of in tiles.values()])
        for staining in progress.track(stainings, "pictures of stainings", len(stainings))
    }
    rows = []
    for place, of in tiles.items():
        pairs = [pair(tile, f"place {place}, stain {staining}", fits[staining]) for staining, tile in of.items()]
        rows += [[before for before, _ in pairs], [after for _, after in pairs]]
    return draw_sheet(rows, SMALL)


def draw_slide(path: Path, model: Path | None = None) -> Pixels:
    """Return a slide before and after, side by side, as `bottlegan normalize` writes it."""
    before = read_whole(path)
    size = (round(before.shape[1] * SLIDE_HEIGHT / before.shape[0]), SLIDE_HEIGHT)
    return np.hstack(
        [
            np.asarray(Image.fromarray(picture).resize(size, Image.Resampling.BOX))
            for picture in (before, write_slide(path, model))
        ]
    )


def pair(image: Pixels, name: str, fitted: Fitted) -> tuple[Panel, Panel]:
    """Return an image before and after, with its name and the method's opinion of its fit."""
    output, worked = apply(fitted, image)
    opinion = fitted.opinion
    if not worked:
        words = "failed"
    elif opinion is None:
        words = "after"
    else:
        error = "" if opinion.expected_error is None else f" ({opinion.expected_error:.1f})"
        words = f"{opinion.verdict}{error}: {opinion.reason}"
    return Panel(image, name), Panel(output, words)


def draw_sheet(rows: Sequence[Sequence[Panel]], side: int = SIDE) -> Pixels:
    """Return rows of panels as one picture (H, W, 3). Each shows the middle of its image, scaled to `side` pixels."""
    width, height = side + GAP, side + GAP + LINES * (TEXT + 2)
    sheet = Image.new("RGB", (max(map(len, rows)) * width, len(rows) * height), "white")
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(TEXT)
    letters = int(side / pen.textlength("abcdefghij", font) * 10)
    for row, panels in enumerate(rows):
        for column, panel in enumerate(panels):
            left, top = column * width, row * height
            sheet.paste(shrink(panel.image, side), (left, top))
            words = textwrap.wrap(panel.words, letters)[:LINES]
            pen.multiline_text((left, top + side), "\n".join(words), fill="black", font=font, spacing=2)
    return np.asarray(sheet)


def shrink(image: Pixels, side: int) -> Image.Image:
    """Return the middle of an image as a square of side `side`."""
    height, width = image.shape[:2]
    shorter = min(height, width)
    top, left = (height - shorter) // 2, (width - shorter) // 2
    square = Image.fromarray(image[top : top + shorter, left : left + shorter])
    return square.resize((side, side), Image.Resampling.LANCZOS)
