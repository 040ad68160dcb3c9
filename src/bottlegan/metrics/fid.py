"""The Fréchet distance between two sets of images. It compares the sets as a whole, without pairing images.

The features of each set are treated as a Gaussian. The distance is that between the two Gaussians,

    |m1 - m2|^2 + trace(S1 + S2 - 2 (S1 S2)^(1/2)).

With Inception's features it is the FID. It is biased upward for few images, so compare only sets of equal size.
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
    """A distance and the features that it was measured with."""

    value: float
    """The distance in squared units of the features, finite and at least 0."""
    extractor: str
    """The name of the features."""
    comparable: bool
    """Whether it is comparable with published FIDs."""


class _Features(nn.Identity):
    """Takes features for images, so that torchmetrics sees doubles on the CPU whatever the extractor gives."""

    def __init__(self, num_features: int) -> None:
        super().__init__()
        self.num_features = num_features


def frechet_distance(
    outputs: Iterable[Tensor], truths: Iterable[Tensor], extractor: FeatureExtractor | None = None
) -> FrechetDistance:
    """Return the Fréchet distance between two sets of images.

    Args:
        outputs: Batches `(N, 3, H, W)` in [0, 1]; sizes may differ between batches. Fewer than two images in total
            raise an `InputError`.
        truths: Likewise. The images need not match `outputs`, not even in number.
        extractor: Computes the features; `OfflineFeatures` by default.
    """
    extractor = OfflineFeatures() if extractor is None else extractor
    metric = FrechetInceptionDistance(feature=_Features(extractor.num_features))
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
