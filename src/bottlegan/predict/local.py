"""Making a network local: its prediction of a pixel depends only on nearby pixels, so tiles of a slide fit together.

Group and instance normalization depend on the whole image, so a tile of glass would get different results. They are
given fixed statistics of tissue from all over the slide instead. The rest of the network sees a limited distance, which
is measured. Tiles overlap by that distance, and the overlap is discarded.
"""

import copy

import torch
from torch import Tensor, nn

from bottlegan.models.networks import Built

FAR = 128
"""Largest overlap of tiles in pixels. A network that sees further is cut off there."""
ROUND = 32
"""The overlap is a multiple of this, so that tiles align with the network's coarse levels."""
NEGLIGIBLE = 1e-6
"""Share of the influences on a pixel's logits that may lie beyond the overlap."""


class Fixed(nn.Module):
    """Group or instance normalization with the statistics of the first batch it sees, treated as one image."""

    def __init__(self, layer: nn.Module, groups: int) -> None:
        """Replace a layer that normalizes `groups` groups of channels."""
        super().__init__()
        self.layer, self.groups = layer, groups
        self.scale: Tensor | None = None
        self.shift: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Return x (N, C, H, W) with each channel scaled and shifted."""
        if self.scale is None or self.shift is None:
            self.scale, self.shift = self._measure(x)
        return torch.addcmul(self.shift, x, self.scale)

    def _measure(self, x: Tensor) -> tuple[Tensor, Tensor]:
        channels = x.shape[1]
        parts = x.double().transpose(0, 1).reshape(self.groups, -1)
        mean, variance = parts.mean(dim=1), parts.var(dim=1, unbiased=False)
        channels_per_group = channels // self.groups
        scale = (variance + float(self.layer.eps)).rsqrt().repeat_interleave(channels_per_group)  # type: ignore[arg-type]
        shift = -mean.repeat_interleave(channels_per_group) * scale
        weight, bias = getattr(self.layer, "weight", None), getattr(self.layer, "bias", None)
        if isinstance(weight, Tensor) and isinstance(bias, Tensor):
            scale, shift = scale * weight.double(), shift * weight.double() + bias.double()
        shape = (1, channels, 1, 1)
        return scale.to(x.dtype).reshape(shape), shift.to(x.dtype).reshape(shape)


@torch.no_grad()
def fix_statistics(built: Built, tissue: Tensor) -> Built:
    """Return a copy of a network whose layers keep the statistics of `tissue` (N, 3, H, W), prepared for it."""
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
    """Return how many pixels away a segmentation network sees, rounded up, at most FAR.

    It is measured on `tissue` (N, 3, H, W), prepared for the network: no more than NEGLIGIBLE of the influences on the
    central logits lies further away. Tissue is needed because a network's output for noise may be constant.
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
