"""What a curious server can learn about labs: three attacks on membership, one on a property, one on the lab.

All attacks see what the server sees: the weights of each round, and each lab's update if it is sent in the clear. If
only the sum is known, the attacker uses the average for every lab.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torchmetrics.functional.classification import binary_auroc

from bottlegan.core.seeding import numpy_stream
from bottlegan.data.labels import Labeled
from bottlegan.federated.protocol.phase2 import Phase2Config, load_network
from bottlegan.federated.protocol.privacy import Floats, add_row
from bottlegan.losses import class_loss
from bottlegan.models.networks import Weights
from bottlegan.training.task import to_images, to_truth

Scores = NDArray[np.float64]


@dataclass(frozen=True)
class Candidate:
    """An image, and whether a lab has trained on it, which the attacker wants to know."""

    lab: str
    patch: Labeled
    member: bool


@dataclass(frozen=True)
class Seen:
    """What the server sees of a round."""

    number: int
    start: Weights
    average: Floats
    """The average update, which follows from the next round's weights."""
    updates: Mapping[str, Floats]
    """The updates of single labs, if they are visible."""

    def of(self, lab: str) -> Floats:
        """Return the best estimate of a lab's update."""
        return self.updates.get(lab, self.average)


def draw_candidates(labs: Mapping[str, tuple[Sequence[Labeled], Sequence[Labeled]]], seed: int) -> list[Candidate]:
    """Return each lab's training patches, and as many windows of the same size from its other patches."""
    candidates = []
    for name, (labeled, test) in labs.items():
        random = numpy_stream(seed, "candidates", name)
        for sample in labeled:
            candidates.append(Candidate(name, sample, member=True))
            other, side = test[int(random.integers(len(test)))], sample.image.shape[0]
            top, left = (int(random.integers(length - side + 1)) for length in other.image.shape[:2])
            window = np.s_[top : top + side, left : left + side]
            candidates.append(Candidate(name, Labeled(other.image[window], other.truth[window]), member=False))
    return candidates


def attack(
    candidates: Sequence[Candidate], rounds: Sequence[Seen], final: Weights, config: Phase2Config
) -> dict[str, float]:
    """Return the area under the curve of each attack on membership, and how often an image's lab is recognized."""
    names = sorted({candidate.lab for candidate in candidates})
    alignment, drop = np.zeros(len(candidates)), np.zeros(len(candidates))
    lab_scores = np.zeros((len(candidates), len(names)))
    for seen in rounds:
        rows = np.stack([seen.of(name) for name in names])
        rows /= np.linalg.norm(rows, axis=1, keepdims=True) + 1e-12
        # Each lab's trained weights, or their best estimate.
        after = {name: add_row(seen.start, seen.of(name)) for name in names}
        for row, candidate in enumerate(candidates):
            loss, gradient = differentiate(seen.start, candidate.patch, config)
            cosines = -(rows @ gradient) / (np.linalg.norm(gradient) + 1e-12)
            lab_scores[row] += cosines
            alignment[row] += cosines[names.index(candidate.lab)]
            drop[row] += loss - measure_loss(after[candidate.lab], candidate.patch, config)
    last = np.array([-measure_loss(final, candidate.patch, config) for candidate in candidates])
    members = np.array([candidate.member for candidate in candidates])
    own = np.array([names.index(candidate.lab) for candidate in candidates])
    has_updates = bool(rounds and rounds[0].updates)
    right = lab_scores.argmax(axis=1) == own
    return {
        "update alignment": find_area(alignment, members),
        "loss drop": find_area(drop, members),
        "final loss": find_area(last, members),
        "lab told": float(right[members].mean()) if has_updates else 1 / len(names),
        "lab by chance": 1 / len(names),
    }


def find_property(first: Seen, shares: Mapping[str, float], bias: str) -> float:
    """Return Pearson's r between the share of a class in each lab's labels and the update of one bias in round 1."""
    if not first.updates:
        return 0.0
    names, places = sorted(shares), locate(first.start, bias)
    read = [float(first.of(name)[places].mean()) for name in names]
    return float(np.corrcoef(read, [shares[name] for name in names])[0, 1])


def locate(weights: Weights, name: str) -> slice:
    """Return a tensor's place in a row."""
    before = sum(weights[other].numel() for other in sorted(weights) if other < name)
    return slice(before, before + weights[name].numel())


def differentiate(weights: Weights, patch: Labeled, config: Phase2Config) -> tuple[float, Floats]:
    """Return the loss on a patch, and its gradient as a row."""
    built = load_network(weights, config)
    loss = class_loss(config.training.loss, built(to_images(patch.image[None].copy())), to_truth(patch.truth[None]))
    loss.backward()
    gradients: dict[str, Tensor] = {
        name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in built.network.named_parameters()
    }
    row = torch.cat([gradients[name].double().flatten() for name in sorted(weights)])
    return loss.item(), row.numpy()


@torch.no_grad()
def measure_loss(weights: Weights, patch: Labeled, config: Phase2Config) -> float:
    """Return the loss on a patch."""
    built = load_network(weights, config)
    crops = to_images(patch.image[None].copy())
    return float(class_loss(config.training.loss, built(crops), to_truth(patch.truth[None])))


def find_area(scores: Scores, members: NDArray[np.bool_]) -> float:
    """Return the area under the ROC curve; .5 is chance."""
    return float(
        binary_auroc(torch.from_numpy(np.argsort(np.argsort(scores)) / len(scores)), torch.from_numpy(members))
    )
