"""Published stain augmentations, which BottleGAN's restaining is compared with.

Both change crops (N, H, W, 3) of RGB levels, each crop with its own random numbers.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from skimage.color import hed_from_rgb, lab2rgb, rgb2lab, rgb_from_hed

from bottlegan.imaging.files import Pixels

Array = NDArray[np.float64]

JITTER = 0.2
"""How much HED jitter varies the stain amounts, relative to themselves and to a strong stain, whose density is 1. This
is the strong form of Tellez et al. 2018."""


def jitter_hed(crops: Pixels, random: np.random.Generator, jitter: float = JITTER) -> Pixels:
    """Scale and shift the amounts of hematoxylin, eosin and DAB, unmixed with textbook stain vectors.

    Amounts may be negative, because textbook vectors do not fit every lab. Clipping them would change the colors.
    """
    density = -np.log((crops.astype(np.float64) + 1) / 256)
    amounts = density @ hed_from_rgb
    shape = (len(crops), 1, 1, 3)
    varied = amounts * random.uniform(1 - jitter, 1 + jitter, shape) + random.uniform(-jitter, jitter, shape)
    return _to_levels((256 * np.exp(-(varied @ rgb_from_hed)) - 1) / 255)


@dataclass(frozen=True)
class LabStatistics:
    """Color statistics of images in CIE Lab: the mean and the standard deviation of each image, (N, 2, 3)."""

    values: Array

    @classmethod
    def of(cls, images: Sequence[Pixels]) -> "LabStatistics":
        """Return the statistics of images: six numbers per image, which a lab can share."""
        colors = [rgb2lab(image).reshape(-1, 3) for image in images]
        return cls(np.stack([np.stack([pixels.mean(0), pixels.std(0)]) for pixels in colors]))

    def join(self, other: "LabStatistics") -> "LabStatistics":
        """Return the statistics of both sets of images."""
        return LabStatistics(np.concatenate([self.values, other.values]))


def draw_templates(crops: Pixels, random: np.random.Generator, statistics: LabStatistics) -> Pixels:
    """Give each crop the color mean and deviation of a random template, as RandStainNA does (Shen et al. 2022).

    A template is drawn from normal distributions that were fitted to the statistics of all labs' images.
    """
    center, spread = statistics.values.mean(0), statistics.values.std(0)
    drawn = random.normal(center, spread, (len(crops), 2, 3))[:, :, None, None]
    colors = rgb2lab(crops)
    mean, deviation = colors.mean((1, 2), keepdims=True), colors.std((1, 2), keepdims=True)
    scale = np.maximum(drawn[:, 1], 0) / np.maximum(deviation, 1e-3)
    with warnings.catch_warnings():
        # A template may hold colors outside sRGB. They are clipped, and the warning says no more than that.
        warnings.filterwarnings("ignore", message="Conversion from CIE-LAB")
        return _to_levels(lab2rgb((colors - mean) * scale + drawn[:, 0]))


def _to_levels(images: Array) -> Pixels:
    return np.rint(np.clip(images, 0, 1) * 255).astype(np.uint8)
