"""The pixel generator: 1x1 convolutions on optical density, conditioned on a style code.

Its default form is a linear map of densities that the code chooses, plus a small residual:

    y = A(e) x + b(e) + R(x | e),   A = I, b = 0, R = 0 at the start,

where R consists of 1x1 convolutions, each scaled and shifted by the code. With frozen statistics no layer uses other
pixels, so the output is a pure function of color and code: there are no seams between tiles, and it fits into a table.
The paper's form has no linear part, and normalizes each layer by the statistics of the image (AdaIN).
"""

from collections.abc import Callable
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from bottlegan.models.config import KNOWN_CODES, GeneratorConfig, Statistics
from bottlegan.stain.density import to_density, to_rgb

Finish = Callable[[Tensor, Tensor], Tensor]
"""Makes the final densities from densities (1, 3, 1, P) and their mapped, unclipped densities."""
GRAIN = 32768
"""torch never splits this many values among threads; thread boundaries would otherwise be arbitrary."""
RECOMPUTED_WIDTH = 64
"""From this width on, hidden layers are recomputed for the gradient to save memory: a step has eight such passes."""


class Modulation(nn.Module):
    """Scale and shift of each channel, computed from a code. With instance statistics this is AdaIN."""

    def __init__(self, channels: int, code_size: int, statistics: Statistics) -> None:
        """Start around scale 1 and shift 0, so that styles differ from the first step."""
        super().__init__()
        self.statistics = statistics
        self.affine = nn.Linear(code_size, 2 * channels)
        nn.init.zeros_(self.affine.bias)

    def forward(self, x: Tensor, code: Tensor) -> Tensor:
        """Return features (N, C, H, W), modulated by codes (N, code_size)."""
        if self.statistics == "instance":
            # A single pixel has no variance, and torch refuses it: its norm is zero.
            x = F.instance_norm(x) if x.shape[2:].numel() > 1 else torch.zeros_like(x)
        scale, shift = self.affine(code)[:, :, None, None].chunk(2, dim=1)
        return x * (1 + scale) + shift


class PixelGenerator(nn.Module):
    """Maps images with codes to images, pixel by pixel."""

    def __init__(self, config: GeneratorConfig, code_size: int) -> None:
        """Build the layers. With a skip, the untrained generator is the identity."""
        super().__init__()
        self.config = config
        self.mapping, mapped = build_mapping(code_size, config.mapping)
        widths = [3, *[config.width] * config.depth]
        self.convolutions = nn.ModuleList(nn.Conv2d(a, b, 1) for a, b in pairwise(widths))
        self.modulations = nn.ModuleList(Modulation(width, mapped, config.statistics) for width in widths[1:])
        self.last = nn.Conv2d(config.width, 3, 1) if config.depth else nn.Identity()
        self.linear = nn.Linear(code_size, 12) if config.skip else None
        if self.linear is not None:
            for parameter in (*self.linear.parameters(), *self.last.parameters()):
                nn.init.zeros_(parameter)

    def forward(self, images: Tensor, code: Tensor) -> Tensor:
        """Return images (N, 3, H, W) in [0, 1] for codes (N, code_size).

        Without gradients, and with frozen statistics, a pixel depends only on its color and code. The last bits may
        depend on the processor; those of the kernel do not.
        """
        if torch.is_grad_enabled() and self.config.width >= RECOMPUTED_WIDTH:
            return to_rgb(checkpoint(self.density, to_density(images), code, use_reentrant=False))
        if torch.is_grad_enabled() or self.config.statistics == "instance":
            return to_rgb(self.density(to_density(images), code))
        return self.map_pixels(images, code)

    def map_pixels(self, images: Tensor, code: Tensor, finish: Finish | None = None) -> Tensor:
        """Return images like `forward` with frozen statistics, after applying `finish` to their densities."""
        output = torch.empty_like(images)
        for index, image in enumerate(images):
            output[index] = self._in_chunks(image, code[index : index + 1], finish)
        return output

    def _in_chunks(self, image: Tensor, code: Tensor, finish: Finish | None) -> Tensor:
        """Return an image (3, H, W), mapped with its code (1, code_size) in chunks of constant size.

        Convolutions sum in an order that depends on the size of their input, and elementwise functions round the last
        few of an odd number of values differently. Both would be visible where tiles of different sizes meet. A chunk
        stays in a core's cache, so this is faster from 32 channels on.
        """
        size = max(64, GRAIN // self.config.width // 64 * 64)
        pixels = image.flatten(1)
        count = pixels.shape[1]
        chunks = F.pad(pixels, (0, -count % size)).reshape(3, -1, size).transpose(0, 1).contiguous()
        mapped = torch.empty_like(chunks)
        for index, chunk in enumerate(chunks):
            before = to_density(chunk[None, :, None])
            after = self.density(before, code)
            mapped[index] = to_rgb(after if finish is None else finish(before, after))[0, :, 0]
        return mapped.transpose(0, 1).reshape(3, -1)[:, :count].reshape(image.shape)

    def density(self, density: Tensor, code: Tensor) -> Tensor:
        """Return densities (N, 3, H, W), not clipped, of densities (N, 3, H, W)."""
        if self.linear is None:
            return F.softplus(self._residual(density, code))
        matrix, bias = self.linear(code).split([9, 3], dim=1)
        matrix = matrix.reshape(-1, 3, 3) + torch.eye(3).to(matrix)
        mapped = torch.einsum("nchw,ndc->ndhw", density, matrix) + bias[:, :, None, None]
        return mapped + self._residual(density, code) if self.config.depth else mapped

    def _residual(self, density: Tensor, code: Tensor) -> Tensor:
        # Codes far outside the training range would mislead the layers; only the linear map uses them unclipped.
        mapped = self.mapping(code.clamp(-KNOWN_CODES, KNOWN_CODES))
        hidden = density
        for convolution, modulation in zip(self.convolutions, self.modulations, strict=True):
            hidden = F.relu(modulation(convolution(hidden), mapped))
        return self.last(hidden)


def build_mapping(code_size: int, width: int) -> tuple[nn.Module, int]:
    """Return the network between code and layers, and the size of its output."""
    if width == 0 or code_size == 0:
        return nn.Identity(), code_size
    return nn.Sequential(nn.Linear(code_size, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()), width
