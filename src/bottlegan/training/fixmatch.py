"""FixMatch: a network learns from unlabeled images what is already sure (Sohn et al. 2020).

Of each crop there is a weak view, turned and mirrored only, and a strong one, with its stain and colors distorted and
a rectangle of another crop pasted in (CutMix) or, where the crop as a whole has one class, blanked (Cutout). What the
round's first weights, the average of all labs, surely see in the weak view is the truth of the strong one. All labs do
this, those with labels beside learning from them.

Where pixels are labeled, it is not a threshold that says what is sure: background is sure first, so most of what
is above a threshold is background, and the network would come to see that alone. It is the surest share of the pixels
of each class (as in Zou et al. 2018), which leaves the classes as common as they are found.
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
from bottlegan.stain.density import to_density, to_rgb
from bottlegan.training.task import TrainingConfig, Vary, draw_crops, predict_batch, to_images


@document
class FixMatchConfig:
    """How a network learns from images without labels."""

    enabled: bool = False
    warm_up: float = 0.2
    """Share of the rounds before it starts. Before that, a network is sure of what it has seen most of."""
    surest: float = 0.5
    """Share of the pixels of each class, the surest ones, that count; 0 for all above the threshold, as published."""
    threshold: float = 0.9
    """Least confidence for a whole weak view to count or, without `surest`, a pixel of it."""
    weight: float = 0.3
    """Weight of an unlabeled image relative to a labeled one, in the loss and when weights are averaged."""
    jitter: float = 0.2
    """Largest relative change of the strong view's stain, brightness, contrast and saturation."""

    def __post_init__(self) -> None:
        """Check the shares."""
        shares = (self.jitter, self.warm_up, self.surest)
        if not 0.5 <= self.threshold < 1 or self.weight <= 0 or not all(0 <= share < 1 for share in shares):
            raise ConfigError("fixmatch: threshold must be .5 to 1, weight above 0, jitter, warm_up, surest 0 to 1")


def unlabeled_loss(
    network: Built,
    teacher: Built,
    given: Sequence[Pixels],
    config: FixMatchConfig,
    training: TrainingConfig,
    *,
    vary: Vary,
    random: np.random.Generator,
) -> Tensor:
    """Return the loss of the network on strong views of one batch of unlabeled crops, whose truth the teacher tells.

    Both views get colors from `vary`, drawn apart: in another staining style, a view is all the stronger.
    """
    unknown = [Labeled(image, np.zeros((), np.uint8)) for image in given]
    crops, _ = draw_crops(unknown, training, random)
    found, sure = label_sure(predict_batch(teacher, vary(crops, random)), config)
    strong = to_images(vary(crops, random))
    inside = draw_rectangles(len(crops), training.crop, random)
    strong = distort(stain_anew(strong, config.jitter, random), config.jitter, random)
    if found.ndim == 1:
        return class_loss("cross-entropy", network(cut_out(strong, inside)), found, sure)
    truth, weight = cut_mix(found[:, None], inside)[:, 0], cut_mix(sure[:, None], inside)[:, 0]
    return class_loss("cross-entropy", network(cut_mix(strong, inside)), truth, weight)


def label_sure(logits: Tensor, config: FixMatchConfig) -> tuple[Tensor, Tensor]:
    """Return the likeliest class of each pixel or patch, given logits (N, K, ...), and 1 where it is sure, else 0."""
    confidence, found = torch.softmax(logits, dim=1).max(dim=1)
    # Of patches there are too few in a batch to compare.
    if not config.surest or found.ndim == 1:
        return found, (confidence >= config.threshold).float()
    sure = torch.zeros_like(confidence)
    for each in found.unique():
        mine = found == each
        chosen = confidence[mine]
        least = chosen.kthvalue(max(1, round((1 - config.surest) * len(chosen)))).values
        sure[mine & (confidence >= least)] = 1
    return found, sure


def stain_anew(images: Tensor, jitter: float, random: np.random.Generator) -> Tensor:
    """Return images (N, 3, H, W), each with more or less density in each channel, as from another lab."""
    factors = torch.from_numpy(random.uniform(1 - jitter, 1 + jitter, (len(images), 3, 1, 1)).astype(np.float32))
    shifts = torch.from_numpy(random.uniform(-jitter, jitter, (len(images), 3, 1, 1)).astype(np.float32))
    return to_rgb(to_density(images) * factors + shifts)


def distort(images: Tensor, jitter: float, random: np.random.Generator) -> Tensor:
    """Return images (N, 3, H, W), each with its own brightness, contrast and saturation."""
    factors = torch.from_numpy(random.uniform(1 - jitter, 1 + jitter, (3, len(images), 1, 1, 1)).astype(np.float32))
    brightness, contrast, saturation = factors
    images = images * brightness
    mean = images.mean(dim=(1, 2, 3), keepdim=True)
    images = mean + contrast * (images - mean)
    gray = images.mean(dim=1, keepdim=True)
    return (gray + saturation * (images - gray)).clamp(0, 1)


def draw_rectangles(count: int, side: int, random: np.random.Generator) -> Tensor:
    """Return where each of `count` images gets a piece of the one before, (N, 1, side, side) bool: up to half of it."""
    inside = torch.zeros(count, 1, side, side, dtype=torch.bool)
    for row in range(count):
        share = random.uniform(0.1, 0.5)
        height = max(1, round(side * share ** random.uniform(0.2, 0.8)))
        width = min(side, max(1, round(share * side * side / height)))
        top, left = int(random.integers(side - height + 1)), int(random.integers(side - width + 1))
        inside[row, :, top : top + height, left : left + width] = True
    return inside


def cut_mix(images: Tensor, inside: Tensor) -> Tensor:
    """Return images (N, C, H, W) with a piece of the one before each, where `inside` (N, 1, H, W) says."""
    return torch.where(inside, images.roll(1, dims=0), images)


def cut_out(images: Tensor, inside: Tensor) -> Tensor:
    """Return images (N, C, H, W) with their mean color where `inside` (N, 1, H, W) says."""
    return torch.where(inside, images.mean(dim=(2, 3), keepdim=True), images)
