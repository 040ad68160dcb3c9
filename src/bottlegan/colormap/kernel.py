"""The one way from a color to its mapped color, compiled, with the same bits on every machine.

Only additions, multiplications, divisions and square roots of single precision, each rounded by itself and all in the
order in which they are written: no processor may do these differently. Densities come from a table, levels are found
by comparing. numba keeps what it compiled in a cache, so that only the first call on a machine takes seconds.

A file of its own, as importing the compiler takes a while, and most commands never need it.
"""

import numpy as np
from numba import float32, int64, njit, types, uint8, uint32, void
from numpy.typing import NDArray

from bottlegan.colormap.keys import BLUE, GREEN, KNOWN, RED
from bottlegan.colormap.levels import DENSITY, EDGES, FIRST, STEPS, Floats
from bottlegan.colormap.limits import FAINT, FAR, NEAR

ZERO, ONE, TWO, THREE = np.float32(0), np.float32(1), np.float32(2), np.float32(3)
BLACK = DENSITY[0]
STEP = np.float32(STEPS / float(DENSITY[0]))


def _can_cache() -> bool:
    """Return whether there is a folder for what is compiled; where none can be written to, numba would not start."""
    try:
        njit(cache=True)(_can_cache)
    except RuntimeError:
        return False
    return True


CACHED = _can_cache()


def _constant(dimensions: int) -> types.Array:
    return types.Array(float32, dimensions, "C", readonly=True)


NETWORK = (
    _constant(2),
    _constant(1),
    _constant(3),
    _constant(2),
    _constant(2),
    _constant(1),
    _constant(2),
    _constant(2),
)
"""The arrays of `ColorNetwork.arguments`."""
PIXELS = types.Array(uint8, 2, "C", readonly=True)
compiled = njit(nogil=True, cache=CACHED, fastmath=False, error_model="numpy")


@compiled
def _ramp(value, low, high):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Return 0 up to `low`, 1 from `high` on, and a smooth way between."""
    share = min(max((value - low) / (high - low), ZERO), ONE)
    return share * share * (THREE - TWO * share)


@compiled
def _weigh_ink(x, glass, stains, inverse):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Return how far a density is ink: 1, if no mix of the two stains comes near."""
    a, b, c = x[0] - glass[0], x[1] - glass[1], x[2] - glass[2]
    strongest = max(a, b, c)
    if strongest <= FAINT[0]:
        return ZERO
    hematoxylin = a * inverse[0, 0] + b * inverse[0, 1] + c * inverse[0, 2]
    eosin = a * inverse[1, 0] + b * inverse[1, 1] + c * inverse[1, 2]
    if hematoxylin < ZERO or eosin < ZERO:  # then the nearest mix is the nearer stain alone
        along = a * stains[0, 0] + b * stains[0, 1] + c * stains[0, 2]
        across = a * stains[1, 0] + b * stains[1, 1] + c * stains[1, 2]
        hematoxylin, eosin = (ONE, ZERO) if along >= across else (ZERO, ONE)
    p = hematoxylin * stains[0, 0] + eosin * stains[1, 0]
    q = hematoxylin * stains[0, 1] + eosin * stains[1, 1]
    r = hematoxylin * stains[0, 2] + eosin * stains[1, 2]
    length = np.sqrt((a * a + b * b + c * c) * (p * p + q * q + r * r))
    if length <= ZERO:
        return ZERO
    cosine = (a * p + b * q + c * r) / length
    return _ramp(strongest, FAINT[0], FAINT[1]) * _ramp(-cosine, -NEAR, -FAR)


@compiled
def _add_layers(x, y, hidden, after, layers, shifts, last):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Add what the hidden layers make of one density (3,) to `y` (3,); `hidden` and `after` (W,) are scratch."""
    depth, width = shifts.shape
    for layer in range(depth):
        for j in range(width):
            after[j] = shifts[layer, j]
        for i in range(3 if layer == 0 else width):
            value = x[i] if layer == 0 else hidden[i]
            for j in range(width):  # each sum keeps its order, however many are calculated at once
                after[j] += value * layers[layer, i, j]
        for j in range(width):
            hidden[j] = max(after[j], ZERO)
    for i in range(width):
        for j in range(3):
            y[j] += hidden[i] * last[i, j]


@compiled
def _map_density(x, y, hidden, after, matrix, bias, layers, shifts, last, glass, stains, inverse):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Write what becomes of one density (3,) to `y` (3,)."""
    for j in range(3):
        y[j] = bias[j] + x[0] * matrix[0, j] + x[1] * matrix[1, j] + x[2] * matrix[2, j]
    if len(shifts):
        _add_layers(x, y, hidden, after, layers, shifts, last)
    if len(stains):
        share = _weigh_ink(x, glass, stains, inverse)
        if share > ZERO:
            for j in range(3):  # between two colors, so what is beyond white or black is cut off first
                mapped = min(max(y[j], ZERO), BLACK)
                y[j] = mapped + share * (x[j] - mapped)


@compiled
def _find_level(density):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Return the nearest level."""
    if not density > ZERO:
        return 255
    step = density * STEP
    if step >= STEPS:
        return 0
    level = FIRST[int(step)]
    while level > 0 and density > EDGES[level - 1]:
        level -= 1
    return level


@njit(int64(uint32[::1], PIXELS, uint8[:, ::1], int64[::1]), nogil=True, cache=CACHED)
def look_up(
    table: NDArray[np.uint32], pixels: NDArray[np.uint8], output: NDArray[np.uint8], unknown: NDArray[np.int64]
) -> int:  # pragma: no cover
    """Write what the table has for pixels (N, 3) to `output` (N, 3), and to `unknown` (N,) which it has nothing for.

    Apart from `map_pixels`, as what has to fit into one loop with a network is four times slower. Returns their number.
    """
    count = 0
    for i in range(len(pixels)):
        entry = table[RED[pixels[i, 0]] | GREEN[pixels[i, 1]] | BLUE[pixels[i, 2]]]
        unknown[count] = i
        count += entry == 0
        output[i, 0] = entry & 255
        output[i, 1] = entry >> 8 & 255
        output[i, 2] = entry >> 16 & 255
    return count


@njit(
    void(uint32[::1], int64[::1], PIXELS, uint8[:, ::1], *NETWORK),
    nogil=True,
    cache=CACHED,
    fastmath=False,
    error_model="numpy",
)
def map_pixels(
    table: NDArray[np.uint32],
    chosen: NDArray[np.int64],
    pixels: NDArray[np.uint8],
    output: NDArray[np.uint8],
    matrix: Floats,
    bias: Floats,
    layers: Floats,
    shifts: Floats,
    last: Floats,
    glass: Floats,
    stains: Floats,
    inverse: Floats,
) -> None:  # pragma: no cover
    """Write what becomes of the `chosen` of pixels (N, 3) to `output` (N, 3), and to the table, unless that is empty.

    Threads that put the same color there at the same time write the same number in one piece.
    """
    width, remembers = shifts.shape[1], len(table) > 0
    x, y = np.empty(3, np.float32), np.empty(3, np.float32)
    hidden, after = np.empty(width, np.float32), np.empty(width, np.float32)
    for i in chosen:
        for j in range(3):
            x[j] = DENSITY[pixels[i, j]]
        _map_density(x, y, hidden, after, matrix, bias, layers, shifts, last, glass, stains, inverse)
        for j in range(3):
            output[i, j] = _find_level(y[j])
        if remembers:
            red, green, blue = np.uint32(output[i, 0]), np.uint32(output[i, 1]), np.uint32(output[i, 2])
            key = RED[pixels[i, 0]] | GREEN[pixels[i, 1]] | BLUE[pixels[i, 2]]
            table[key] = red | green << np.uint32(8) | blue << np.uint32(16) | KNOWN


@njit(void(_constant(2), float32[:, ::1], *NETWORK), nogil=True, cache=CACHED, fastmath=False, error_model="numpy")
def map_densities(
    densities: Floats,
    output: Floats,
    matrix: Floats,
    bias: Floats,
    layers: Floats,
    shifts: Floats,
    last: Floats,
    glass: Floats,
    stains: Floats,
    inverse: Floats,
) -> None:  # pragma: no cover
    """Write what becomes of densities (N, 3), which need not be those of levels, to `output` (N, 3)."""
    width = shifts.shape[1]
    hidden, after = np.empty(width, np.float32), np.empty(width, np.float32)
    for i in range(len(densities)):
        _map_density(densities[i], output[i], hidden, after, matrix, bias, layers, shifts, last, glass, stains, inverse)
