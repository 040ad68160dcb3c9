"""Optical density (OD). This is the only place that defines how light and stain relate.

By the Beer-Lambert law, stains add up in OD, the negated logarithm of intensity. Ours is shifted by one gray level,

    OD = -ln((255 I + 1) / 256),

so that white is exactly 0, black is finite (ln 256 = 5.545), and all 256 levels survive the round trip.
"""

import math

import torch
from torch import Tensor

from bottlegan.stain.affine import AffineMap

BLACK = math.log(256)
"""The optical density of black, the largest possible."""
NEARLY_WHITE = 0.02  # a pixel whose darkest channel has less optical density (5 levels from white) may be clipped
FADED = 0.3  # share of the density that a map adds to white which is taken back


def to_density(rgb: Tensor) -> Tensor:
    """Return the optical density in [0, BLACK] of intensities in [0, 1], of any shape."""
    return -torch.log((255 * rgb + 1) / 256)


def to_rgb(density: Tensor) -> Tensor:
    """Return the intensity in [0, 1] of optical densities of any shape. Values outside [0, BLACK] are clipped."""
    return ((256 * torch.exp(-density) - 1) / 255).clamp(0, 1)


def fade_white(mapped: Tensor, density: Tensor) -> Tensor:
    """Return the mapped densities (N, 3, ...), made less dark where the original `density` is white.

    A scanner clips anything brighter than white. A map to the reference stain treats white as the darkest color that
    was clipped, so glass could come out darker than pale tissue.
    """
    white = (1 - density.amax(dim=1, keepdim=True) / NEARLY_WHITE).clamp(min=0)
    return mapped - FADED * white * (mapped - density).clamp(min=0)


def map_images(maps: AffineMap, images: Tensor) -> Tensor:
    """Return mapped images (S, 3, H, W) in [0, 1]: each has its own of the S density maps, or all share one."""
    matrix, bias = maps.matrix.to(images), maps.bias.to(images)
    density = torch.einsum("nchw,ncd->ndhw", to_density(images), matrix.expand(len(images), 3, 3))
    return to_rgb(density + bias[:, :, None, None])
