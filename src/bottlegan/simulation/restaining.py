"""Restaining by Macenko's method: how the paper makes its artificial styles, patch by patch.

The method finds the two stains of a patch, takes the 99th percentile of each as strong, and mixes the amounts in these
units with the stains of another lab. So whatever tissue a patch shows, its strong stain equals that of any other patch,
and some pixels lie beyond either stain. No real lab is like that.
"""

import numpy as np
from numpy.typing import NDArray

from bottlegan.stain.style import REFERENCE, list_stains

Floats = NDArray[np.float32]

STRONG = 99.0
"""Percentile of a patch's pixels at which a stain counts as strong, 1."""
TAIL = 1.0
"""Percentile of the hues of tissue, from either end, that give the stains."""
PALE = 0.15
"""Density of the palest channel up to which a pixel is not tissue."""
LEAST_TISSUE = 200
"""Number of pixels of tissue below which no stains are sought."""
TARGET = np.array([[1.332, 1.819, 0.913], [0.210, 1.240, 0.723]])
"""(2, 3) densities of strong hematoxylin and eosin that the method aims at. It finds them in the one published image of
the reference laboratory. `REFERENCE` holds those that our own, more robust variant finds."""
TO_REFERENCE = TARGET @ np.linalg.pinv(list_stains(REFERENCE))
"""(2, 2) the same as amounts of the reference stain."""


def restain_patches(amounts: Floats) -> Floats:
    """Return amounts (N, 2, H, W) of hematoxylin and eosin after Macenko's method has brought each patch to its target.

    A patch without enough tissue, or of one stain only, stays as it is.
    """
    return np.stack([_restain(patch) for patch in amounts])


def _restain(patch: Floats) -> Floats:
    density = patch.reshape(2, -1).T.astype(np.float64) @ list_stains(REFERENCE)
    tissue = density[density.min(axis=1) > PALE]
    if len(tissue) < LEAST_TISSUE:
        return patch
    plane = np.linalg.eigh(np.cov(tissue.T))[1][:, 1:].T
    plane *= np.where(plane.sum(axis=1, keepdims=True) < 0, -1, 1)
    along, across = (tissue @ plane[::-1].T).T
    tails = np.percentile(np.arctan2(across, along), [TAIL, 100 - TAIL])
    stains = np.stack([np.cos(tails), np.sin(tails)], axis=1) @ plane[::-1]
    if stains[0, 0] < stains[1, 0]:  # hematoxylin takes more of the red light
        stains = stains[::-1]
    found = density @ np.linalg.pinv(stains)
    strong = np.percentile(found, STRONG, axis=0)
    if not (strong > 0.05).all() or np.linalg.cond(stains) > 30:
        return patch
    return np.asarray((found / strong @ TO_REFERENCE).T.reshape(patch.shape), np.float32)
