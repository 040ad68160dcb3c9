"""FixMatch: a network learns from confident predictions on unlabeled images (Sohn et al. 2020).

It sees two views of each crop. The weak view is only turned and mirrored. The strong view also has distorted stain and
colors, and a rectangle of another crop pasted in (CutMix) or, if the crop as a whole has one class, blanked (Cutout).
Wherever the teacher is confident on the weak view, its prediction is the truth for the strong view. The teacher has the
first weights of the round, which are the average of all labs. All labs do this; labs with labels learn from these, too.

For pixels, confidence is not a threshold. A network becomes sure of background first, so most pixels above a threshold
are background, and the network would come to predict nothing else. The most confident share of the pixels of each class
counts instead (as in Zou et al. 2018), so the classes stay as common as they are predicted.
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
    """How a network learns from unlabeled images."""

    enabled: bool = False
    warm_up: float = 0.2
    """Share of the rounds before FixMatch starts. Earlier, a network is sure of what it has seen most."""
    surest: float = 0.5
    """Share of the pixels of each class that count, the most confident ones; 0 for all above the threshold."""
    threshold: float = 0.9
    """Minimum confidence for a whole weak view to count or, if `surest` is 0, for a pixel of it."""
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
    images: Sequence[Pixels],
    config: FixMatchConfig,
    training: TrainingConfig,
    *,
    vary: Vary,
    random: np.random.Generator,
) -> Tensor:
    """Return the network's loss on the strong views of one batch of unlabeled crops; the teacher labels the weak views.

    `vary` changes the colors of each view separately, so the strong view may be in another staining style.
    """
    unknown = [Labeled(image, np.zeros((), np.uint8)) for image in images]
    crops, _ = draw_crops(unknown, training, random)
    classes, is_sure = label_sure(predict_batch(teacher, vary(crops, random)), config)
    strong = to_images(vary(crops, random))
    inside = draw_rectangles(len(crops), training.crop, random)
    strong = distort(stain_anew(strong, config.jitter, random), config.jitter, random)
    if classes.ndim == 1:
        return class_loss("cross-entropy", network(cut_out(strong, inside)), classes, is_sure)
    truth, weight = cut_mix(classes[:, None], inside)[:, 0], cut_mix(is_sure[:, None], inside)[:, 0]
    return class_loss("cross-entropy", network(cut_mix(strong, inside)), truth, weight)


def label_sure(logits: Tensor, config: FixMatchConfig) -> tuple[Tensor, Tensor]:
    """Return the likeliest class of each pixel or patch from logits (N, K, ...), and 1 where it is confident, or 0."""
    confidence, classes = torch.softmax(logits, dim=1).max(dim=1)
    # A batch has too few patches to compare them with each other.
    if not config.surest or classes.ndim == 1:
        return classes, (confidence >= config.threshold).float()
    is_sure = torch.zeros_like(confidence)
    for number in classes.unique():
        of_class = classes == number
        confidences = confidence[of_class]
        least = confidences.kthvalue(max(1, round((1 - config.surest) * len(confidences)))).values
        is_sure[of_class & (confidence >= least)] = 1
    return classes, is_sure


def stain_anew(images: Tensor, jitter: float, random: np.random.Generator) -> Tensor:
    """Return images (N, 3, H, W), each with more or less density in each channel, as from another lab."""
    factors = torch.from_numpy(random.uniform(1 - jitter, 1 + jitter, (len(images), 3, 1, 1)).astype(np.float32))
    shifts = torch.from_numpy(random.uniform(-jitter, jitter, (len(images), 3, 1, 1)).astype(np.float32))
    return to_rgb(to_density(images) * factors + shifts)


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
