"""Onboarding: fit the style code of an unseen lab to a few of its images, unlabeled, unpaired, the network frozen.

The closed-form map of the images is written as a code, which the network's linear layers can hold. From there the code
moves along six directions, those of `training.refine`, until what the network makes of the images has the colors of the
reference images with the most similar tissue. There are several starts, all in one batch: the map as found, and the one
with hematoxylin and eosin exchanged, which only wins if it is clearly better.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bottlegan.data.lab import MOST_IMAGES, spread
from bottlegan.errors import InputError
from bottlegan.models.paradigms import BottleGAN
from bottlegan.progress import Progress, Silent
from bottlegan.slides.image import Levels, to_batch
from bottlegan.stain.macenko import DensityMap, Reference, fit_density_map, join, sample_density
from bottlegan.training.diagnosis import StyleDiagnosis, diagnose
from bottlegan.training.refine import Through, refine_maps
from bottlegan.training.samples import collect
from bottlegan.training.warm import encode_maps, normalize_density

MOST_PIXELS = 65_536
"""That the closed form looks at, of all images: more of them take longer, and no longer change it."""
CLEARLY = 0.5
"""Share of the distance to similar tissue, below which a start with exchanged stains is believed."""


@dataclass(frozen=True)
class Onboarding:
    """A new style: all that a lab need share, and how far to trust it."""

    code: Tensor
    """(K,) the style code."""
    diagnosis: StyleDiagnosis


def onboard(images: Sequence[Levels], model: BottleGAN, seed: int = 0, progress: Progress | None = None) -> Onboarding:
    """Fit a style code to RGB levels (H, W, 3) of one lab; the same seed gives the same code."""
    if not images:
        raise InputError("there is no image to fit a style to; give at least one of the lab")
    chosen = spread(images, MOST_IMAGES)
    statistics = model.reference.statistics()
    density = torch.cat([sample_density(to_batch(levels)) for levels in chosen], dim=1)
    density = density[:, :: math.ceil(density.shape[1] / MOST_PIXELS)].contiguous()
    found = fit_density_map(density, statistics)
    starts = join([found, exchange_stains(found, statistics)])
    count = len(starts.matrix)
    pixels = collect({"the lab": chosen}, 1, seed, torch.device("cpu")).pool.repeat(count, 1, 1, 1)
    rows = torch.arange(count).repeat_interleave(len(chosen))
    refined, distances = refine_maps(
        starts, pixels, rows, model.reference, progress or Silent(), through=through(model)
    )
    as_found, exchanged = distances.reshape(count, -1).mean(1).tolist()
    best = exchanged < CLEARLY * as_found
    fitted = refined.choose(torch.tensor([int(best)]))
    with torch.no_grad():
        code = encode_maps(model, fitted)[0]
        chosen_order, other_order = (exchanged, as_found) if best else (as_found, exchanged)
        return Onboarding(code, diagnose(model, code, fitted, density, chosen_order, exchanged=other_order))


def exchange_stains(maps: DensityMap, reference: Reference) -> DensityMap:
    """Return maps that take for eosin what the given ones take for hematoxylin, and vice versa."""
    stains = reference.matrix * reference.strength[:, None]
    unmix = torch.linalg.pinv(stains)
    change = torch.eye(3).to(stains) + unmix @ (stains.flip(0) - stains)
    return replace(maps, matrix=maps.matrix @ change, bias=(maps.bias[:, None] @ change)[:, 0])


def through(model: BottleGAN) -> Through:
    """Return what the frozen network makes of densities under the codes of affine maps."""

    def mapped(density: Tensor, matrix: Tensor, bias: Tensor) -> Tensor:
        return normalize_density(model, density, encode_maps(model, DensityMap(matrix, bias, ())))

    return mapped
