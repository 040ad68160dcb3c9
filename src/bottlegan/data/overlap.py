"""Patches that partly show the same tissue, found by phase correlation.

Patches cut from one slide may overlap. A network that is trained on one of them must not be tested on the other.
"""

from collections.abc import Mapping
from itertools import combinations

import numpy as np
import scipy.fft
from numpy.typing import NDArray

from bottlegan.core.errors import InputError
from bottlegan.imaging.files import Pixels

SHRINK = 4
"""Reduction of the images: shifts are still found, in a fraction of the time."""
PEAK = 0.05
"""Least height of a peak for its shift to be checked; 1 means the same patch. Unrelated tissue stays below .04."""
ALIKE = 0.5
"""Least correlation of the shared part at that shift for it to be the same tissue; unrelated tissue is below .3."""
LEAST = 0.02
"""Least share of a patch that must overlap."""


def find_overlaps(images: Mapping[str, Pixels]) -> list[tuple[str, str]]:
    """Return the pairs of names whose images (H, W, 3), all of the same size, overlap; the earlier name comes first."""
    if len({image.shape for image in images.values()}) > 1:
        raise InputError("patches of different sizes cannot be compared; cut all to the same size")
    names, small = list(images), [shrink(image) for image in images.values()]
    spectra = [whiten(image) for image in small]
    return [
        (names[row], names[other])
        for row, other in combinations(range(len(names)), 2)
        if share_tissue(small[row], small[other], spectra[row] * spectra[other].conj())
    ]


def shrink(image: Pixels) -> NDArray[np.float32]:
    """Return an image (H, W, 3) in gray, reduced by SHRINK, with mean 0."""
    height, width = (side // SHRINK * SHRINK for side in image.shape[:2])
    gray = image[:height, :width].astype(np.float32).mean(axis=2)
    blocks = gray.reshape(height // SHRINK, SHRINK, width // SHRINK, SHRINK).mean(axis=(1, 3))
    return blocks - blocks.mean()


def whiten(image: NDArray[np.float32]) -> NDArray[np.complex64]:
    """Return the phases of an image's spectrum, padded so that no shift wraps around."""
    spectrum = scipy.fft.rfft2(image, s=tuple(2 * side for side in image.shape))
    return spectrum / (np.abs(spectrum) + 1e-6)


def share_tissue(one: NDArray[np.float32], other: NDArray[np.float32], phases: NDArray[np.complex64]) -> bool:
    """Return whether two images show the same tissue at their likeliest shift, which `phases` determine."""
    surface = scipy.fft.irfft2(phases, s=tuple(2 * side for side in one.shape))
    best = int(surface.argmax())
    if surface.flat[best] < PEAK:
        return False
    place = np.unravel_index(best, surface.shape)
    shifts = [int(at) - 2 * side if at > side else int(at) for at, side in zip(place, one.shape, strict=True)]
    first = tuple(slice(max(0, by), min(side, side + by)) for by, side in zip(shifts, one.shape, strict=True))
    second = tuple(slice(part.start - by, part.stop - by) for part, by in zip(first, shifts, strict=True))
    a, b = one[first].ravel(), other[second].ravel()
    if a.size < LEAST * one.size or min(a.std(), b.std()) == 0:
        return False
    return bool(np.corrcoef(a, b)[0, 1] > ALIKE)
