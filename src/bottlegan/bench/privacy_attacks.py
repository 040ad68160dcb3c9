"""What a curious server can tell of labs from what it sees: three attacks on membership, one each on property and lab.

All of them get what the server has: the weights of each round, and each lab's update if it is sent in the clear. If
only a sum is known, the attacker uses the average for every lab.
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
    """An image of which the attacker asks whether a lab has trained on it."""

    lab: str
    patch: Labeled
    member: bool


@dataclass(frozen=True)
class Seen:
    """What the server has after a round."""

    number: int
    start: Weights
    average: Floats
    """Of the updates, as the next round's weights tell."""
    updates: Mapping[str, Floats]
    """Of single labs, as far as they are known."""

    def of(self, lab: str) -> Floats:
        """Return the best there is to know of a lab's update."""
        return self.updates.get(lab, self.average)


def draw_candidates(labs: Mapping[str, tuple[Sequence[Labeled], Sequence[Labeled]]], seed: int) -> list[Candidate]:
    """Return, for each lab that trains, what it trains on, and as many places of the same size of its other patches."""
    found = []
    for name, (labeled, test) in labs.items():
        random = numpy_stream(seed, "candidates", name)
        for each in labeled:
            found.append(Candidate(name, each, member=True))
            other, side = test[int(random.integers(len(test)))], each.image.shape[0]
            top, left = (int(random.integers(length - side + 1)) for length in other.image.shape[:2])
            window = np.s_[top : top + side, left : left + side]
            found.append(Candidate(name, Labeled(other.image[window], other.truth[window]), member=False))
    return found


def attack(
    candidates: Sequence[Candidate], rounds: Sequence[Seen], final: Weights, config: Phase2Config
) -> dict[str, float]:
    """Return the area under the curve of each attack on membership, and how often the lab of an image is told."""
    names = sorted({each.lab for each in candidates})
    alignment, drop = np.zeros(len(candidates)), np.zeros(len(candidates))
    told = np.zeros((len(candidates), len(names)))
    for seen in rounds:
        rows = np.stack([seen.of(name) for name in names])
        rows /= np.linalg.norm(rows, axis=1, keepdims=True) + 1e-12
        # Trained weights, lab by lab, as far as they are known.
        after = {name: add_row(seen.start, seen.of(name)) for name in names}
        for row, each in enumerate(candidates):
            loss, gradient = differentiate(seen.start, each.patch, config)
            cosines = -(rows @ gradient) / (np.linalg.norm(gradient) + 1e-12)
            told[row] += cosines
            alignment[row] += cosines[names.index(each.lab)]
            drop[row] += loss - measure_loss(after[each.lab], each.patch, config)
    last = np.array([-measure_loss(final, each.patch, config) for each in candidates])
    members = np.array([each.member for each in candidates])
    own = np.array([names.index(each.lab) for each in candidates])
    known = bool(rounds and rounds[0].updates)
    right = told.argmax(axis=1) == own
    return {
        "update alignment": find_area(alignment, members),
        "loss drop": find_area(drop, members),
        "final loss": find_area(last, members),
        "lab told": float(right[members].mean()) if known else 1 / len(names),
        "lab by chance": 1 / len(names),
    }


def find_property(first: Seen, shares: Mapping[str, float], bias: str) -> float:
    """Return how well the share of a class in each lab's labels is read from one bias in round 1: Pearson's r."""
    if not first.updates:
        return 0.0
    names, places = sorted(shares), locate(first.start, bias)
    read = [float(first.of(name)[places].mean()) for name in names]
    return float(np.corrcoef(read, [shares[name] for name in names])[0, 1])


def locate(weights: Weights, name: str) -> slice:
    """Return where a tensor is in a row."""
    before = sum(weights[each].numel() for each in sorted(weights) if each < name)
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
    """Return the area under the ROC curve: .5 is guessing."""
    return float(
        binary_auroc(torch.from_numpy(np.argsort(np.argsort(scores)) / len(scores)), torch.from_numpy(members))
    )
