"""Pen on a slide, left as it is.

Whether a color is ink is decided by the color alone, so that the whole is still one map of colors, which a table holds.
What glass and the stains look like in a style, the network says itself, by restaining those of the reference.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bottlegan.colormap.table import Convert, Levels
from bottlegan.imaging.tensors import to_levels
from bottlegan.models.reference_stain import ReferenceStain
from bottlegan.stain.density import to_density, to_rgb

Numbers = NDArray[np.float64]

FAINT = (0.1, 0.2)
"""Density above that of glass: below the first, noise decides what color a pixel has; above the second, it does not."""
OFF = (15.0, 22.0)
"""Degrees from all mixes of the two stains, within which a color is tissue, and beyond which it is ink.

Of real tissue in most styles 999 of 1,000 pixels are within 10, green and blue ink are 22 to 40 off. Red and black ink
cannot be told from blood and dark nuclei, and are mapped."""
MIXED = 0.5
"""Of each stain's strength, where the two are looked at: no channel is black there in any style."""


DENSITY: Numbers = to_density(torch.arange(256, dtype=torch.float64) / 255).numpy()
"""Of each level."""


@dataclass(frozen=True)
class Stained:
    """What is known of a stain: densities of its glass, and directions of its two stains."""

    glass: Numbers
    """(3,) density where there is no stain."""
    stains: Numbers
    """(2, 3) unit densities above glass."""


def describe_reference(reference: ReferenceStain) -> Stained:
    """Return what the reference stain looks like."""
    return Stained(np.zeros(3), reference.directions.double().numpy())


def describe_style(reference: ReferenceStain, restain: Callable[[Tensor], Tensor]) -> Stained:
    """Return what a style looks like, given how images (N, 3, H, W) are restained into it."""
    probes = to_rgb(torch.cat([torch.zeros(1, 3), MIXED * reference.stains]))
    glass, *mixed = to_density(restain(probes.T[None, :, :, None])[0, :, :, 0].T).double().numpy()
    above = np.stack(mixed) - glass
    return Stained(glass, above / np.linalg.norm(above, axis=1, keepdims=True).clip(min=1e-6))


def spare_ink(convert: Convert, stained: Stained) -> Convert:
    """Return a map that is `convert` for tissue of the given stain, leaves ink as it is, and fades between the two."""

    def converted(colors: Levels) -> Levels:
        mapped = convert(colors)
        share = weigh_ink(DENSITY[colors], stained)
        # Only where there is ink: what is tissue beyond doubt is to be exact.
        (inky,) = np.nonzero(share)
        before, after = DENSITY[colors[inky]], DENSITY[mapped[inky]]
        mixed = torch.from_numpy(after + share[inky, None] * (before - after))
        mapped[inky] = to_levels(to_rgb(mixed)).numpy()
        return mapped

    return converted


def weigh_ink(density: Numbers, stained: Stained) -> Numbers:
    """Return how far colors, given by their densities (N, 3), are ink: 1, if no mix of the two stains comes near."""
    above = density - stained.glass
    return ramp(above.max(axis=1), *FAINT) * ramp(measure_angle(above, stained.stains), *OFF)


def measure_angle(above: Numbers, stains: Numbers) -> Numbers:
    """Return the degrees (N,) between densities above glass (N, 3) and the nearest mix of the two stains (2, 3)."""
    amounts = above @ np.linalg.pinv(stains)
    alone = stains[(above @ stains.T).argmax(axis=1)]
    nearest = np.where((amounts >= 0).all(axis=1, keepdims=True), amounts @ stains, alone)
    lengths = np.sqrt((above**2).sum(axis=1) * (nearest**2).sum(axis=1))
    cosine = (above * nearest).sum(axis=1) / lengths.clip(min=1e-9)
    return np.rad2deg(np.arccos(cosine.clip(-1, 1)))


def ramp(values: Numbers, low: float, high: float) -> Numbers:
    """Return 0 up to `low`, 1 from `high` on, and a smooth way between."""
    share = ((values - low) / (high - low)).clip(0, 1)
    return share * share * (3 - 2 * share)
