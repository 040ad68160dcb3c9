"""The regions of nuclei, other tissue and glass in an image, and their colors.

All three are found in the input, so that all methods are measured on the same pixels. Colors are means in CIE Lab.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage
from skimage.color import rgb2lab

from bottlegan.core.progress import Json
from bottlegan.imaging.files import Pixels

Mask = NDArray[np.bool_]
Color = NDArray[np.float64]

BRIGHTEST = 0.995
"""Quantile of the lightness that counts as the brightest of an image."""
DARKER = 0.05
"""How much darker than that glass may be, relative to it."""
MOST_CHROMA = 10.0
"""Largest chroma of glass; pale tissue that is as light and flat has more."""
MOST_ROUGHNESS = 1.5
"""Largest standard deviation of the lightness of glass within WINDOW."""
WINDOW = 5
"""Side in pixels of the square that must be flat, and of the smallest piece of glass."""
SQUARE = np.ones((WINDOW, WINDOW), bool)
WHITE = 85.0
"""Least lightness of the brightest pixels for glass that must stay white; dim photographs have less."""
ENOUGH = 0.01
"""Least share of glass in an image for its color to count."""


@dataclass(frozen=True)
class Regions:
    """Masks (H, W) of the regions of an image. Each is None if it is unknown or too small."""

    nuclei: Mask | None
    other: Mask | None
    """Tissue that is not nuclei."""
    glass: Mask | None
    """White glass."""


@dataclass(frozen=True)
class Colors:
    """The mean CIE Lab color (3,) of each region of one image."""

    nuclei: Color | None
    other: Color | None
    glass: Color | None

    @property
    def nuclei_are_darker(self) -> bool | None:
        """Whether nuclei are darker than other tissue, if their places are known."""
        if self.nuclei is None or self.other is None:
            return None
        return bool(self.nuclei[0] < self.other[0])


def find_regions(image: Pixels, nuclei: Mask | None) -> Regions:
    """Divide an image (H, W, 3), uint8, into regions, with the mask of its nuclei if known."""
    lab = rgb2lab(image)
    glass = find_glass(lab)
    white = np.quantile(lab[..., 0], BRIGHTEST) >= WHITE and glass.mean() >= ENOUGH
    other = None if nuclei is None else ~nuclei & ~ndimage.binary_dilation(glass, SQUARE)  # its rim is not flat
    known = nuclei is not None and other is not None and nuclei.any() and other.any()
    return Regions(nuclei if known else None, other if known else None, glass if white else None)


def find_glass(lab: NDArray[np.float64]) -> Mask:
    """Return the mask of glass, (H, W) bool, of an image (H, W, 3) in CIE Lab.

    Glass is nearly as light as the brightest pixels of its image, nearly gray, and flat: the lightness within a small
    square around each pixel varies little. Pieces that do not hold such a square are dropped. The brightness is
    relative, so that the dim glass of a photograph is not taken for tissue.
    """
    lightness, chroma = lab[..., 0], np.hypot(lab[..., 1], lab[..., 2])
    mean = ndimage.uniform_filter(lightness, WINDOW)
    roughness = np.sqrt(np.maximum(ndimage.uniform_filter(lightness**2, WINDOW) - mean**2, 0))
    bright = lightness >= (1 - DARKER) * np.quantile(lightness, BRIGHTEST)
    glass = bright & (chroma <= MOST_CHROMA) & (roughness <= MOST_ROUGHNESS)
    return ndimage.binary_opening(glass, SQUARE)


def measure_colors(image: Pixels, regions: Regions) -> Colors:
    """Return the color of each region of an image (H, W, 3)."""
    lab = rgb2lab(image)

    def mean(mask: Mask | None) -> Color | None:
        return None if mask is None else lab[mask].mean(0)

    return Colors(mean(regions.nuclei), mean(regions.other), mean(regions.glass))


def average(colors: Sequence[Colors]) -> tuple[Color, Color] | None:
    """Return the mean color of nuclei and of other tissue over images, or None if no image has known nuclei."""
    known = [
        (regions.nuclei, regions.other)
        for regions in colors
        if regions.nuclei is not None and regions.other is not None
    ]
    if not known:
        return None
    nuclei, other = (np.mean(regions, axis=0) for regions in zip(*known, strict=True))
    return nuclei, other


def measure_spread(groups: Sequence[tuple[Color, Color]]) -> dict[str, Json]:
    """Return how far the colors of nuclei and of other tissue differ between groups, in units of CIE Lab.

    A spread is the root of the mean squared distance of the groups' colors to their mean; both together, the root of
    the summed squares of the two. Beside it stands the contrast, the mean distance of a group's nuclei to its other
    tissue: a method that makes everything paler makes every spread smaller, and this as well.
    """
    colors = [np.stack(region) for region in zip(*groups, strict=True)]
    nuclei, other = (root_mean_square(region - region.mean(0)) for region in colors)
    contrast = float(np.linalg.norm(colors[0] - colors[1], axis=1).mean())
    return {"nuclei": nuclei, "other tissue": other, "both": float(np.hypot(nuclei, other)), "contrast": contrast}


def root_mean_square(differences: NDArray[np.float64]) -> float:
    """Return the root of the mean squared length of differences (..., 3)."""
    return float(np.sqrt((differences**2).sum(-1).mean()))


def summarize_glass(before: Sequence[Colors], after: Sequence[Colors]) -> dict[str, Json] | None:
    """Return the mean change of glass over the images that show it; None if none do.

    Lost lightness and gained chroma are counted per image; one image's gain does not offset another's loss.
    """
    pairs = [
        (a.glass, b.glass) for a, b in zip(before, after, strict=True) if a.glass is not None and b.glass is not None
    ]
    if not pairs:
        return None
    first, then = (np.stack(stage) for stage in zip(*pairs, strict=True))
    chroma = [np.hypot(stage[:, 1], stage[:, 2]) for stage in (first, then)]
    lost = first[:, 0] - then[:, 0]
    return {
        "images": len(pairs),
        "lightness before": float(first[:, 0].mean()),
        "lightness after": float(then[:, 0].mean()),
        "chroma before": float(chroma[0].mean()),
        "chroma after": float(chroma[1].mean()),
        "lightness lost": float(np.maximum(lost, 0).mean()),
        "chroma gained": float(np.maximum(chroma[1] - chroma[0], 0).mean()),
        "lightness lost, worst": float(lost.max()),
        "chroma gained, worst": float((chroma[1] - chroma[0]).max()),
    }
