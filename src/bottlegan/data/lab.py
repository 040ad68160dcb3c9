"""The images of one lab, from files, folders or slides."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np

from bottlegan.core.errors import ImageError, InputError
from bottlegan.data.patches import list_patches
from bottlegan.imaging.files import Pixels, read_image
from bottlegan.slides.reader import Slide, is_slide, open_slide
from bottlegan.slides.tissue import sample_tissue

MOST_IMAGES = 32
"""Most images that a style is fitted to. More take longer and hardly improve the fit."""

Thing = TypeVar("Thing")


class LabImages(NamedTuple):
    """Images (H, W, 3) of one lab, and why files in its folders were skipped."""

    images: list[Pixels]
    skipped: list[ImageError]


def read_lab(sources: Sequence[Path], seed: int = 0) -> list[Pixels]:
    """Return images (H, W, 3) of one lab, without the files that `scan_lab` skips."""
    return scan_lab(sources, seed).images


def scan_lab(sources: Sequence[Path], seed: int = 0) -> LabImages:
    """Return images of one lab: named files, the images of a folder, or tissue tiles of a slide.

    At most MOST_IMAGES files are read, evenly spaced. An unreadable file in a folder is skipped; an unreadable file
    that was named is an error.
    """
    files = [file for source in sources for file in _list_files(source)]
    if not files:
        raise InputError("there is no image to fit a style to; give at least one image of the lab")
    chosen = spread(files, MOST_IMAGES)
    images: list[Pixels] = []
    skipped: list[ImageError] = []
    for file in chosen:
        try:
            images += _read_file(file, max(1, MOST_IMAGES // len(chosen)), seed)
        except ImageError as error:
            if file in sources:
                raise
            skipped.append(error)
    if not images:
        raise skipped[0]
    return LabImages(images, skipped)


def _read_file(file: Path, tiles: int, seed: int) -> list[Pixels]:
    if not is_slide(file):
        return [read_image(file)]
    with open_slide(file) as slide:
        return sample_slide(slide, tiles, seed)


def sample_slide(slide: Slide, count: int = MOST_IMAGES, seed: int = 0) -> list[Pixels]:
    """Return images of the tissue of an open slide, from at most `count` places."""
    return join_tiles(sample_tissue(slide, count, seed=seed))


def join_tiles(tiles: list[Pixels]) -> list[Pixels]:
    """Return tiles (S, S, 3) joined four at a time into images (2 S, 2 S, 3). Remaining tiles are returned unchanged.

    Fitting a style takes the same time for small images as for large ones. Four neighboring tiles show as much tissue
    as the patches that the shipped prior was trained on, and their style is found as well in a quarter of the time.
    """
    whole = len(tiles) // 4 * 4
    fours = [tiles[start : start + 4] for start in range(0, whole, 4)]
    return [np.vstack([np.hstack([a, b]), np.hstack([c, d])]) for a, b, c, d in fours] + tiles[whole:]


def spread(things: Sequence[Thing], most: int) -> list[Thing]:
    """Return at most `most` of the things, evenly spaced, including the first and the last."""
    count = min(len(things), most)
    return [things[round(i * (len(things) - 1) / max(1, count - 1))] for i in range(count)]


def _list_files(source: Path) -> list[Path]:
    return [patch.image for patch in list_patches(source)] if source.is_dir() else [source]
