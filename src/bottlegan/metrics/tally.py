"""Scores that many clients add up: each counts over its own pixels or patches, and only sums leave it.

The sums of two sets add up to those of both, so what the server computes from the clients' sums is what anyone would
compute of all their images in one place.
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
"""Bins of log odds, from -HIGHEST to HIGHEST, that the areas under ROC curves are computed from."""
MOST = 2.0**53
"""Of anything that is counted; up to here, whole numbers are exact."""
MOST_SURPRISE = 1e6
"""Nats by which a network may be wrong about a pixel, on average: far more than one that was trained."""
ROUNDING = 1e-9
"""Of a sum of confidences, as a share of their number."""


@dataclass(frozen=True)
class Layout:
    """What a tally holds, one part after the other."""

    classes: int
    ranked: bool
    """Whether it also holds how often each class got which score, as areas under ROC curves need it: of patches."""

    @property
    def size(self) -> int:
        """The number of numbers in a tally."""
        return 3 * self.classes + len(TEMPERATURES) + 3 * BINS + (2 * self.classes * RANKS if self.ranked else 0)

    def split(self, total: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the parts of a tally: counts (3, K), log-likelihoods (T,), bins (3, B) and ranks (2, K, RANKS)."""
        counts, surprise, bins, ranks = total.split(
            [3 * self.classes, len(TEMPERATURES), 3 * BINS, self.size - 3 * self.classes - len(TEMPERATURES) - 3 * BINS]
        )
        return counts.reshape(3, -1), surprise, bins.reshape(3, BINS), ranks.reshape(2, -1, RANKS)


def tally(logits: Tensor, truth: Tensor, layout: Layout) -> Tensor:
    """Return the sums (layout.size,), float64, over finite logits (N, K) and the true classes (N,)."""
    found, truth = logits.argmax(dim=1), truth.long()
    counts = [torch.bincount(each, minlength=layout.classes) for each in (truth[found == truth], found, truth)]
    parts = [*(count.double() for count in counts), negative_log_likelihoods(logits, truth)]
    parts.append(calibration_bins(logits, truth).flatten())
    if layout.ranked:
        parts.append(count_ranks(logits, truth).flatten())
    return torch.cat(parts)


def count_ranks(logits: Tensor, truth: Tensor) -> Tensor:
    """Return how often each class got which log odds, (2, K, RANKS): where it is not the true one, and where it is."""
    odds = torch.logit(torch.softmax(logits.double(), dim=1))
    rank = ((odds + HIGHEST) / (2 * HIGHEST) * RANKS).clamp(0, RANKS - 1).long()
    classes = logits.shape[1]
    is_true = torch.nn.functional.one_hot(truth, classes)
    place = (is_true * classes + torch.arange(classes)) * RANKS + rank
    return torch.bincount(place.flatten(), minlength=2 * classes * RANKS).double()


def find_bad_tally(total: Tensor, layout: Layout) -> str | None:
    """Return what is wrong with a tally of somebody else, of the right size and type.

    Whatever passes is a tally that some network could have on some images: it gives finite scores, alone or added up.
    """
    if not bool(total.isfinite().all()) or bool((total < 0).any()) or bool((total > MOST).any()):
        return "its tally holds what no count can be"
    counts, surprise, bins, ranks = layout.split(total)
    right, found, true = counts
    confidence, correct, held = bins
    count = true.sum()
    same = [(found.sum(), count), (held.sum(), count), (correct.sum(), right.sum())]
    if layout.ranked:
        same += [*zip(ranks[1].sum(dim=1), true, strict=True), *zip(ranks[0].sum(dim=1), count - true, strict=True)]
    whole = torch.cat([counts.flatten(), correct, held, ranks.flatten()])
    edges, slack = torch.arange(BINS + 1, dtype=total.dtype) / BINS, ROUNDING * held
    below, above = edges[:-1] * held - slack, edges[1:] * held + slack
    faults = {
        "its tally counts parts of pixels": whole != whole.round(),
        "its tally counts more that is right than there is": torch.cat([right > found, right > true, correct > held]),
        "the parts of its tally do not fit together": torch.stack([one != other for one, other in same]),
        "its tally has confidences outside of their bins": torch.cat([confidence < below, confidence > above]),
        f"its tally has more than {MOST_SURPRISE:g} nats a pixel": surprise > MOST_SURPRISE * count,
    }
    return next((fault for fault, wrong in faults.items() if bool(wrong.any())), None)


def find_changed_tally(total: Tensor, layout: Layout, announced: Sequence[int]) -> str | None:
    """Return whether a tally is of other images than announced, which had so many pixels or patches of each class."""
    true = [int(each) for each in layout.split(total)[0][2].tolist()]
    if true == list(announced):
        return None
    counted, wanted = (" and ".join(map(str, each)) or "nothing" for each in (true, announced))
    return f"its tally counts {counted} of the classes, not {wanted}"


def count_all(total: Tensor, layout: Layout) -> int:
    """Return how many pixels or patches a tally counts."""
    return round(layout.split(total)[0][2].sum().item())


def compute_temperature(total: Tensor, layout: Layout) -> float:
    """Return the temperature that makes probabilities honest on what was counted."""
    return find_temperature(layout.split(total)[1])


def compute_scores(total: Tensor, layout: Layout, names: Sequence[str]) -> dict[str, float]:
    """Return the scores of a tally or of several, added up; of more than two classes, also class by class.

    Of pixels `iou` and `dice`: of the second class of two, or the mean over all but the first, the background. Of
    patches `accuracy`, `balanced_accuracy` (the mean share of each class that was found) and `auroc` (of the second
    class of two, or the mean of each against the rest). Of both `ece` and `nll`. Classes that are nowhere are left out;
    where none is left, all is right.
    """
    counts, surprise, bins, ranks = layout.split(total)
    count = counts[2].sum().item()
    if count == 0:
        raise InputError("there is no pixel to score; is the labeled set empty?")
    honest = {"ece": calibration_error(bins).item(), "nll": surprise[NEUTRAL].item() / count}
    return {**(_score_patches(counts, ranks, names) if layout.ranked else _score_pixels(counts, names)), **honest}


def _score_pixels(counts: Tensor, names: Sequence[str]) -> dict[str, float]:
    rows = counts.T.tolist()
    there = [k for k, (_, found, true) in enumerate(rows) if found + true > 0]
    iou = {k: rows[k][0] / (rows[k][1] + rows[k][2] - rows[k][0]) for k in there}
    dice = {k: 2 * rows[k][0] / (rows[k][1] + rows[k][2]) for k in there}
    scores = {"iou": _mean([iou[k] for k in there if k]), "dice": _mean([dice[k] for k in there if k])}
    if len(names) > 2:
        scores |= {f"iou/{names[k]}": iou[k] for k in there} | {f"dice/{names[k]}": dice[k] for k in there}
    return scores


def _score_patches(counts: Tensor, ranks: Tensor, names: Sequence[str]) -> dict[str, float]:
    right, _, true = counts.tolist()
    there = [k for k, count in enumerate(true) if count > 0]
    recall = {k: right[k] / true[k] for k in there}
    area = {k: _area(ranks[0, k], ranks[1, k]) for k in there if true[k] < sum(true)}
    scores = {"accuracy": sum(right) / sum(true), "balanced_accuracy": _mean(list(recall.values()))}
    ranked = [area[k] for k in area if k or len(names) > 2]
    if ranked:
        scores["auroc"] = _mean(ranked)
    if len(names) > 2:
        scores |= {f"recall/{names[k]}": recall[k] for k in there} | {f"auroc/{names[k]}": area[k] for k in area}
    return scores


def _area(others: Tensor, own: Tensor) -> float:
    """Return the area under the ROC curve: the chance that one of a class scores higher than another; ties are half."""
    below = others.cumsum(0) - others
    return float((own * (below + others / 2)).sum() / (own.sum() * others.sum()))


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 1.0
