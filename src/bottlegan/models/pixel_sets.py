"""The input of onboarding: pixels on a regular grid over a lab's images, each with its surroundings.

The surroundings of a color tell whether it is a nucleus or stroma, glass or pale tissue. So each pixel has the mean
densities of boxes around it, and the variation in a small box. Everything is in densities, so an affine map of
densities also maps the surroundings.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bottlegan.imaging.files import Pixels

Floats = NDArray[np.float32]

REACHES = (1, 3, 8, 20)
"""Pixels from the middle of the boxes to their sides: boxes of 3, 7, 17 and 41 pixels. A nucleus fills one of them at
any magnification."""
ROUGH = 1
"""Index of the box that measures how much densities vary."""
VIEWS = 1 + len(REACHES)
"""Number of densities per pixel: its own, and those of its boxes."""
CANDIDATES = 49_152
"""Number of pixels used from all images together."""
WINDOW = 128
"""Side in pixels of the parts used from a much larger image."""

DENSITY: Floats = -np.log((np.arange(256, dtype=np.float64) + 1) / 256).astype(np.float32)
"""Density of each level."""


@dataclass(frozen=True)
class PixelSet:
    """Pixels of one lab."""

    density: Floats
    """(P, VIEWS, 3): the density of each pixel, and the mean densities of its boxes."""
    roughness: Floats
    """(P,) standard deviation of the mean density in the box of 7 pixels."""
    image: NDArray[np.int64]
    """(P,) index of the pixel's image."""

    def __len__(self) -> int:
        """Return the number of pixels."""
        return len(self.density)

    def choose(self, rows: NDArray[np.int64] | NDArray[np.bool_]) -> "PixelSet":
        """Return the pixels at `rows`."""
        return PixelSet(self.density[rows], self.roughness[rows], self.image[rows])


def look_at(images: Sequence[Pixels], candidates: int = CANDIDATES) -> PixelSet:
    """Return pixels on a regular grid over RGB levels (H, W, 3), equally many from each image."""
    share = max(1, candidates // len(images))
    parts = [look_at_image(image, share) for image in images]
    return PixelSet(
        np.concatenate([density for density, _ in parts]),
        np.concatenate([roughness for _, roughness in parts]),
        np.repeat(np.arange(len(images)), [len(density) for density, _ in parts]),
    )


def look_at_image(image: Pixels, most: int) -> tuple[Floats, Floats]:
    """Return the densities (P, VIEWS, 3) and the roughness (P,) of at most about `most` pixels of an image."""
    windows = cut_windows(image, most)
    parts = [look_at_window(window, max(1, most // len(windows))) for window in windows]
    return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])


def cut_windows(image: Pixels, most: int) -> list[Pixels]:
    """Return the image itself, or evenly spaced parts if it has far more pixels than are used."""
    height, width = image.shape[:2]
    if height * width <= 16 * most or min(height, width) < 2 * WINDOW:
        return [image]
    side = max(2, math.ceil(math.sqrt(16 * most) / WINDOW))
    tops = np.linspace(0, height - WINDOW, min(side, height // WINDOW)).astype(int)
    lefts = np.linspace(0, width - WINDOW, min(side, width // WINDOW)).astype(int)
    return [image[top : top + WINDOW, left : left + WINDOW] for top in tops for left in lefts]


def look_at_window(image: Pixels, most: int) -> tuple[Floats, Floats]:
    """Return densities and roughness of a window's pixels on a regular grid."""
    rows, columns = place_grid(image.shape[0], image.shape[1], most)
    density = DENSITY[image]
    darkness = density.mean(2)
    values = np.concatenate([density, np.square(darkness)[..., None]], axis=2)
    sums = sum_corner(values)
    boxes = [average_boxes(sums, rows, columns, reach) for reach in REACHES]
    variance = boxes[ROUGH][:, 3] - np.square(boxes[ROUGH][:, :3].mean(1))
    own = density[np.ix_(rows, columns)].reshape(-1, 3)
    views = np.stack([own, *(box[:, :3] for box in boxes)], axis=1)
    return views.astype(np.float32), np.sqrt(np.maximum(variance, 0)).astype(np.float32)


def place_grid(height: int, width: int, most: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the rows and columns of a regular grid of at most about `most` pixels, at least one, over an image."""
    step = max(1, math.ceil(math.sqrt(height * width / most)))
    return np.arange(min(step // 2, height - 1), height, step), np.arange(min(step // 2, width - 1), width, step)


def sum_corner(values: Floats) -> NDArray[np.float64]:
    """Return the sums (H + 1, W + 1, C) of values (H, W, C) above and to the left of each corner."""
    sums = np.zeros((values.shape[0] + 1, values.shape[1] + 1, values.shape[2]))
    np.cumsum(values, axis=0, out=sums[1:, 1:])
    np.cumsum(sums[1:, 1:], axis=1, out=sums[1:, 1:])
    return sums


def average_boxes(
    sums: NDArray[np.float64], rows: NDArray[np.int64], columns: NDArray[np.int64], reach: int
) -> NDArray[np.float64]:
    """Return the means (P, C) over the boxes around pixels of a grid, clipped at the image's borders."""
    top, bottom = np.maximum(rows - reach, 0), np.minimum(rows + reach + 1, sums.shape[0] - 1)
    left, right = np.maximum(columns - reach, 0), np.minimum(columns + reach + 1, sums.shape[1] - 1)
    total = (
        sums[np.ix_(bottom, right)] - sums[np.ix_(top, right)] - sums[np.ix_(bottom, left)] + sums[np.ix_(top, left)]
    )
    area = (bottom - top)[:, None] * (right - left)
    return np.asarray((total / area[..., None]).reshape(-1, sums.shape[2]))
