"""The 256 levels of a channel as optical densities, and back, identical to the bit on every machine.

A library's logarithm may differ in its last bit between machines. Here each is rounded from double to single precision,
and none lies so close to the middle between two single-precision numbers that a last bit would matter.
"""

import math

import numpy as np
from numpy.typing import NDArray

from bottlegan.imaging.files import Pixels

Floats = NDArray[np.float32]

DENSITY: Floats = np.array([-math.log((level + 1) / 256) for level in range(256)], np.float32)
"""Optical density of each level: white is 0, black 5.545."""
EDGES: Floats = np.array([-math.log((level + 1.5) / 256) for level in range(255)], np.float32)
"""Optical density of the edge between each level and the next brighter one. Anything less dense is brighter."""
STEPS = 1024
"""Number of steps of `FIRST` from white to black: as fine as the levels where they are finest."""
FIRST: NDArray[np.int64] = np.searchsorted(-EDGES, -np.arange(STEPS + 1) * (float(DENSITY[0]) / STEPS), side="right")
"""The brightest level in each step of density."""


def to_levels(density: Floats) -> Pixels:
    """Return densities of any shape as the nearest levels. Anything brighter than white becomes white."""
    return np.searchsorted(-EDGES, -density, side="right").astype(np.uint8)
