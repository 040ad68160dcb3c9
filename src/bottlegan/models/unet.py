"""The U-Net generator: the paper's ablation, which can also change structure."""

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bottlegan.models.config import GeneratorConfig
from bottlegan.models.pixel import Modulation, build_mapping
from bottlegan.stain.density import to_density, to_rgb


class UNetGenerator(nn.Module):
    """Maps images with codes to images, through three scales, with `GeneratorConfig.depth` layers."""

    def __init__(self, config: GeneratorConfig, code_size: int) -> None:
        """Build it; with a skip it is the identity until trained."""
        super().__init__()
        self.config = config
        self.mapping, mapped = build_mapping(code_size, config.mapping)
        widths = [config.width * 2**level for level in range(config.depth + 1)]
        self.first = nn.Conv2d(3, widths[0], 3, padding=1)
        pairs = list(pairwise(widths))
        self.down = nn.ModuleList(nn.Conv2d(a, b, 4, stride=2, padding=1) for a, b in pairs)
        self.up = nn.ModuleList(nn.Conv2d(b + a, a, 3, padding=1) for a, b in pairs)
        self.modulations = nn.ModuleList(Modulation(b, mapped, config.statistics) for _, b in pairs)
        self.last = nn.Conv2d(widths[0], 3, 1)
        if config.skip:
            for parameter in self.last.parameters():
                nn.init.zeros_(parameter)

    def forward(self, images: Tensor, code: Tensor) -> Tensor:
        """Return images (N, 3, H, W) in [0, 1], given codes (N, code_size)."""
        return to_rgb(self.density(to_density(images), code))

    def density(self, density: Tensor, code: Tensor) -> Tensor:
        """Return densities (N, 3, H, W), not clipped, of densities (N, 3, H, W)."""
        code = self.mapping(code)
        hidden = F.silu(self.first(density))
        skips = []
        for convolution, modulation in zip(self.down, self.modulations, strict=True):
            skips.append(hidden)
            hidden = F.silu(modulation(convolution(_even(hidden)), code))
        for convolution, skip in zip(reversed(self.up), reversed(skips), strict=True):
            larger = F.interpolate(hidden, size=skip.shape[2:], mode="nearest")
            hidden = F.silu(convolution(torch.cat([larger, skip], dim=1)))
        residual = self.last(hidden)
        return density + residual if self.config.skip else F.softplus(residual)


def _even(x: Tensor) -> Tensor:
    """Repeat the last row and column if their number is odd, so that halving loses none."""
    return F.pad(x, (0, x.shape[3] % 2, 0, x.shape[2] % 2), mode="replicate")
