"""The Fréchet distance between two sets of images: how far apart they are as sets, whatever image belongs to which.

Features of the images of each set are taken for a Gaussian; the distance is that of the two Gaussians,

    |m1 - m2|^2 + trace(S1 + S2 - 2 (S1 S2)^(1/2)).

With Inception's features it is the FID. It is biased upward for few images, so compare only sets of equal sizes.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torchmetrics.image.fid import FrechetInceptionDistance

from bottlegan.core.errors import InputError
from bottlegan.metrics.features import FeatureExtractor, OfflineFeatures
from bottlegan.metrics.image import check_images


@dataclass(frozen=True)
class FrechetDistance:
    """A distance that says what it was measured with."""

    value: float
    """The distance, finite and at least 0; in squared units of the features."""
    extractor: str
    """The name of the features."""
    comparable: bool
    """Whether it can stand beside the FIDs in the literature."""


class _Given(nn.Identity):
    """Takes features for images, so that torchmetrics sees doubles on the CPU whatever the extractor gives."""

    def __init__(self, num_features: int) -> None:
        super().__init__()
        self.num_features = num_features


def frechet_distance(
    outputs: Iterable[Tensor], truths: Iterable[Tensor], extractor: FeatureExtractor | None = None
) -> FrechetDistance:
    """Return the Fréchet distance between two sets of images.

    Args:
        outputs: Batches `(N, 3, H, W)` in [0, 1]; sizes may differ between batches. At least two images in all, or it
            is an `InputError`.
        truths: Likewise. The images need not match `outputs`, not even in number.
        extractor: Whose features are compared; `OfflineFeatures` unless given.
    """
    extractor = OfflineFeatures() if extractor is None else extractor
    metric = FrechetInceptionDistance(feature=_Given(extractor.num_features))
    for what, batches, real in (("output images", outputs, False), ("true images", truths, True)):
        count = 0
        for images in batches:
            check_images(images, what)
            with torch.no_grad():
                metric.update(extractor(images).to("cpu", torch.float64), real=real)
            count += len(images)
        if count < 2:
            raise InputError(f"a Fréchet distance needs at least 2 {what}, got {count}")
    # Rounding can leave a distance of 0 slightly negative.
    return FrechetDistance(max(0.0, metric.compute().item()), extractor.name, extractor.comparable)
