"""What the colors of a lab's images say about whether they are H&E at all, whatever its style: figures, no verdict."""

from dataclasses import dataclass

import torch
from torch import Tensor

from bottlegan.stain.macenko import Reference, distance_to_profiles, find_glass
from bottlegan.stain.quantiles import weighted_quantile

HEMATOXYLIN = torch.tensor([0.65, 0.70, 0.29], dtype=torch.float64)
"""Optical density of hematoxylin (Ruifrok and Johnston, 2001), as it counterstains immunohistochemistry."""
DAB = torch.tensor([0.27, 0.57, 0.78], dtype=torch.float64)
"""Optical density of diaminobenzidine, the brown of immunohistochemistry (Ruifrok and Johnston, 2001)."""
BARE = 0.05
"""Mean density above the brightest pixels, 12 levels, within which a pixel shows bare glass."""
WHITE = 0.006
"""Density, of one level, up to which a channel is cut off at white."""


@dataclass(frozen=True)
class Evidence:
    """Figures of the densities of one lab's images; `shown` is what is clearly darker than the brightest pixels."""

    brightest: float
    """Mean density of the brightest hundredth of the pixels: nearly 0 on bright glass."""
    median: float
    """Mean density of the pixel in the middle."""
    contrast: float
    """Mean density between the brightest and the darkest pixels."""
    shown: float
    """Share of the pixels that show anything."""
    flatness: float
    """Where between brightest and darkest half of what is shown lies: high for strokes of even ink, in [0, 1]."""
    spread: tuple[float, float, float]
    """Standard deviations of what is shown along its principal directions: two stains, then what is neither."""
    green: float
    """Share of what is shown that absorbs green most, as both stains of H&E do."""
    cut: float
    """Share of what is shown that is cut off at white in some channel."""
    unlike: float
    """Between how the two stains, of any color, are distributed in the tissue and in similar reference tissue."""
    brown: float
    """How far the two stains are from hematoxylin and DAB: below 1, each is about one of them."""
    off_brown: float
    """Share of the tissue's density, root mean square, that no mix of hematoxylin and DAB explains."""


def gather_evidence(density: Tensor, reference: Reference) -> Evidence:
    """Return the figures of densities (1, P, 3), float64, of a lab's images."""
    pixels = density[0]
    darkness = pixels.mean(1)
    brightest, median, darkest = quantiles(darkness, [0.01, 0.5, 0.995])
    above = darkness - brightest
    typical = quantiles(above[above > BARE], [0.5])[0] if (above > BARE).any() else 0.0
    shown = above > max(BARE, 0.5 * typical)
    stained = pixels[shown]
    stains, glass, _ = find_glass(density, reference)
    contrast = darkest - brightest
    return Evidence(
        brightest,
        median,
        contrast,
        shown.double().mean().item(),
        quantiles(above[shown], [0.5])[0] / max(contrast, 1e-6) if shown.any() else 0.0,
        principal_spread(stained),
        share_green(stained, glass[0]),
        (stained.amin(1) < WHITE).double().mean().item() if len(stained) else 0.0,
        distance_to_profiles(stains.profile, reference.profiles).item(),
        distance_from_brown(stains.matrix[0]),
        share_off_brown(stained - glass[0]),
    )


def quantiles(values: Tensor, levels: list[float]) -> list[float]:
    """Return the quantiles of values (P,), of any number."""
    return weighted_quantile(values[None], torch.ones_like(values)[None], torch.tensor(levels))[0].tolist()


def principal_spread(pixels: Tensor) -> tuple[float, float, float]:
    """Return the standard deviations of densities (P, 3) along their principal directions, the largest first."""
    if len(pixels) < 2:
        return 0.0, 0.0, 0.0
    third, second, first = torch.linalg.eigvalsh(torch.cov(pixels.T)).clamp(min=0).sqrt().tolist()
    return first, second, third


def share_green(pixels: Tensor, glass: Tensor) -> float:
    """Return the share of densities (P, 3), above that of the glass (1, 3), that are largest in green."""
    if not len(pixels):
        return 0.0
    return ((pixels - glass).argmax(1) == 1).double().mean().item()


def distance_from_brown(matrix: Tensor) -> float:
    """Return how far unit stains (2, 3), in either order, are from hematoxylin and DAB, relative to how labs vary.

    DAB is the same chemical everywhere and varies by 13 degrees; blended with it, hematoxylin varies by twice as much.
    """
    expected = torch.stack([HEMATOXYLIN / HEMATOXYLIN.norm(), DAB / DAB.norm()])
    degrees = torch.rad2deg(torch.arccos((matrix @ expected.T).clamp(-1, 1))) / torch.tensor([26.0, 13.0]).double()
    return min(max(degrees[0, 0].item(), degrees[1, 1].item()), max(degrees[1, 0].item(), degrees[0, 1].item()))


def share_off_brown(stained: Tensor) -> float:
    """Return the share of densities (P, 3) above those of glass that no mix of hematoxylin and DAB explains."""
    expected = torch.stack([HEMATOXYLIN, DAB])
    left = stained - stained @ torch.linalg.pinv(expected) @ expected
    return (left.square().sum() / stained.square().sum().clamp(min=1e-12)).sqrt().item()
