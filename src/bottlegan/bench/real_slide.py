"""Glass on a real slide: whether a method adds halos around tissue, and how it changes noise."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy import ndimage
from skimage.color import rgb2lab

from bottlegan.bench.real_colors import Mask, find_glass
from bottlegan.bench.real_methods import LabMethod, apply
from bottlegan.data.real import read_whole
from bottlegan.imaging.files import Pixels

NEAR = (8, 40)
"""Range of distances, in pixels, of glass near tissue."""
FAR = 120
"""Smallest distance, in pixels, of glass far from tissue."""
LEAST_TISSUE = 400
"""Fewest pixels of a connected piece that is not dust."""


@dataclass(frozen=True)
class Glass:
    """A slide, read whole, with masks of its glass."""

    path: Path
    image: Pixels
    near: Mask
    """Glass near tissue, (H, W) bool."""
    far: Mask
    """Glass far from tissue, (H, W) bool."""


def read_glass(path: Path) -> Glass:
    """Read a slide and divide its glass by distance from tissue. Everything but glass and dust is tissue."""
    image = read_whole(path)
    glass = find_glass(rgb2lab(image))
    pieces, _ = ndimage.label(~glass)
    sizes = np.bincount(pieces.ravel())
    sizes[0] = 0  # which is the glass
    distance = ndimage.distance_transform_edt(sizes[pieces] < LEAST_TISSUE)
    return Glass(path, image, glass & (distance >= NEAR[0]) & (distance <= NEAR[1]), glass & (distance > FAR))


def measure_glass(method: LabMethod, glass: Glass) -> dict[str, float]:
    """Return figures of the glass before and after mapping, in levels.

    The halo is the largest difference over channels between the mean colors of glass near and far from tissue: of the
    slide as it is written, where a method has a way of its own to do that, and of its map alone, applied to all pixels.
    Noise is the standard deviation of far glass, the root of its mean square over channels, of the map alone.
    """
    mapped, _ = apply(method.fit([glass.path]), glass.image)
    written = mapped if method.write_slide is None else method.write_slide(glass.path)
    before, after = measure_halo(glass.image, glass), measure_halo(written, glass)
    return {
        "halo before": before,
        "halo after": after,
        "halo added": after - before,
        "halo of the map alone": measure_halo(mapped, glass),
        "noise before": measure_noise(glass.image, glass),
        "noise after": measure_noise(mapped, glass),
    }


def measure_halo(image: Pixels, glass: Glass) -> float:
    """Return the largest difference, in levels, between the mean colors of glass near and far from tissue."""
    if not (glass.near.any() and glass.far.any()):
        return 0.0
    return float(np.abs(image[glass.near].mean(0) - image[glass.far].mean(0)).max())


def measure_noise(image: Pixels, glass: Glass) -> float:
    """Return the standard deviation of glass far from tissue, in levels."""
    return float(np.sqrt(image[glass.far].var(axis=0).mean())) if glass.far.any() else 0.0
