"""Our own networks: a small U-Net, and its first half for patches. Without batch statistics, which averaging spoils."""

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bottlegan.core.config import document
from bottlegan.core.errors import ConfigError

CENTER, SPREAD = 0.7, 0.25
"""Approximate mean and standard deviation of stained tissue's levels, by which images are shifted and scaled."""


@document
class SegmenterConfig:
    """The size of the network. The default takes about 15 ms for a step of two 128 px crops on one core."""

    width: int = 16
    """Channels of the finest level; level k has k + 1 times as many."""
    depth: int = 3
    """Number of levels, each half as fine as the one before."""
    stride: int = 4
    """Side of the squares of pixels that become one position of the finest level."""

    def __post_init__(self) -> None:
        """Check that a network can be built."""
        if self.width < 1 or not 1 <= self.depth <= 6 or self.stride not in (1, 2, 4, 8):
            raise ConfigError("segmenter: width must be at least 1, depth from 1 to 6, stride 1, 2, 4 or 8")

    @property
    def multiple(self) -> int:
        """The sides of an image are padded to a multiple of this."""
        return int(self.stride * 2 ** (self.depth - 1))


class Block(nn.Module):
    """Two 3x3 convolutions with group normalization, the second with a shortcut around it."""

    def __init__(self, before: int, after: int, stride: int = 1) -> None:
        """Build it for `before` input and `after` output channels."""
        super().__init__()
        self.enter = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.enter_norm = nn.GroupNorm(1, after)
        self.refine = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.refine_norm = nn.GroupNorm(1, after)

    def forward(self, x: Tensor) -> Tensor:
        """Return (N, after, H / stride, W / stride)."""
        x = F.relu(self.enter_norm(self.enter(x)))
        return F.relu(self.refine_norm(self.refine(x)) + x)


class Segmenter(nn.Module):
    """Images (N, 3, H, W) in [0, 1] to logits (N, outputs, H, W)."""

    def __init__(self, config: SegmenterConfig, outputs: int = 1) -> None:
        """Build the levels down and up again."""
        super().__init__()
        self.config = config
        widths = [config.width * (level + 1) for level in range(config.depth)]
        inputs = [3 * config.stride**2, *widths]
        self.down = nn.ModuleList(
            Block(before, after, 1 if level == 0 else 2) for level, (before, after) in enumerate(pairwise(inputs))
        )
        self.up = nn.ModuleList(Block(fine + coarse, fine) for fine, coarse in pairwise(widths))
        self.head = nn.Conv2d(widths[0], outputs * config.stride**2, 1)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits. An image of any size is padded with its edge to the size that the levels need."""
        height, width = images.shape[-2:]
        x = _arrange(images, self.config)
        passed = []
        for block in self.down:
            x = block(x)
            passed.append(x)
        for block, skip in reversed(list(zip(self.up, passed, strict=False))):
            x = block(torch.cat([F.interpolate(x, scale_factor=2.0), skip], dim=1))
        return F.pixel_shuffle(self.head(x), self.config.stride)[..., :height, :width]


class Classifier(nn.Module):
    """Images (N, 3, H, W) in [0, 1] to logits (N, outputs)."""

    def __init__(self, config: SegmenterConfig, outputs: int) -> None:
        """Build the levels down, and a head on the mean of the last."""
        super().__init__()
        self.config = config
        widths = [3 * config.stride**2, *(config.width * (level + 1) for level in range(config.depth))]
        self.down = nn.ModuleList(
            Block(before, after, 1 if level == 0 else 2) for level, (before, after) in enumerate(pairwise(widths))
        )
        self.head = nn.Linear(widths[-1], outputs)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits."""
        x = _arrange(images, self.config)
        for block in self.down:
            x = block(x)
        return self.head(x.mean(dim=(2, 3)))


def unet(classes: int = 2, width: int = 16, depth: int = 3, stride: int = 4) -> Segmenter:
    """Return the network for segmentation. Two classes need one logit. See `SegmenterConfig` for the sizes."""
    return Segmenter(SegmenterConfig(width=width, depth=depth, stride=stride), 1 if classes == 2 else classes)


def classifier(classes: int = 2, width: int = 16, depth: int = 4, stride: int = 2) -> Classifier:
    """Return the network for patches. Two classes need one logit. See `SegmenterConfig` for the sizes."""
    return Classifier(SegmenterConfig(width=width, depth=depth, stride=stride), 1 if classes == 2 else classes)


def _arrange(images: Tensor, config: SegmenterConfig) -> Tensor:
    """Return images of any size, padded with their edge, as positions (N, 3 stride^2, H', W') of the finest level."""
    height, width = images.shape[-2:]
    right, bottom = -width % config.multiple, -height % config.multiple
    x = (images - CENTER) / SPREAD
    if right or bottom:
        x = F.pad(x, (0, right, 0, bottom), mode="replicate")
    return F.pixel_unshuffle(x, config.stride)
