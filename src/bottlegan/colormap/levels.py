"""The 256 levels of a channel as optical densities, and back, with the same bits on every machine.

A library's logarithm may differ in its last bit from one machine to the next. Here each is rounded from double to
single precision, and none lies so close to the middle between two such numbers that a last bit would decide.
"""

import math

import numpy as np
from numpy.typing import NDArray

from bottlegan.imaging.files import Pixels

Floats = NDArray[np.float32]

DENSITY: Floats = np.array([-math.log((level + 1) / 256) for level in range(256)], np.float32)
"""Of each level: white is 0, black 5.545."""
EDGES: Floats = np.array([-math.log((level + 1.5) / 256) for level in range(255)], np.float32)
"""Between each level and the next brighter one: what is less dense is at least the brighter one."""
STEPS = 1024
"""Steps from white to black in which `FIRST` counts: as fine as the levels where these are finest."""
FIRST: NDArray[np.int64] = np.searchsorted(-EDGES, -np.arange(STEPS + 1) * (float(DENSITY[0]) / STEPS), side="right")
"""The brightest level at the beginning of each step of density."""


def to_levels(density: Floats) -> Pixels:
    """Return densities of any shape as the nearest levels; what is brighter than white is white."""
    return np.searchsorted(-EDGES, -density, side="right").astype(np.uint8)
