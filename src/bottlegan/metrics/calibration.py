"""How far a segmentation's probabilities can be trusted: expected calibration error (ECE) and log-likelihood (NLL).

Both are sums over pixels, kept in double precision and constant memory, so 10^8 pixels cost no more than one patch.
torchmetrics has an ECE too, but not this one: its binary form compares p(epithelium) with the epithelium's frequency
instead of the winning class's confidence with its accuracy, it keeps the confidence of every pixel, and it puts
confidences of exactly 1, which a sigmoid reaches soon, into a bin of their own.
"""

import torch
import torch.nn.functional as F
from torch import Tensor
from torchmetrics import Metric

BINS = 40
"""How many equal bins divide the confidences in [0, 1], as in the paper; two classes can only fill the upper half."""


def calibration_bins(logits: Tensor, truth: Tensor) -> Tensor:
    """Return what each confidence bin holds: the sums of confidence and of correctness, and the pixel count.

    The predicted class is epithelium where the logit is above 0, and its confidence is max(p, 1 - p).

    Args:
        logits: Finite logits of the epithelium class, of any shape.
        truth: 1 where there is epithelium, 0 elsewhere, of the same shape.

    Returns:
        Float64 sums `(3, BINS)`; those of two batches add up to those of both. Bins are closed below, the last also
        above.
    """
    logits, truth = logits.flatten().double(), truth.flatten()
    confidence = torch.sigmoid(logits.abs())
    correct = ((logits > 0) == (truth > 0)).double()
    index = (confidence * BINS).long().clamp(max=BINS - 1)
    columns = (confidence, correct, torch.ones_like(confidence))
    return torch.stack([torch.bincount(index, weights=column, minlength=BINS) for column in columns])


def calibration_error(bins: Tensor) -> Tensor:
    """Return the ECE in [0, 1] of the sums `(3, BINS)` of `calibration_bins`, which must hold a pixel.

    It is sum_b n_b / n |accuracy_b - confidence_b|; with sums instead of means, the n_b cancel.
    """
    confidence, correct, count = bins.unbind()
    return (correct - confidence).abs().sum() / count.sum()


def negative_log_likelihood(logits: Tensor, truth: Tensor) -> Tensor:
    """Return the sum over pixels of -ln p(true class), float64, from finite logits and a 0/1 truth of the same shape.

    Computed from logits because a probability that rounds to 0 would make it infinite.
    """
    return F.binary_cross_entropy_with_logits(logits.double(), truth.double(), reduction="sum")


class ExpectedCalibrationError(Metric):
    """The ECE over all pixels of all batches: see `calibration_bins` for their shapes."""

    is_differentiable = False
    higher_is_better = False
    full_state_update = False

    bins: Tensor

    def __init__(self) -> None:
        """Start with no pixel."""
        super().__init__()
        self.add_state("bins", torch.zeros(3, BINS, dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, logits: Tensor, truth: Tensor) -> None:
        """Add the pixels of a batch."""
        self.bins += calibration_bins(logits, truth)

    def compute(self) -> Tensor:
        """Return the ECE in [0, 1]; NaN without a pixel."""
        return calibration_error(self.bins)


class PixelNLL(Metric):
    """The mean negative log-likelihood over all pixels of all batches: see `negative_log_likelihood`."""

    is_differentiable = False
    higher_is_better = False
    full_state_update = False

    total: Tensor
    pixels: Tensor

    def __init__(self) -> None:
        """Start with no pixel."""
        super().__init__()
        self.add_state("total", torch.tensor(0, dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("pixels", torch.tensor(0), dist_reduce_fx="sum")

    def update(self, logits: Tensor, truth: Tensor) -> None:
        """Add the pixels of a batch."""
        self.total += negative_log_likelihood(logits, truth)
        self.pixels += logits.numel()

    def compute(self) -> Tensor:
        """Return the mean, at least 0; NaN without a pixel."""
        return self.total / self.pixels
