"""The only way from a color to its mapped color: compiled, and identical to the bit on every machine.

The kernel uses only additions, multiplications, divisions and square roots in single precision. Each is rounded by
itself, in the order written here, so no processor may compute them differently. Densities come from a table, and levels
are found by comparison.

numba caches what it compiled, so only the first call on a machine takes seconds. The cache depends only on this file's
content. Constants from other files would therefore go stale, so the kernel receives every number in `Arguments`. It has
its own file because importing the compiler takes a while, and most commands never need it.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numba import float32, int64, njit, types, uint8, uint32, void
from numba.core.runtime.nrt import rtsys
from numpy.typing import NDArray

from bottlegan.colormap.keys import Keys
from bottlegan.colormap.levels import Floats
from bottlegan.colormap.network import Arguments

ZERO, ONE, TWO, THREE = np.float32(0), np.float32(1), np.float32(2), np.float32(3)
KNOWN = np.uint32(255 << 24)
"""Marks an entry of the table that is filled."""


def _can_cache() -> bool:
    """Return whether there is a writable folder for compiled code; without one, numba would not start."""
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


def _ready(signature: Any) -> Callable[[Callable[..., Any]], Any]:
    """Compile a function for one signature, or load it if it was compiled before."""

    def prepare(function: Callable[..., Any]) -> Any:
        dispatcher: Any = compiled(function)
        cache = dispatcher._cache
        if hasattr(cache, "_load_overload"):
            cache.load_overload = partial(_load, cache)
        dispatcher.compile(signature)
        dispatcher.disable_compile()
        return dispatcher

    return prepare


def _load(cache: Any, signature: Any, context: Any) -> Any:
    """Load compiled code, or return None if there is none. In place of numba's own `load_overload`.

    That first imports all that numba can compile, which takes five times longer than loading. To compile, numba imports
    it anyway.
    """
    rtsys.initialize(context)
    with cache._guard_against_spurious_io_errors():
        return cache._load_overload(signature, context)


@compiled
def _ramp(value, low, high):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Return 0 up to `low`, 1 from `high` on, and a smooth transition between."""
    share = min(max((value - low) / (high - low), ZERO), ONE)
    return share * share * (THREE - TWO * share)


@compiled
def _weigh_ink(x, arguments):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Return how far a density is ink: 1 if no mixture of the two stains comes near."""
    glass, stains, inverse = arguments.glass, arguments.stains, arguments.inverse
    faint, clear, near, far, green, other = arguments.limits
    a, b, c = x[0] - glass[0], x[1] - glass[1], x[2] - glass[2]
    strongest = max(a, b, c)
    if strongest <= faint or b >= green * strongest:
        return ZERO
    hematoxylin = a * inverse[0, 0] + b * inverse[0, 1] + c * inverse[0, 2]
    eosin = a * inverse[1, 0] + b * inverse[1, 1] + c * inverse[1, 2]
    if hematoxylin < ZERO or eosin < ZERO:  # the nearest mixture is then the nearer stain alone
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
def _add_layers(x, y, hidden, after, arguments):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Add the hidden layers' output for one density (3,) to `y` (3,); `hidden` and `after` (W,) are scratch space."""
    layers, shifts, last = arguments.layers, arguments.shifts, arguments.last
    depth, width = shifts.shape
    for layer in range(depth):
        for j in range(width):
            after[j] = shifts[layer, j]
        for i in range(3 if layer == 0 else width):
            value = x[i] if layer == 0 else hidden[i]
            for j in range(width):  # each sum keeps its order, even when several are vectorized
                after[j] += value * layers[layer, i, j]
        for j in range(width):
            hidden[j] = max(after[j], ZERO)
    for i in range(width):
        for j in range(3):
            y[j] += hidden[i] * last[i, j]


@compiled
def _map_density(x, y, hidden, after, arguments):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Write the mapped density (3,) of one density to `y` (3,)."""
    matrix = arguments.matrix
    for j in range(3):
        y[j] = arguments.bias[j] + x[0] * matrix[0, j] + x[1] * matrix[1, j] + x[2] * matrix[2, j]
    if len(arguments.shifts):
        _add_layers(x, y, hidden, after, arguments)
    if len(arguments.stains):
        share = _weigh_ink(x, arguments)
        if share > ZERO:
            for j in range(3):  # clipped first, because this blends two colors
                mapped = min(max(y[j], ZERO), arguments.density[0])
                y[j] = mapped + share * (x[j] - mapped)


@compiled
def _find_level(density, scale, first, edges):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Return the nearest level, starting the search at the brightest level of its step (`scale` steps per density)."""
    if not density > ZERO:
        return np.uint32(255)
    step = density * scale
    if step >= len(first) - 1:
        return np.uint32(0)
    level = first[int(step)]
    while level > 0 and density > edges[level - 1]:
        level -= 1
    return np.uint32(level)


@_ready(int64(uint32[::1], PIXELS, uint8[:, ::1], int64[::1], _constant(uint32, 2)))
def look_up(
    table: Keys, pixels: NDArray[np.uint8], output: NDArray[np.uint8], unknown: NDArray[np.int64], keys: Keys
) -> int:  # pragma: no cover
    """Write the table's entries for pixels (N, 3) to `output` (N, 3), and the pixels without entry to `unknown` (N,).

    Returns the number of pixels without an entry. This is separate from `map_pixels` because a single loop that also
    contains the network is four times slower.
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


@_ready(void(uint32[::1], int64[::1], PIXELS, uint8[:, ::1], ARGUMENTS))
def map_pixels(
    table: Keys, chosen: NDArray[np.int64], pixels: NDArray[np.uint8], output: NDArray[np.uint8], arguments: Arguments
) -> None:  # pragma: no cover
    """Map the `chosen` ones of pixels (N, 3); write them to `output` (N, 3) and to the table, if it has entries.

    Threads that fill in the same color at the same time write the same number, whole.
    """
    width, remembers, keys = arguments.shifts.shape[1], len(table) > 0, arguments.keys
    x, y = np.empty(3, np.float32), np.empty(3, np.float32)
    hidden, after = np.empty(width, np.float32), np.empty(width, np.float32)
    first, edges = arguments.first, arguments.edges
    scale = np.float32(len(first) - 1) / arguments.density[0]
    key = entry = np.uint32(0)
    for i in chosen:
        if remembers:  # an earlier pixel may have had the same color
            key = keys[0, pixels[i, 0]] | keys[1, pixels[i, 1]] | keys[2, pixels[i, 2]]
            entry = table[key]
        if entry == 0:
            for j in range(3):
                x[j] = arguments.density[pixels[i, j]]
            _map_density(x, y, hidden, after, arguments)
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


@_ready(void(_constant(float32, 2), float32[:, ::1], ARGUMENTS))
def map_densities(densities: Floats, output: Floats, arguments: Arguments) -> None:  # pragma: no cover
    """Write the mapped densities (N, 3) to `output` (N, 3). The input need not be densities of levels."""
    width = arguments.shifts.shape[1]
    hidden, after = np.empty(width, np.float32), np.empty(width, np.float32)
    for i in range(len(densities)):
        _map_density(densities[i], output[i], hidden, after, arguments)
