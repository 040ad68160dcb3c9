"""Where a slide shows anything but bare glass, in soft steps, for every pixel: what lies outside can be left alone."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from bottlegan.slides.grid import Region
from bottlegan.slides.image import Levels
from bottlegan.slides.reader import Slide
from bottlegan.slides.tissue import measure_above_glass, read_overview

Weights = NDArray[np.float32]
Counts = NDArray[np.int64]

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
    _sums: tuple[Counts, Counts] = field(init=False, repr=False)
    """How many spots above and to the left of each corner are bare, and how many are covered."""

    def __post_init__(self) -> None:
        """Count."""
        counted = [np.pad(kind.cumsum(0).cumsum(1), ((1, 0), (1, 0))) for kind in (self.spots == 0, self.spots == 1)]
        object.__setattr__(self, "_sums", tuple(counted))

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
        top, bottom = _span(region.y, region.height, scale, height)
        left, right = _span(region.x, region.width, scale, width)
        for share, sums in enumerate(self._sums):
            found = sums[bottom, right] - sums[top, right] - sums[bottom, left] + sums[top, left]
            if found == (bottom - top) * (right - left):
                return float(share)
        rows, down = _place(np.arange(region.y, region.y + region.height), scale, height)
        columns, across = _place(np.arange(region.x, region.x + region.width), scale, width)
        below, beside = np.minimum(rows + 1, height - 1), np.minimum(columns + 1, width - 1)
        near = self.spots[rows[0] : below[-1] + 1]
        lines = _blend(near[:, columns], near[:, beside], across)
        return _blend(lines[rows - rows[0]], lines[below - rows[0]], down[:, None])[..., None]


def _span(start: int, count: int, scale: float, spots: int) -> tuple[int, int]:
    """Return the first of the spots that pixels lie between, and the one after the last."""
    first, last = ((pixel + 0.5) * scale - 0.5 for pixel in (start, start + count - 1))
    return min(int(max(first, 0)), spots - 1), min(int(max(last, 0)) + 2, spots)


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
