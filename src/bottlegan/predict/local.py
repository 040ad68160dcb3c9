"""A network made local: what it says of a pixel depends on what is near, so that tiles of a slide fit together.

Group and instance normalization look at the whole image, so a tile of glass would come out as another network's. They
are given the statistics of tissue from all over the slide instead, once, and keep them. What is left reaches a number
of pixels far, which is measured: tiles overlap by so much, and the overlap is thrown away.
"""

import copy

import torch
from torch import Tensor, nn

from bottlegan.models.networks import Built

FAR = 128
"""Pixels that tiles overlap by at most: a network that looks further is cut off there."""
ROUND = 32
"""What the overlap is a multiple of, so that tiles begin where the network's coarse levels do."""
NEGLIGIBLE = 1e-6
"""Share of what a pixel's logits depend on that may be beyond the overlap."""


class Fixed(nn.Module):
    """Group or instance normalization by the statistics of the first batch that it sees, as if that were one image."""

    def __init__(self, layer: nn.Module, groups: int) -> None:
        """Take the place of a layer that normalizes so many groups of channels."""
        super().__init__()
        self.layer, self.groups = layer, groups
        self.scale: Tensor | None = None
        self.shift: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Return x (N, C, H, W), scaled and shifted, each channel in one way."""
        if self.scale is None or self.shift is None:
            self.scale, self.shift = self._measure(x)
        return torch.addcmul(self.shift, x, self.scale)

    def _measure(self, x: Tensor) -> tuple[Tensor, Tensor]:
        channels = x.shape[1]
        parts = x.double().transpose(0, 1).reshape(self.groups, -1)
        mean, variance = parts.mean(dim=1), parts.var(dim=1, unbiased=False)
        each = channels // self.groups
        scale = (variance + float(self.layer.eps)).rsqrt().repeat_interleave(each)  # type: ignore[arg-type]
        shift = -mean.repeat_interleave(each) * scale
        weight, bias = getattr(self.layer, "weight", None), getattr(self.layer, "bias", None)
        if isinstance(weight, Tensor) and isinstance(bias, Tensor):
            scale, shift = scale * weight.double(), shift * weight.double() + bias.double()
        shape = (1, channels, 1, 1)
        return scale.to(x.dtype).reshape(shape), shift.to(x.dtype).reshape(shape)


@torch.no_grad()
def fix_statistics(built: Built, tissue: Tensor) -> Built:
    """Return a copy of a network whose layers keep the statistics of `tissue` (N, 3, H, W), prepared as it wants it."""
    network = copy.deepcopy(built.network).eval()
    for name, layer in list(network.named_modules()):
        groups = _count_groups(layer)
        if groups is not None and name:
            parent, _, child = name.rpartition(".")
            setattr(network.get_submodule(parent), child, Fixed(layer, groups))
    fixed = Built(network, built.multiple)
    fixed(tissue)
    return fixed


def measure_reach(built: Built, tissue: Tensor) -> int:
    """Return how many pixels far a network for segmentation looks, rounded up, at most FAR.

    Measured on `tissue` (N, 3, H, W), prepared as it wants it: of all that the logits in the middle depend on, no more
    than NEGLIGIBLE lies beyond. Tissue, because of noise a network may say the same whatever changes.
    """
    side = 2 * (FAR + ROUND)
    across, down = -(-side // tissue.shape[3]), -(-side // tissue.shape[2])
    rows = [torch.cat([tissue[(y * across + x) % len(tissue)] for x in range(across)], dim=2) for y in range(down)]
    image = torch.cat(rows, dim=1)[None, :, :side, :side].clone().requires_grad_(True)
    middle = slice(side // 2 - ROUND // 2, side // 2 + ROUND // 2)
    with torch.enable_grad():
        logits = built(image)[..., middle, middle]
        signs = torch.randn(logits.shape, generator=torch.Generator().manual_seed(0))
        (gradient,) = torch.autograd.grad((logits * signs).sum(), image)
    weight, places = gradient[0].abs().sum(dim=0).double(), torch.arange(side)
    away = torch.maximum(middle.start - places, places - middle.stop + 1).clamp(min=0)
    distance = torch.maximum(away[:, None], away)
    beyond = torch.bincount(distance.flatten(), weights=weight.flatten()).flip(0).cumsum(0).flip(0)
    if not beyond[0] > 0:
        return FAR
    reach = int((beyond > NEGLIGIBLE * beyond[0]).sum()) - 1
    return min(FAR, reach + -reach % ROUND)


def _count_groups(layer: nn.Module) -> int | None:
    """Return how many groups of channels a layer normalizes over an image; None if it does not."""
    if isinstance(layer, nn.GroupNorm):
        return layer.num_groups
    if isinstance(layer, nn.modules.instancenorm._InstanceNorm) and not layer.track_running_stats:
        return layer.num_features
    return None
