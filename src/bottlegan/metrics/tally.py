"""Scores that many clients add up: each counts over its own pixels, and only sums leave it.

The sums of two sets of pixels add up to those of both, so what the server computes from the clients' sums is what
`SegmentationScores` would say of all their pixels in one place.
"""

import torch
from torch import Tensor

from bottlegan.errors import InputError
from bottlegan.metrics.calibration import BINS, calibration_bins, calibration_error, negative_log_likelihood

SIZE = 4 + 3 * BINS
"""Numbers in a tally: intersection, union, -ln p(true class), pixels, and the calibration bins."""


def tally(logits: Tensor, truth: Tensor) -> Tensor:
    """Return the sums (SIZE,), float64, over finite logits of the epithelium and a 0/1 truth of the same shape."""
    found, wanted = logits > 0, truth > 0
    counts = [(found & wanted).sum(), (found | wanted).sum(), negative_log_likelihood(logits, truth)]
    head = torch.stack([count.double() for count in counts])
    pixels = torch.tensor([logits.numel()], dtype=torch.float64)
    return torch.cat([head, pixels, calibration_bins(logits, truth).flatten()])


def compute_scores(total: Tensor) -> dict[str, float]:
    """Return `iou`, `ece` and `nll` of the sums (SIZE,) of a tally or of several, added up."""
    intersection, union, surprise, pixels = total[:4].tolist()
    if pixels == 0:
        raise InputError("there is no pixel to score; is the labeled set empty?")
    return {
        "iou": intersection / union if union else 1.0,
        "ece": calibration_error(total[4:].reshape(3, BINS)).item(),
        "nll": surprise / pixels,
    }
