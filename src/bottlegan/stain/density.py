"""Optical density (OD): the one place that says how light and stain relate.

By Beer-Lambert's law stains add up in OD, the negated logarithm of intensity. Ours is shifted by one gray level,

    OD = -ln((255 I + 1) / 256),

so that white is exactly 0, black is finite (ln 256 = 5.545), and each of the 256 levels survives the round trip.
"""

import math

import torch
from torch import Tensor

from bottlegan.stain.affine import AffineMap

BLACK = math.log(256)
"""The optical density of black, the largest there is."""
NEARLY_WHITE = 0.02  # optical density of the darkest channel, 5 levels from white, below which a pixel may be cut off
FADED = 0.3  # share of what a map adds to white that is taken back


def to_density(rgb: Tensor) -> Tensor:
    """Return the optical density in [0, BLACK] of intensities in [0, 1], of any shape."""
    return -torch.log((255 * rgb + 1) / 256)


def to_rgb(density: Tensor) -> Tensor:
    """Return the intensity in [0, 1] of optical densities of any shape; what lies outside [0, BLACK] is clipped."""
    return ((256 * torch.exp(-density) - 1) / 255).clamp(0, 1)


def fade_white(mapped: Tensor, density: Tensor) -> Tensor:
    """Return densities (N, 3, ...) that a map made of `density`, but less dark where that was white.

    A scanner cuts off what is brighter than white. A map toward the reference stain makes of white the darkest of all
    that was cut off, glass included, which then can be darker than pale tissue.
    """
    white = (1 - density.amax(dim=1, keepdim=True) / NEARLY_WHITE).clamp(min=0)
    return mapped - FADED * white * (mapped - density).clamp(min=0)


def map_images(maps: AffineMap, images: Tensor) -> Tensor:
    """Return images (S, 3, H, W) in [0, 1], each mapped by its own of S maps of densities, or all by one."""
    matrix, bias = maps.matrix.to(images), maps.bias.to(images)
    density = torch.einsum("nchw,ncd->ndhw", to_density(images), matrix.expand(len(images), 3, 3))
    return to_rgb(density + bias[:, :, None, None])
