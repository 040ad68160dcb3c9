"""Scores of many clients: each client counts its own pixels or patches, and only sums leave it.

Sums of two sets add up to the sums over both. The server therefore computes from the clients' sums exactly the scores
of all their images in one place.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bottlegan.core.errors import InputError
from bottlegan.metrics.calibration import (
    BINS,
    NEUTRAL,
    TEMPERATURES,
    calibration_bins,
    calibration_error,
    find_temperature,
    negative_log_likelihoods,
)

RANKS, HIGHEST = 512, 16.0
"""Number of bins of log odds, from -HIGHEST to HIGHEST, for computing areas under ROC curves."""
MOST = 2.0**53
"""Largest count; up to here, whole numbers are exact."""
MOST_SURPRISE = 1e6
"""Largest mean negative log-likelihood of a pixel, in nats: far more than that of any trained network."""
ROUNDING = 1e-9
"""Relative rounding error of a sum of confidences."""


@dataclass(frozen=True)
class Layout:
    """The layout of a tally, part by part."""

    classes: int
    ranked: bool
    """Whether it also holds histograms of each class's scores, for areas under ROC curves; only for patches."""

    @property
    def size(self) -> int:
        """Length of a tally."""
        return 3 * self.classes + len(TEMPERATURES) + 3 * BINS + (2 * self.classes * RANKS if self.ranked else 0)

    def split(self, total: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the parts of a tally: counts (3, K), log-likelihoods (T,), bins (3, B) and ranks (2, K, RANKS)."""
        counts, surprise, bins, ranks = total.split(
            [3 * self.classes, len(TEMPERATURES), 3 * BINS, self.size - 3 * self.classes - len(TEMPERATURES) - 3 * BINS]
        )
        return counts.reshape(3, -1), surprise, bins.reshape(3, BINS), ranks.reshape(2, -1, RANKS)


def tally(logits: Tensor, truth: Tensor, layout: Layout) -> Tensor:
    """Return the sums (layout.size,), float64, over finite logits (N, K) and the true classes (N,)."""
    predicted, truth = logits.argmax(dim=1), truth.long()
    classes = (truth[predicted == truth], predicted, truth)
    counts = [torch.bincount(ids, minlength=layout.classes) for ids in classes]
    parts = [*(count.double() for count in counts), negative_log_likelihoods(logits, truth)]
    parts.append(calibration_bins(logits, truth).flatten())
    if layout.ranked:
        parts.append(count_ranks(logits, truth).flatten())
    return torch.cat(parts)


def count_ranks(logits: Tensor, truth: Tensor) -> Tensor:
    """Return histograms of each class's log odds (2, K, RANKS), where it is not the true class and where it is."""
    odds = torch.logit(torch.softmax(logits.double(), dim=1))
    rank = ((odds + HIGHEST) / (2 * HIGHEST) * RANKS).clamp(0, RANKS - 1).long()
    classes = logits.shape[1]
    is_true = torch.nn.functional.one_hot(truth, classes)
    place = (is_true * classes + torch.arange(classes)) * RANKS + rank
    return torch.bincount(place.flatten(), minlength=2 * classes * RANKS).double()


def find_bad_tally(total: Tensor, layout: Layout) -> str | None:
    """Return what is wrong with a tally that somebody else sent, which has the right size and type.

    A tally that passes is one that some network could have on some images. It gives finite scores, alone or in a sum.
    """
    if not bool(total.isfinite().all()) or bool((total < 0).any()) or bool((total > MOST).any()):
        return "its tally holds an impossible count"
    counts, surprise, bins, ranks = layout.split(total)
    right, predicted, true = counts
    confidence, correct, held = bins
    count = true.sum()
    equal = [(predicted.sum(), count), (held.sum(), count), (correct.sum(), right.sum())]
    if layout.ranked:
        equal += [*zip(ranks[1].sum(dim=1), true, strict=True), *zip(ranks[0].sum(dim=1), count - true, strict=True)]
    whole = torch.cat([counts.flatten(), correct, held, ranks.flatten()])
    edges, slack = torch.arange(BINS + 1, dtype=total.dtype) / BINS, ROUNDING * held
    below, above = edges[:-1] * held - slack, edges[1:] * held + slack
    faults = {
        "its tally counts parts of pixels": whole != whole.round(),
        "its tally counts more correct than there are": torch.cat([right > predicted, right > true, correct > held]),
        "the parts of its tally do not match": torch.stack([left != right_side for left, right_side in equal]),
        "its tally has confidences outside their bins": torch.cat([confidence < below, confidence > above]),
        f"its tally has more than {MOST_SURPRISE:g} nats a pixel": surprise > MOST_SURPRISE * count,
    }
    return next((fault for fault, wrong in faults.items() if bool(wrong.any())), None)


def find_changed_tally(total: Tensor, layout: Layout, announced: Sequence[int]) -> str | None:
    """Return how a tally's counts per class differ from those announced; None if they are the same."""
    true = [int(count) for count in layout.split(total)[0][2].tolist()]
    if true == list(announced):
        return None
    counted, expected = (" and ".join(map(str, counts)) or "nothing" for counts in (true, announced))
    return f"its tally counts {counted} of the classes, not {expected}"


def count_all(total: Tensor, layout: Layout) -> int:
    """Return how many pixels or patches a tally counts."""
    return round(layout.split(total)[0][2].sum().item())


def compute_temperature(total: Tensor, layout: Layout) -> float:
    """Return the temperature that calibrates the probabilities on the counted pixels or patches."""
    return find_temperature(layout.split(total)[1])


def compute_scores(total: Tensor, layout: Layout, names: Sequence[str]) -> dict[str, float]:
    """Return the scores of a tally, or of a sum of tallies. With more than two classes, add scores per class.

    For pixels: `iou` and `dice`, of the second of two classes, or else the mean over all classes except the first, the
    background. For patches: `accuracy`, `balanced_accuracy` (the mean recall of the classes) and `auroc` (of the second
    of two classes, or else the mean of each class against the rest). For both: `ece` and `nll`. Classes that neither
    the truth nor the predictions contain are left out; if none remains, the score is 1.
    """
    counts, surprise, bins, ranks = layout.split(total)
    count = counts[2].sum().item()
    if count == 0:
        raise InputError("there is nothing to score; check that the labeled set is not empty")
    calibration = {"ece": calibration_error(bins).item(), "nll": surprise[NEUTRAL].item() / count}
    return {**(_score_patches(counts, ranks, names) if layout.ranked else _score_pixels(counts, names)), **calibration}


def _score_pixels(counts: Tensor, names: Sequence[str]) -> dict[str, float]:
    rows = counts.T.tolist()
    present = [k for k, (_, predicted, true) in enumerate(rows) if predicted + true > 0]
    iou = {k: rows[k][0] / (rows[k][1] + rows[k][2] - rows[k][0]) for k in present}
    dice = {k: 2 * rows[k][0] / (rows[k][1] + rows[k][2]) for k in present}
    scores = {"iou": _mean([iou[k] for k in present if k]), "dice": _mean([dice[k] for k in present if k])}
    if len(names) > 2:
        scores |= {f"iou/{names[k]}": iou[k] for k in present} | {f"dice/{names[k]}": dice[k] for k in present}
    return scores


def _score_patches(counts: Tensor, ranks: Tensor, names: Sequence[str]) -> dict[str, float]:
    right, _, true = counts.tolist()
    present = [k for k, count in enumerate(true) if count > 0]
    recall = {k: right[k] / true[k] for k in present}
    area = {k: _area(ranks[0, k], ranks[1, k]) for k in present if true[k] < sum(true)}
    scores = {"accuracy": sum(right) / sum(true), "balanced_accuracy": _mean(list(recall.values()))}
    ranked = [area[k] for k in area if k or len(names) > 2]
    if ranked:
        scores["auroc"] = _mean(ranked)
    if len(names) > 2:
        scores |= {f"recall/{names[k]}": recall[k] for k in present} | {f"auroc/{names[k]}": area[k] for k in area}
    return scores


def _area(others: Tensor, own: Tensor) -> float:
    """Return the area under the ROC curve: the chance that a member scores above a non-member; ties count half."""
    below = others.cumsum(0) - others
    return float((own * (below + others / 2)).sum() / (own.sum() * others.sum()))


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 1.0
