"""How far a color is pen rather than tissue, in plain array arithmetic: the kernel's rule for floats on any device.

The color alone decides whether a pixel is ink, so the whole remains one map of colors.
"""

from typing import Any

from array_api_compat import array_namespace, device

from bottlegan.colormap.levels import DENSITY
from bottlegan.colormap.limits import FAINT, FAR, GREENNESS, NEAR
from bottlegan.colormap.network import Ink

Array = Any
"""A NumPy array or a torch tensor."""


def spare_ink(density: Array, mapped: Array, ink: Ink) -> Array:
    """Return mapped densities (N, 3), with the originals restored where there is ink, blended where there may be."""
    xp, share = array_namespace(density), weigh_ink(density, ink)[:, None]
    # This blends two colors, so values beyond white or black are clipped first.
    color = xp.clip(mapped, 0, float(DENSITY[0]))
    return xp.where(share > 0, color + share * (density - color), mapped)


def weigh_ink(density: Array, ink: Ink) -> Array:
    """Return how far colors with these densities (N, 3) are ink: 1 if no mixture of the two stains comes near."""
    xp = array_namespace(density)
    glass, stains, inverse = (
        xp.asarray(part, dtype=density.dtype, device=device(density)) for part in (ink.glass, ink.stains, ink.inverse)
    )
    above = density - glass
    amounts = above @ inverse.T
    along = above @ stains.T
    first = along[:, :1] >= along[:, 1:]
    alone = xp.where(first, stains[:1], stains[1:])  # the nearest mixture if one amount would be negative
    nearest = xp.where(xp.all(amounts >= 0, axis=1, keepdims=True), amounts @ stains, alone)
    lengths = xp.sqrt(xp.sum(above * above, axis=1) * xp.sum(nearest * nearest, axis=1))
    cosine = xp.sum(above * nearest, axis=1) / xp.where(lengths > 0, lengths, xp.ones_like(lengths))
    strongest = xp.max(above, axis=1)
    share = ramp(strongest, *map(float, FAINT)) * ramp(-cosine, -float(NEAR), -float(FAR))
    green = above[:, 1] / xp.where(strongest > 0, strongest, xp.ones_like(strongest))
    share = share * ramp(-green, -float(GREENNESS[0]), -float(GREENNESS[1]))
    return xp.where((lengths > 0) & (strongest > float(FAINT[0])), share, xp.zeros_like(share))


def ramp(values: Array, low: float, high: float) -> Array:
    """Return 0 up to `low`, 1 from `high` on, and a smooth transition between."""
    share = array_namespace(values).clip((values - low) / (high - low), 0, 1)
    return share * share * (3 - 2 * share)
