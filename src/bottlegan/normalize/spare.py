"""Pen on a slide, left as it is.

Whether a color is ink is decided by the color alone, so that the whole is still one map of colors, which a table holds.
What glass and the stains look like in a style, the network says itself, by restaining those of the reference.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bottlegan.slides.image import from_batch, to_batch
from bottlegan.stain.density import to_density, to_rgb
from bottlegan.stain.lut import Convert, Levels
from bottlegan.stain.macenko import Reference

FAINT = (0.1, 0.2)
"""Density above that of glass: below the first, noise decides what color a pixel has; above the second, it does not."""
OFF = (15.0, 22.0)
"""Degrees from all mixes of the two stains, within which a color is tissue, and beyond which it is ink.

Of real tissue in most styles 999 of 1,000 pixels are within 10, green and blue ink are 22 to 40 off. Red and black ink
cannot be told from blood and dark nuclei, and are mapped."""
MIXED = 0.5
"""Of each stain's strength, where the two are looked at: no channel is black there in any style."""


@dataclass(frozen=True)
class Stained:
    """What is known of a stain: densities of its glass, and directions of its two stains."""

    glass: Tensor
    """(3,) density where there is no stain."""
    stains: Tensor
    """(2, 3) unit densities above glass."""


def describe_reference(reference: Reference) -> Stained:
    """Return what the reference stain looks like."""
    return Stained(torch.zeros(3), reference.matrix.float())


def describe_style(reference: Reference, restain: Callable[[Tensor], Tensor]) -> Stained:
    """Return what a style looks like, given how images (N, 3, H, W) are restained into it."""
    stains = reference.matrix * reference.strength[:, None] * MIXED
    probes = to_rgb(torch.cat([torch.zeros(1, 3), stains.float()]))
    glass, *mixed = to_density(restain(probes.T[None, :, :, None])[0, :, :, 0].T)
    above = torch.stack(mixed) - glass
    return Stained(glass, above / above.norm(dim=1, keepdim=True).clamp(min=1e-6))


def spare_ink(convert: Convert, stained: Stained) -> Convert:
    """Return a map that is `convert` for tissue of the given stain, leaves ink as it is, and fades between the two."""

    def converted(colors: Levels) -> Levels:
        mapped, before = convert(colors), _densities(colors)
        share = weigh_ink(before, stained)[:, None]
        mixed = torch.lerp(_densities(mapped), before, share)
        # What is tissue beyond doubt must not pass through a logarithm and back: it is to be exact.
        return np.where(share.numpy() > 0, from_batch(to_rgb(mixed).T[None, :, None])[0][0], mapped)

    return converted


def weigh_ink(density: Tensor, stained: Stained) -> Tensor:
    """Return how far colors, given by their densities (N, 3), are ink: 1, if no mix of the two stains comes near."""
    above = density - stained.glass.to(density)
    return ramp(above.amax(1), *FAINT) * ramp(measure_angle(above, stained.stains), *OFF)


def _densities(colors: Levels) -> Tensor:
    """Return the densities (N, 3) of colors (N, 3)."""
    return to_density(to_batch(colors[None]).double())[0, :, 0].T


def measure_angle(above: Tensor, stains: Tensor) -> Tensor:
    """Return the degrees (N,) between densities above glass (N, 3) and the nearest mix of the two stains (2, 3)."""
    stains = stains.to(above)
    amounts = above @ torch.linalg.pinv(stains)
    inside = (amounts >= 0).all(1)
    nearest = torch.where(inside[:, None], amounts @ stains, _nearest_edge(above, stains))
    cosine = (above * nearest).sum(1) / (above.norm(dim=1) * nearest.norm(dim=1)).clamp(min=1e-9)
    return torch.rad2deg(torch.acos(cosine.clamp(-1, 1)))


def _nearest_edge(above: Tensor, stains: Tensor) -> Tensor:
    """Return the nearest (N, 3) of what one stain alone can be."""
    return stains[(above @ stains.T).argmax(1)]


def ramp(values: Tensor, low: float, high: float) -> Tensor:
    """Return 0 up to `low`, 1 from `high` on, and a smooth way between."""
    share = ((values - low) / (high - low)).clamp(0, 1)
    return share * share * (3 - 2 * share)
