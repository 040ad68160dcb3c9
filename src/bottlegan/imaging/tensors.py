"""Conversion between levels, uint8 with channels last, and tensors, floats in [0, 1] with channels first."""

import torch
from torch import Tensor

from bottlegan.imaging.files import Pixels


def to_batch(levels: Pixels) -> Tensor:
    """Return RGB levels (H, W, 3) as a batch of one image (1, 3, H, W), float32 in [0, 1]."""
    return from_levels(torch.from_numpy(levels.copy())).permute(2, 0, 1)[None]


def from_batch(images: Tensor) -> list[Pixels]:
    """Return images (N, 3, H, W) in [0, 1] as a list of N arrays of RGB levels (H, W, 3)."""
    return [levels.numpy() for levels in to_levels(images).permute(0, 2, 3, 1).contiguous().cpu()]


def to_levels(rgb: Tensor) -> Tensor:
    """Return intensities in [0, 1] as the nearest of the 256 levels, uint8, of the same shape."""
    return (255 * rgb).round().clamp(0, 255).to(torch.uint8)


def from_levels(levels: Tensor) -> Tensor:
    """Return uint8 levels as float32 intensities in [0, 1], of the same shape."""
    return levels.to(torch.float32) / 255
