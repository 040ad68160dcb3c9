"""Images as users give them: arrays, files, folders and slides."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from bottlegan.core.errors import InputError
from bottlegan.data.lab import read_lab, sample_slide
from bottlegan.imaging.files import Pixels
from bottlegan.slides.reader import OpenedSlide, PlainImage, Slide

Given = Pixels | str | Path | Slide


def read_images(images: object, seed: int) -> list[Pixels]:
    """Return images given as arrays, as paths or as an open slide, of which no more are read than a fit looks at."""
    if isinstance(images, OpenedSlide | PlainImage):
        return sample_slide(images, seed=seed)
    if isinstance(images, str | Path) or (isinstance(images, np.ndarray) and images.ndim != 4):
        images = [images]
    if not isinstance(images, Iterable):
        raise InputError(f"images must be arrays or paths, got a {type(images).__name__}; give at least one")
    given = list(images)
    paths = [Path(each) for each in given if isinstance(each, str | Path)]
    arrays = [check_levels(each) for each in given if not isinstance(each, str | Path)]
    return arrays + (read_lab(paths, seed) if paths else [])


def check_levels(image: object) -> Pixels:
    """Return RGB levels (H, W, 3), uint8, if that is what it is."""
    wanted = "an image must be a uint8 array (height, width, 3) or a float tensor (N, 3, height, width)"
    if not isinstance(image, np.ndarray):
        raise InputError(f"{wanted}, got a {type(image).__name__}; convert it, for example with np.asarray")
    if image.dtype != np.uint8:
        raise InputError(f"{wanted}, got an array of {image.dtype}; scale it to 0 to 255 and use .astype(np.uint8)")
    if image.ndim != 3 or image.shape[2] != 3 or not image.size:
        raise InputError(f"{wanted}, got shape {image.shape}; give RGB, channels last, without alpha, and not empty")
    return image
