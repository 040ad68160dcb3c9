"""The generator as the authors published it: for reproducing the paper, not for other use.

Each layer normalizes by the statistics of the image, scales and shifts by the output of its own small network for the
code, mixes channels pixel by pixel, and ends in a sigmoid. Its input is densities, its output intensities.
"""

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from bottlegan.models.config import GeneratorConfig
from bottlegan.stain.density import to_density


class PublishedLayer(nn.Module):
    """Instance norm, scale and shift by the code, a 1x1 convolution, a sigmoid."""

    def __init__(self, before: int, after: int, code_size: int, mapping: int) -> None:
        """Build it."""
        super().__init__()
        self.mapping = nn.Sequential(
            nn.Linear(code_size, mapping),
            nn.ReLU(),
            nn.Linear(mapping, mapping),
            nn.ReLU(),
            nn.Linear(mapping, 2 * before),
        )
        self.convolution = nn.Conv2d(before, after, 1)

    def forward(self, x: Tensor, code: Tensor) -> Tensor:
        """Return features (N, after, H, W) in (0, 1) of features (N, before, H, W), given codes (N, code_size)."""
        # A single pixel has no variance, and torch refuses it: its norm is zero.
        normed = F.instance_norm(x) if x.shape[2:].numel() > 1 else torch.zeros_like(x)
        scale, shift = self.mapping(code)[:, :, None, None].chunk(2, dim=1)
        return self.convolution(normed * (1 + scale) + shift).sigmoid()


class PublishedGenerator(nn.Module):
    """Images and codes to images: `depth` hidden layers of `width` channels, and a last one."""

    def __init__(self, config: GeneratorConfig, code_size: int) -> None:
        """Build it."""
        super().__init__()
        widths = [3, *[config.width] * config.depth, 3]
        self.layers = nn.ModuleList(PublishedLayer(a, b, code_size, config.mapping) for a, b in pairwise(widths))

    def forward(self, images: Tensor, code: Tensor) -> Tensor:
        """Return images (N, 3, H, W) in [0, 1], given codes (N, code_size)."""
        hidden = to_density(images)
        for layer in self.layers:
            # Wide layers of many crops are recomputed for the gradient to save memory: a step has eight such passes.
            hidden = (
                checkpoint(layer, hidden, code, use_reentrant=False) if torch.is_grad_enabled() else layer(hidden, code)
            )
        return hidden
