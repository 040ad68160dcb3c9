"""The compiled loop that makes a level of a pyramid from the one below. It runs in parallel with Python threads.

It has its own file because importing the compiler takes a while, and most commands never need it.
"""

import numpy as np
from numba import njit, types, uint8
from numpy.typing import NDArray

LEVELS = types.Array(uint8, 3, "C", readonly=True)
"""(H, W, 3), writable or not."""


@njit(uint8[:, :, ::1](LEVELS), nogil=True, cache=True)
def halve(levels: NDArray[np.uint8]) -> NDArray[np.uint8]:  # pragma: no cover
    """Return levels (H, W, 3) at half the size, rounded up: means of 2 x 2 pixels, or of fewer at the edges."""
    height, width = levels.shape[0], levels.shape[1]
    output = np.empty(((height + 1) // 2, (width + 1) // 2, 3), np.uint8)
    for y in range(output.shape[0]):
        upper, lower = levels[2 * y], levels[min(2 * y + 1, height - 1)]
        for x in range(output.shape[1]):
            left, right = 2 * x, min(2 * x + 1, width - 1)
            for channel in range(3):
                total = np.uint32(upper[left, channel]) + np.uint32(upper[right, channel])
                total += np.uint32(lower[left, channel]) + np.uint32(lower[right, channel])
                output[y, x, channel] = (total + 2) >> 2
    return output
