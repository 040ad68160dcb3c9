"""The loops of a color table, compiled: they touch each pixel once, and run beside other Python threads.

A file of its own, as importing the compiler takes a while, and most commands never need it.
"""

import numpy as np
from numba import int64, njit, types, uint8, uint32
from numpy.typing import NDArray

from bottlegan.colormap.table import BLUE, GREEN, RED

PIXELS = types.Array(uint8, 2, "C", readonly=True)
"""(N, 3) that may be, but need not be, writable."""


@njit(int64(uint32[::1], PIXELS, uint8[:, ::1], int64[::1]), nogil=True)
def look_up(
    table: NDArray[np.uint32], pixels: NDArray[np.uint8], output: NDArray[np.uint8], unknown: NDArray[np.int64]
) -> int:  # pragma: no cover
    """Write what the table has for pixels (N, 3) to `output` (N, 3), and return how many it has nothing for.

    Which those are is written to `unknown`, as far as it reaches.
    """
    count = 0
    for i in range(len(pixels)):
        entry = table[RED[pixels[i, 0]] | GREEN[pixels[i, 1]] | BLUE[pixels[i, 2]]]
        if entry == 0:
            if count < len(unknown):
                unknown[count] = i
            count += 1
        output[i, 0] = entry & 255
        output[i, 1] = entry >> 8 & 255
        output[i, 2] = entry >> 16 & 255
    return count


@njit(nogil=True)  # compiled when it is first called: only large images need it
def find_new(
    table: NDArray[np.uint32], pixels: NDArray[np.uint8], seen: NDArray[np.bool_]
) -> NDArray[np.uint32]:  # pragma: no cover
    """Return the colors of pixels (N, 3) that the table has nothing for, each once; `seen` must be all false."""
    found = np.empty(len(pixels), np.uint32)
    count = 0
    for i in range(len(pixels)):
        key = RED[pixels[i, 0]] | GREEN[pixels[i, 1]] | BLUE[pixels[i, 2]]
        if table[key] == 0 and not seen[key]:
            seen[key] = True
            found[count] = key
            count += 1
    return found[:count].copy()
