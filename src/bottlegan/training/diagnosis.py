"""How far to trust a style that was fitted to a few images: figures, a verdict, and its reason in words."""

from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor

from bottlegan.models.paradigms import BottleGAN
from bottlegan.stain.macenko import DensityMap, Route, find_tissue, plane_normal
from bottlegan.training.warm import normalize_density

OFF_PLANE = 0.15
"""Density across the plane of the two stains, beside a tenth of that within, from where a color is no mix of both."""


class Verdict(StrEnum):
    """Whether to use a style."""

    GOOD = "good"
    UNCERTAIN = "uncertain"
    REFUSED = "refused"


@dataclass(frozen=True)
class StyleDiagnosis:
    """What was found out about a fitted style."""

    verdict: Verdict
    reason: str
    distance: float
    """Between the normalized colors and those of reference images with similar tissue, in units of strong stain."""
    condition: float
    """Condition number of the map: large where it amplifies noise."""
    outside: float
    """Share of the tissue whose normalized colors are no mix of hematoxylin and eosin, in [0, 1]."""
    tissue: float
    """Share of the pixels that are tissue, in [0, 1]."""
    angle: float
    """Degrees between the two stain directions."""
    order_margin: float
    """How clearly hematoxylin and eosin were told apart, from 0 (a guess) to 1."""
    strangeness: float
    """How far the code is from those that the prior knows: 1 is usual."""


def diagnose(model: BottleGAN, code: Tensor, fitted: DensityMap, density: Tensor, distance: float) -> StyleDiagnosis:
    """Return the diagnosis of a style's map, which is the code's, on densities (1, P, 3) of the lab's images."""
    closed_form = fitted.diagnoses[0]
    figures = {
        "distance": distance,
        "condition": torch.linalg.cond(fitted.matrix[0]).item(),
        "outside": share_outside(model, code, density),
        "tissue": closed_form.tissue,
        "angle": closed_form.angle,
        "order_margin": closed_form.order_margin,
        "strangeness": code.square().mean().sqrt().item(),
    }
    if closed_form.route == Route.IDENTITY:
        return StyleDiagnosis(Verdict.REFUSED, closed_form.reason, **figures)
    return StyleDiagnosis(Verdict.GOOD, "two stains found", **figures)


def share_outside(model: BottleGAN, code: Tensor, density: Tensor) -> float:
    """Return the share of tissue in densities (1, P, 3) that the network maps to no mix of the two stains."""
    tissue = density[find_tissue(density)].float()
    if not len(tissue):
        return 0.0
    mapped = normalize_density(model, tissue[None], code[None])[0]
    normal = plane_normal(model.reference.matrix[None])[0, 0]
    across = (mapped @ normal).abs()
    return (across > OFF_PLANE + 0.1 * mapped.norm(dim=1)).float().mean().item()
