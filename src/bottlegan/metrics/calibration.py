"""How far a network's probabilities can be trusted: expected calibration error (ECE) and log-likelihood (NLL).

Both are sums over pixels or patches in double precision, so 10^8 pixels need no more memory than one patch.
torchmetrics also has an ECE, but it keeps the confidence of every pixel. It also puts confidences of exactly 1, which a
network soon reaches, into a bin of their own.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

BINS = 40
"""Number of equal bins of the confidences in [0, 1], as in the paper."""
COLDEST, HOTTEST = 0.2, 5.0
"""Range in which a temperature is searched."""
TEMPERATURES = tuple(math.exp(math.log(HOTTEST) * step / 8) for step in range(-8, 9))
"""The temperatures at which log-likelihoods are summed; the middle one is 1."""
NEUTRAL = TEMPERATURES.index(1.0)


def calibration_bins(logits: Tensor, truth: Tensor) -> Tensor:
    """Return the content of each confidence bin: the sums of confidence and of correctness, and the count.

    Args:
        logits: (N, K) finite logits of K classes.
        truth: (N,) true classes.

    Returns:
        Float64 sums `(3, BINS)`. Sums of two batches add up to the sums over both. Bins include their lower edge, and
        the last includes its upper edge too.
    """
    confidence, predicted = torch.softmax(logits.double(), dim=1).max(dim=1)
    index = (confidence * BINS).long().clamp(max=BINS - 1)
    columns = (confidence, (predicted == truth).double(), torch.ones_like(confidence))
    return torch.stack([torch.bincount(index, weights=column, minlength=BINS) for column in columns])


def calibration_error(bins: Tensor) -> Tensor:
    """Return the ECE in [0, 1] from the sums `(3, BINS)` of `calibration_bins`, which must not be empty.

    It is sum_b n_b / n |accuracy_b - confidence_b|. With sums instead of means, the n_b cancel.
    """
    confidence, correct, count = bins.unbind()
    return (correct - confidence).abs().sum() / count.sum()


def negative_log_likelihoods(logits: Tensor, truth: Tensor) -> Tensor:
    """Return the sums of -ln p(true class), float64, of logits (N, K) divided by each of TEMPERATURES.

    It is computed from logits, because a probability that rounds to 0 would make it infinite.
    """
    # Only the differences to the logit of the true class matter.
    behind = (logits - logits.gather(1, truth[:, None])).double()
    if behind.shape[1] == 2:
        gap = behind.sum(dim=1)  # one of the two is zero
        return torch.stack([F.softplus(gap / temperature).sum() for temperature in TEMPERATURES])
    return torch.stack([torch.logsumexp(behind / temperature, dim=1).sum() for temperature in TEMPERATURES])


def find_temperature(sums: Tensor) -> float:
    """Return the temperature at which the sums (T,) of `negative_log_likelihoods` are smallest.

    They are convex in the inverse temperature, so there is one minimum. A parabola through the nearest temperatures
    gives it. Dividing logits changes no class, hence no IOU or accuracy; it only calibrates the probabilities.
    """
    values = sums.tolist()
    best = min(range(len(values)), key=values.__getitem__)
    if not 0 < best < len(values) - 1:
        return TEMPERATURES[best]
    before, here, after = values[best - 1 : best + 2]
    bend = before - 2 * here + after
    shift = 0.5 * (before - after) / bend if bend > 0 else 0.0
    step = math.log(TEMPERATURES[best + 1] / TEMPERATURES[best])
    return TEMPERATURES[best] * math.exp(step * shift)
