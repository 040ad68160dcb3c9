"""The one way from a color to its mapped color, compiled, with the same bits on every machine.

Only additions, multiplications, divisions and square roots of single precision, each rounded by itself and all in the
order in which they are written: no processor may do these differently. Densities come from a table, levels are found
by comparing.

numba keeps what it compiled in a cache, so that only the first call on a machine takes seconds. The cache goes by what
this file says: so the kernel brings no number from elsewhere, but is given them all (`Arguments`).
A file of its own, as importing the compiler takes a while, and most commands never need it.
"""

import numpy as np
from numba import float32, int64, njit, types, uint8, uint32, void
from numpy.typing import NDArray

from bottlegan.colormap.keys import Keys
from bottlegan.colormap.levels import Floats
from bottlegan.colormap.network import Arguments

ZERO, ONE, TWO, THREE = np.float32(0), np.float32(1), np.float32(2), np.float32(3)
KNOWN = np.uint32(255 << 24)
"""Marks a place of a table that holds a color."""


def _can_cache() -> bool:
    """Return whether there is a folder for what is compiled; where none can be written to, numba would not start."""
    try:
        njit(cache=True)(_can_cache)
    except RuntimeError:
        return False
    return True


CACHED = _can_cache()


def _constant(kind: types.Type, dimensions: int) -> types.Array:
    return types.Array(kind, dimensions, "C", readonly=True)


ARGUMENTS = types.NamedTuple(  # type: ignore[no-untyped-call]
    [
        *(_constant(float32, dimensions) for dimensions in (2, 1, 3, 2, 2, 1, 2, 2, 1, 1)),
        _constant(int64, 1),
        _constant(uint32, 2),
        _constant(float32, 1),
    ],
    Arguments,
)
PIXELS = _constant(uint8, 2)
compiled = njit(nogil=True, cache=CACHED, fastmath=False, error_model="numpy")


@compiled
def _ramp(value, low, high):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Return 0 up to `low`, 1 from `high` on, and a smooth way between."""
    share = min(max((value - low) / (high - low), ZERO), ONE)
    return share * share * (THREE - TWO * share)


@compiled
def _weigh_ink(x, given):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Return how far a density is ink: 1, if no mix of the two stains comes near."""
    glass, stains, inverse = given.glass, given.stains, given.inverse
    faint, clear, near, far, green, other = given.limits
    a, b, c = x[0] - glass[0], x[1] - glass[1], x[2] - glass[2]
    strongest = max(a, b, c)
    if strongest <= faint or b >= green * strongest:
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
    return _ramp(strongest, faint, clear) * _ramp(-cosine, -near, -far) * _ramp(-b / strongest, -green, -other)


@compiled
def _add_layers(x, y, hidden, after, given):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Add what the hidden layers make of one density (3,) to `y` (3,); `hidden` and `after` (W,) are scratch."""
    layers, shifts, last = given.layers, given.shifts, given.last
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
def _map_density(x, y, hidden, after, given):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Write what becomes of one density (3,) to `y` (3,)."""
    matrix = given.matrix
    for j in range(3):
        y[j] = given.bias[j] + x[0] * matrix[0, j] + x[1] * matrix[1, j] + x[2] * matrix[2, j]
    if len(given.shifts):
        _add_layers(x, y, hidden, after, given)
    if len(given.stains):
        share = _weigh_ink(x, given)
        if share > ZERO:
            for j in range(3):  # between two colors, so what is beyond white or black is cut off first
                mapped = min(max(y[j], ZERO), given.density[0])
                y[j] = mapped + share * (x[j] - mapped)


@compiled
def _find_level(density, scale, first, edges):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Return the nearest level, looked for from the brightest of its step on, of which there are `scale` a density."""
    if not density > ZERO:
        return np.uint32(255)
    step = density * scale
    if step >= len(first) - 1:
        return np.uint32(0)
    level = first[int(step)]
    while level > 0 and density > edges[level - 1]:
        level -= 1
    return np.uint32(level)


@njit(int64(uint32[::1], PIXELS, uint8[:, ::1], int64[::1], _constant(uint32, 2)), nogil=True, cache=CACHED)
def look_up(
    table: Keys, pixels: NDArray[np.uint8], output: NDArray[np.uint8], unknown: NDArray[np.int64], keys: Keys
) -> int:  # pragma: no cover
    """Write what the table has for pixels (N, 3) to `output` (N, 3), and to `unknown` (N,) which it has nothing for.

    Apart from `map_pixels`, as what has to fit into one loop with a network is four times slower. Returns their number.
    """
    count = 0
    for i in range(len(pixels)):
        entry = table[keys[0, pixels[i, 0]] | keys[1, pixels[i, 1]] | keys[2, pixels[i, 2]]]
        unknown[count] = i
        count += entry == 0
        output[i, 0] = entry & 255
        output[i, 1] = entry >> 8 & 255
        output[i, 2] = entry >> 16 & 255
    return count


@njit(
    void(uint32[::1], int64[::1], PIXELS, uint8[:, ::1], ARGUMENTS),
    nogil=True,
    cache=CACHED,
    fastmath=False,
    error_model="numpy",
)
def map_pixels(
    table: Keys, chosen: NDArray[np.int64], pixels: NDArray[np.uint8], output: NDArray[np.uint8], given: Arguments
) -> None:  # pragma: no cover
    """Write what becomes of the `chosen` of pixels (N, 3) to `output` (N, 3), and to the table, unless that is empty.

    Threads that put the same color there at the same time write the same number in one piece.
    """
    width, remembers, keys = given.shifts.shape[1], len(table) > 0, given.keys
    x, y = np.empty(3, np.float32), np.empty(3, np.float32)
    hidden, after = np.empty(width, np.float32), np.empty(width, np.float32)
    first, edges = given.first, given.edges
    scale = np.float32(len(first) - 1) / given.density[0]
    key = entry = np.uint32(0)
    for i in chosen:
        if remembers:  # another pixel of the same color may have come before
            key = keys[0, pixels[i, 0]] | keys[1, pixels[i, 1]] | keys[2, pixels[i, 2]]
            entry = table[key]
        if entry == 0:
            for j in range(3):
                x[j] = given.density[pixels[i, j]]
            _map_density(x, y, hidden, after, given)
            red = _find_level(y[0], scale, first, edges)
            green = _find_level(y[1], scale, first, edges)
            blue = _find_level(y[2], scale, first, edges)
            entry = red | green << np.uint32(8) | blue << np.uint32(16) | KNOWN
            if remembers:
                table[key] = entry
        output[i, 0] = entry & 255
        output[i, 1] = entry >> 8 & 255
        output[i, 2] = entry >> 16 & 255
        entry = np.uint32(0)


@njit(
    void(_constant(float32, 2), float32[:, ::1], ARGUMENTS),
    nogil=True,
    cache=CACHED,
    fastmath=False,
    error_model="numpy",
)
def map_densities(densities: Floats, output: Floats, given: Arguments) -> None:  # pragma: no cover
    """Write what becomes of densities (N, 3), which need not be those of levels, to `output` (N, 3)."""
    width = given.shifts.shape[1]
    hidden, after = np.empty(width, np.float32), np.empty(width, np.float32)
    for i in range(len(densities)):
        _map_density(densities[i], output[i], hidden, after, given)
