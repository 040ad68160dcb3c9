"""The critics: PatchGANs that score how real each part of an image is.

By default neither normalizes its features: instance norm would make them nearly blind to color, which is what matters
here. The published critics do.
"""

from itertools import pairwise
from typing import Annotated

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from bottlegan.core.config import document
from bottlegan.stain.density import to_density


@document
class CriticConfig:
    """The form of both critics."""

    width: Annotated[int, Field(ge=1, le=1024)] = 32
    """Channels of the first layer; each further layer has twice as many."""
    depth: Annotated[int, Field(ge=1, le=8)] = 3
    """Number of layers that halve the image."""
    published: bool = False
    """As in the authors' code: instance norm in every layer, and the last layer reads features and code directly.
    Together these are as many numbers as the features alone without a code."""


class Critic(nn.Module):
    """Scores (N, 1, h, w), one per patch, of images (N, 3, H, W). With `code_size` above 0 it is the `style_critic`.

    The code is concatenated to the output of the last downsampling layer, as in the paper.
    """

    def __init__(self, config: CriticConfig, code_size: int = 0) -> None:
        """Build the layers."""
        super().__init__()
        self.published = config.published
        widths = [3, *(config.width * 2**level for level in range(config.depth))]
        if self.published:
            widths[-1] -= code_size
        pairs = pairwise(widths)
        self.down = nn.ModuleList(nn.Conv2d(a, b, 4, stride=2, padding=1) for a, b in pairs)
        joined = widths[-1] + code_size
        self.mix = None if self.published else nn.Conv2d(joined, widths[-1], 1)
        self.last = nn.Conv2d(joined if self.published else widths[-1], 1, 1)

    def forward(self, images: Tensor, code: Tensor | None = None) -> Tensor:
        """Return the scores of images in [0, 1], given codes (N, code_size) for the style critic."""
        hidden = to_density(images)
        for convolution in self.down:
            hidden = convolution(hidden)
            hidden = F.leaky_relu(F.instance_norm(hidden) if self.published else hidden, 0.2)
        if code is not None:
            hidden = torch.cat([hidden, code[:, :, None, None].expand(-1, -1, *hidden.shape[2:])], dim=1)
        return self.last(hidden if self.mix is None else F.leaky_relu(self.mix(hidden), 0.2))
