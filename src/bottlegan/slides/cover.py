"""Where a slide shows anything but bare glass, in soft steps, for every pixel: what lies outside can be left alone."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from bottlegan.slides.grid import Region
from bottlegan.slides.image import Levels
from bottlegan.slides.reader import Slide
from bottlegan.slides.tissue import measure_above_glass, read_overview

Weights = NDArray[np.float32]

SHOWN = 0.03
"""Density above that of glass, 8 levels, from which on a spot may be tissue. Glass that is taken for tissue is mapped,
as it is within tissue; tissue that is taken for glass would keep its stain. So in doubt a spot is tissue."""
MARGIN = 2
"""Spots around what is shown that belong to it: the edge of tissue is paler than a spot's mean can tell."""
NEIGHBORS = np.ones((3, 3), np.uint8)


@dataclass(frozen=True)
class Cover:
    """How far each spot of a slide is covered, from 0 to 1."""

    spots: Weights
    """(H, W), a spot being as large as a pixel of the slide's overview."""
    pixels: float
    """Of the finest level along a spot."""

    def weigh(self, region: Region, downsample: float) -> float | Weights:
        """Return how far a region is covered: 0 or 1 if all of it is the same, else (H, W, 1) for its pixels.

        A pixel's weight depends on its place alone, whatever region it is asked for in.

        Args:
            region: Of any level.
            downsample: Of that level.
        """
        height, width = self.spots.shape
        # Most regions are all of one kind. That the spots around them tell, long before their pixels do.
        scale = downsample / self.pixels
        top, left = (int(max((first + 0.5) * scale - 0.5, 0)) for first in (region.y, region.x))
        bottom, right = (int((end - 0.5) * scale + 1.5) for end in (region.y + region.height, region.x + region.width))
        spots = self.spots[min(top, height - 1) : bottom, min(left, width - 1) : right]
        if spots.min() == 1 or spots.max() == 0:
            return float(spots[0, 0])
        rows, down = _place(np.arange(region.y, region.y + region.height), scale, height)
        columns, across = _place(np.arange(region.x, region.x + region.width), scale, width)
        below, beside = np.minimum(rows + 1, height - 1), np.minimum(columns + 1, width - 1)
        near = self.spots[rows[0] : below[-1] + 1]
        lines = _blend(near[:, columns], near[:, beside], across)
        return _blend(lines[rows - rows[0]], lines[below - rows[0]], down[:, None])[..., None]


def _place(pixels: NDArray[np.int64], scale: float, count: int) -> tuple[NDArray[np.int64], Weights]:
    """Return between which of `count` spots pixels lie: the first of the two, and how far on to the second."""
    centers = np.clip((pixels + 0.5) * scale - 0.5, 0, count - 1)
    before = np.floor(centers).astype(np.int64)
    return before, (centers - before).astype(np.float32)


def find_cover(slide: Slide) -> Cover:
    """Return where a slide is covered; holes belong to what is around them."""
    overview, pixels, _ = read_overview(slide)
    shown = measure_above_glass(overview).max(axis=2) > SHOWN
    shown = ndimage.binary_fill_holes(ndimage.binary_dilation(shown, iterations=MARGIN))
    # Grown by all that is counted around a spot, diagonals too, so that what was covered before is still wholly so.
    covered = ndimage.binary_dilation(shown, NEIGHBORS).astype(np.uint8)
    # Counted rather than averaged, because floats would leave nearly 1 where all is covered.
    around = ndimage.convolve(covered, NEIGHBORS, mode="nearest")
    return Cover((around / 9).astype(np.float32), pixels)


def blend(before: Levels, after: Levels, share: Weights) -> Levels:
    """Return levels between two images (H, W, 3), as far on the way to the second as `share` (H, W, 1) says."""
    start = before.astype(np.float32)
    return np.rint(_blend(start, after.astype(np.float32), share)).astype(np.uint8)


def _blend(start: Weights, end: Weights, share: Weights) -> Weights:
    return start + share * (end - start)
