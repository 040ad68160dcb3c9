"""Images in the forms that users pass them: arrays, files, folders and slides."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from PIL import Image

from bottlegan.core.errors import InputError
from bottlegan.data.lab import read_lab, sample_slide
from bottlegan.imaging.files import Pixels, to_pixels
from bottlegan.slides.reader import OpenedSlide, PlainImage, Slide

Given = Pixels | Image.Image | str | Path | Slide


def read_images(images: object, seed: int) -> list[Pixels]:
    """Return images from arrays, paths or an open slide. No more images are read than a fit uses."""
    if isinstance(images, OpenedSlide | PlainImage):
        return sample_slide(images, seed=seed)
    if isinstance(images, str | Path | Image.Image) or (isinstance(images, np.ndarray) and images.ndim != 4):
        images = [images]
    if not isinstance(images, Iterable):
        raise InputError(f"images must be arrays or paths, got a {type(images).__name__}; give at least one")
    items = list(images)
    paths = [Path(item) for item in items if isinstance(item, str | Path)]
    arrays = [check_levels(item) for item in items if not isinstance(item, str | Path)]
    return arrays + (read_lab(paths, seed) if paths else [])


def check_levels(image: object) -> Pixels:
    """Return RGB levels (H, W, 3), uint8, from an array of uint8 or of floats in [0, 1], or from a PIL image."""
    wanted = (
        "an image must be an array (height, width, 3) of uint8 or of floats in [0, 1], a PIL image, or a float tensor"
    )
    if isinstance(image, Image.Image):
        return to_pixels(image)
    if not isinstance(image, np.ndarray):
        raise InputError(f"{wanted}, got a {type(image).__name__}; convert it, for example with np.asarray")
    if image.dtype.kind == "f" and not ((image >= 0) & (image <= 1)).all():
        raise InputError(f"{wanted}, got floats outside that range; divide by 255, or clip them")
    levels = np.rint(255 * image).astype(np.uint8) if image.dtype.kind == "f" else image
    if levels.dtype != np.uint8:
        raise InputError(f"{wanted}, got an array of {levels.dtype}; scale it to 0 to 255 and use .astype(np.uint8)")
    if levels.ndim != 3 or levels.shape[2] != 3 or not levels.size:
        raise InputError(f"{wanted}, got shape {levels.shape}; give RGB, channels last, without alpha, and not empty")
    return levels
