"""Compiled loops that draw a tile of a synthetic slide: they visit each pixel once and run beside other threads.

They have a file of their own, because importing the compiler takes a while and most commands never need it. Tissue is
a wall of cells, each of which shows one patch. Odd rows start half a cell to the left. Borders between cells are bent,
and cells fade into one another.
"""

import numpy as np
from numba import float32, float64, int64, njit, types, uint8
from numpy.typing import NDArray

from bottlegan.simulation.tissue_parts import Field

PITCH, MARGIN = 512, 192
"""Pixels from cell to cell, and of the patch beyond its cell, which bent borders show."""
FADE = 10
"""Pixels on each side of a border where two cells are mixed."""
DICE = 6
"""Random bytes per pixel: one for each layer of color, then one for each channel."""

HALF, ZERO, ONE = np.float32(0.5), np.float32(0), np.float32(1)


@njit(
    types.void(float32[:, ::1], float32[:, ::1], float32[:, ::1], float64, float64, float64, int64, int64), nogil=True
)
def cover(  # noqa: PLR0917 - compiled functions have no keyword-only arguments
    output: Field, chart: Field, ripple: Field, scale: float, swing: float, soft: float, top: int, left: int
) -> None:  # pragma: no cover
    """Write how much of each pixel a chart's tissue or pen covers, from 0 to 1.

    Args:
        output: (H, W) of the tile.
        chart: (N, N) distance from the edge in cells, positive inside; linear between the middles of cells.
        ripple: (P, P) by which the edge is rough, periodic; P is a power of two.
        scale: Pixels of a cell of the chart.
        swing: Pixels of a ripple of 1.
        soft: Pixels from the edge to where all is covered.
        top: First row of the tile.
        left: First column of the tile.
    """
    last, wrap = len(chart) - 1, len(ripple) - 1
    for y in range(output.shape[0]):
        row = min(max((top + y + 0.5) / scale - 0.5, 0.0), float(last))
        upper = int(row)
        lower, down = min(upper + 1, last), row - upper
        for x in range(output.shape[1]):
            column = min(max((left + x + 0.5) / scale - 0.5, 0.0), float(last))
            near = int(column)
            far, right = min(near + 1, last), column - near
            above = chart[upper, near] + right * (chart[upper, far] - chart[upper, near])
            below = chart[lower, near] + right * (chart[lower, far] - chart[lower, near])
            depth = scale * (above + down * (below - above)) + swing * ripple[(top + y) & wrap, (left + x) & wrap]
            output[y, x] = min(max(depth / soft, 0.0), 1.0)


@njit(float32(float32), nogil=True)
def _share(inside: np.float32) -> np.float32:  # pragma: no cover
    """Return how much of a cell shows at a distance from its first border: one half at the border."""
    return min(max(HALF + HALF * min(inside, np.float32(PITCH) - inside) / np.float32(FADE), ZERO), ONE)


@njit(
    types.void(
        float32[:, :, ::1],
        float32[:, ::1],
        int64[:, :, ::1],
        float32[:, :, ::1],
        float32[:, ::1],
        int64,
        int64,
        int64,
        int64,
    ),
    nogil=True,
)
def lay(  # noqa: PLR0917 - compiled functions have no keyword-only arguments
    output: Field,
    patches: Field,
    cells: NDArray[np.int64],
    bend: Field,
    thickness: Field,
    top: int,
    left: int,
    first_row: int,
    first_column: int,
) -> None:  # pragma: no cover
    """Write the stains of tissue to the first two layers of a tile.

    Args:
        output: (H, W, layers) of the tile; must be 0.
        patches: (N, 2) concentrations of all pixels of all patches.
        cells: (rows, columns, 3) around the tile: the first pixel, and the distances to the next below and beside it.
        bend: (2, P, P) pixels by which borders are bent, periodic; P is a power of 2.
        thickness: (H, W) of the tissue; 0 where there is none.
        top: First row of the tile.
        left: First column of the tile.
        first_row: First row of the wall in `cells`.
        first_column: First column of the wall in `cells`.
    """
    wrap, fade, inverse = bend.shape[1] - 1, np.float32(FADE), np.float32(1 / PITCH)
    down, right = top - first_row * PITCH, left - first_column * PITCH
    for y in range(output.shape[0]):
        bend_down, bend_right = bend[0, (top + y) & wrap], bend[1, (top + y) & wrap]
        for x in range(output.shape[1]):
            if thickness[y, x] == 0:
                continue
            row = np.float32(down + y) + bend_down[(left + x) & wrap]
            column = np.float32(right + x) + bend_right[(left + x) & wrap]
            # The cells that show here: one, two beside a border, three where borders meet.
            upper, lower = int((row - fade) * inverse), int((row + fade) * inverse)
            for i in range(upper, lower + 1):
                part = thickness[y, x] * (ONE if upper == lower else _share(row - np.float32(i * PITCH)))
                shift = (first_row + i) % 2 * (PITCH // 2)
                place = column + np.float32(shift)
                near, far = int((place - fade) * inverse), int((place + fade) * inverse)
                for j in range(near, far + 1):
                    share = part * (ONE if near == far else _share(place - np.float32(j * PITCH)))
                    pixel = cells[i, j, 0] + cells[i, j, 1] * (down + y - i * PITCH + MARGIN)
                    pixel += cells[i, j, 2] * (right + x + shift - j * PITCH + MARGIN)
                    output[y, x, 0] += share * patches[pixel, 0]
                    output[y, x, 1] += share * patches[pixel, 1]


@njit(
    uint8[:, :, ::1](
        float32[:, :, ::1], float32[:, ::1], float32[:, ::1], types.Array(uint8, 3, "C", readonly=True), float32[:, ::1]
    ),
    nogil=True,
)
def develop(
    layers: Field, densities: Field, curve: Field, dice: NDArray[np.uint8], noise: Field
) -> NDArray[np.uint8]:  # pragma: no cover
    """Return layers of color as a scanner sees them, (H, W, 3) levels.

    Args:
        layers: (H, W, 3) concentrations.
        densities: (4, 3) optical density of each layer at concentration 1, and of bare glass, in steps of the curve.
        curve: (3, K) level of each channel by optical density.
        dice: (H, W, DICE) random bytes.
        noise: (2, 256) the factor of a concentration and the addition to a level, by random byte.
    """
    height, width = layers.shape[:2]
    output = np.empty((height, width, 3), np.uint8)
    last = np.float32(curve.shape[1] - 1)
    for y in range(height):
        for x in range(width):
            one = layers[y, x, 0] * noise[0, dice[y, x, 0]]
            two = layers[y, x, 1] * noise[0, dice[y, x, 1]]
            three = layers[y, x, 2] * noise[0, dice[y, x, 2]]
            for channel in range(3):
                density = one * densities[0, channel] + two * densities[1, channel] + three * densities[2, channel]
                level = curve[channel, np.uint32(min(density + densities[3, channel] + HALF, last))]
                level += noise[1, dice[y, x, 3 + channel]]
                output[y, x, channel] = np.uint8(min(max(level + HALF, ZERO), np.float32(255)))
    return output
