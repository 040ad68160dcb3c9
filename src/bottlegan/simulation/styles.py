"""Simulated staining styles as images: how a lab and its scanner show the same tissue.

Tissue is a map of hematoxylin and eosin concentrations, 1 where a stain is strong. A style determines the light that
is left:

    density = (concentration + offset) . stains,   rgb = white * intensity(density) ** gamma.
"""

import torch
from torch import Tensor

from bottlegan.stain.density import to_density, to_rgb
from bottlegan.stain.style import Style


def stain_densities(style: Style) -> Tensor:
    """Return the optical densities (2, 3), float64, of the style's strong hematoxylin and eosin."""
    return torch.tensor([style.hematoxylin, style.eosin], dtype=torch.float64)


def render(concentration: Tensor, style: Style, noise: torch.Generator | None = None) -> Tensor:
    """Return the images (N, 3, H, W) in [0, 1] that the style's scanner takes of concentrations (N, 2, H, W).

    With a `noise` generator, each pixel's concentrations vary by the style's pixel noise.
    """
    if noise is not None:
        jitter = torch.randn(concentration.shape, generator=noise, dtype=concentration.dtype)
        concentration = concentration * (1 + style.pixel_noise * jitter)
    offset = torch.tensor(style.offset).to(concentration)[:, None, None]
    density = torch.einsum("nkhw,kc->nchw", concentration + offset, stain_densities(style).to(concentration))
    return _white(style, density) * to_rgb(density) ** style.gamma


def unmix(images: Tensor, style: Style) -> Tensor:
    """Return the concentrations (N, 2, H, W) in images (N, 3, H, W) of the given style: the inverse of `render`."""
    density = to_density((images / _white(style, images)).clamp(0, 1) ** (1 / style.gamma))
    concentration = torch.einsum("nchw,ck->nkhw", density, torch.linalg.pinv(stain_densities(style)).to(density))
    return concentration - torch.tensor(style.offset).to(density)[:, None, None]


def _white(style: Style, like: Tensor) -> Tensor:
    return torch.tensor(style.white).to(like)[:, None, None]
