"""FixMatch: a network learns from its own confident predictions on unlabeled images (Sohn et al. 2020).

It sees two views of each crop. The weak view is only turned and mirrored. The strong view also has distorted colors and
a rectangle of another crop pasted in (CutMix) or, if the crop as a whole has one class, blanked (Cutout). Wherever the
network is confident on the weak view, its prediction is the truth for the strong view. By default all labs do this from
the first round on; labs with labels learn from these as well.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from bottlegan.core.config import document
from bottlegan.core.errors import ConfigError
from bottlegan.data.labels import Labeled
from bottlegan.imaging.files import Pixels
from bottlegan.losses import class_loss
from bottlegan.models.networks import Built
from bottlegan.training.task import TrainingConfig, Vary, draw_crops, to_images


@document
class FixMatchConfig:
    """How a network learns from unlabeled images."""

    enabled: bool = False
    warm_up: float = 0.0
    """Share of the rounds before FixMatch starts. By default it starts at once, as published."""
    threshold: float = 0.9
    """Minimum confidence for a pixel of the weak view, or for the whole view, to count."""
    weight: float = 1.0
    """Weight of an unlabeled image relative to a labeled one, in the loss and when weights are averaged."""
    jitter: float = 0.2
    """Largest relative change of the strong view's brightness, contrast and saturation."""

    def __post_init__(self) -> None:
        """Check the shares."""
        shares = (self.jitter, self.warm_up)
        if not 0.5 <= self.threshold < 1 or self.weight <= 0 or not all(0 <= share < 1 for share in shares):
            raise ConfigError("fixmatch: threshold must be .5 to 1, weight above 0, jitter and warm_up 0 to 1")


def unlabeled_loss(
    network: Built,
    images: Sequence[Pixels],
    config: FixMatchConfig,
    training: TrainingConfig,
    *,
    vary: Vary,
    random: np.random.Generator,
) -> Tensor:
    """Return the network's loss on the strong views of one batch of unlabeled crops.

    `vary` changes the colors of each view separately, so the strong view may be in another staining style.
    """
    unknown = [Labeled(image, np.zeros((), np.uint8)) for image in images]
    crops, _ = draw_crops(unknown, training, random)
    weak = to_images(vary(crops, random))
    strong = to_images(vary(crops, random))
    with torch.no_grad():
        truth, is_sure = label_sure(network(weak), config.threshold)
    inside = draw_rectangles(len(crops), training.crop, random)
    strong = distort(strong, config.jitter, random)
    if truth.ndim == 1:
        return class_loss("cross-entropy", network(cut_out(strong, inside)), truth, is_sure)
    truth, weight = cut_mix(truth[:, None], inside)[:, 0], cut_mix(is_sure[:, None], inside)[:, 0]
    return class_loss("cross-entropy", network(cut_mix(strong, inside)), truth, weight)


def label_sure(logits: Tensor, threshold: float) -> tuple[Tensor, Tensor]:
    """Return the likeliest class of each pixel or patch from logits (N, K, ...), and 1 where it is confident, or 0."""
    confidence, classes = torch.softmax(logits, dim=1).max(dim=1)
    return classes, (confidence >= threshold).float()


def distort(images: Tensor, jitter: float, random: np.random.Generator) -> Tensor:
    """Change the brightness, contrast and saturation of each image (N, 3, H, W) at random."""
    factors = torch.from_numpy(random.uniform(1 - jitter, 1 + jitter, (3, len(images), 1, 1, 1)).astype(np.float32))
    brightness, contrast, saturation = factors
    images = images * brightness
    mean = images.mean(dim=(1, 2, 3), keepdim=True)
    images = mean + contrast * (images - mean)
    gray = images.mean(dim=1, keepdim=True)
    return (gray + saturation * (images - gray)).clamp(0, 1)


def draw_rectangles(count: int, side: int, random: np.random.Generator) -> Tensor:
    """Draw one rectangle per image, as masks (N, 1, side, side): a tenth to half of the area."""
    inside = torch.zeros(count, 1, side, side, dtype=torch.bool)
    for row in range(count):
        share = random.uniform(0.1, 0.5)
        height = max(1, round(side * share ** random.uniform(0.2, 0.8)))
        width = min(side, max(1, round(share * side * side / height)))
        top, left = int(random.integers(side - height + 1)), int(random.integers(side - width + 1))
        inside[row, :, top : top + height, left : left + width] = True
    return inside


def cut_mix(images: Tensor, inside: Tensor) -> Tensor:
    """Replace the part of each image (N, C, H, W) inside its mask (N, 1, H, W) by the image before it in the batch."""
    return torch.where(inside, images.roll(1, dims=0), images)


def cut_out(images: Tensor, inside: Tensor) -> Tensor:
    """Replace the part of each image (N, C, H, W) inside its mask (N, 1, H, W) by its mean color."""
    return torch.where(inside, images.mean(dim=(2, 3), keepdim=True), images)
