"""Phase 2, a lab's side: one round of training the network, and scoring it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

import numpy as np
import torch
from torch import Tensor

from bottlegan.core.errors import InputError
from bottlegan.core.seeding import numpy_stream
from bottlegan.data.labels import Labeled
from bottlegan.federated.client.staining import Staining
from bottlegan.federated.protocol.phase2 import Phase2Config, load_network, uses_unlabeled
from bottlegan.imaging.files import Pixels
from bottlegan.models.networks import Built, Weights, exchanged
from bottlegan.training.adam import Adam
from bottlegan.training.fixmatch import unlabeled_loss
from bottlegan.training.task import labeled_loss, proximal_term, score


@dataclass
class Lab:
    """One client's data for training and scoring, and how it handles their stain."""

    name: str
    labeled: Sequence[Labeled]
    unlabeled: Sequence[Pixels]
    test: Sequence[Labeled]
    staining: Staining = field(default_factory=Staining)

    def __post_init__(self) -> None:
        """Normalize all images once, instead of in every batch."""
        prepare, present = self.staining.prepare, self.staining.present
        self.labeled = [Labeled(prepare(sample.image), sample.truth) for sample in self.labeled]
        self.unlabeled = [prepare(image) for image in self.unlabeled]
        self.test = [Labeled(present(sample.image), sample.truth) for sample in self.test]


@dataclass(frozen=True)
class Trained:
    """The result of a lab's round."""

    weights: Weights
    loss: float
    """Mean over its steps, without FedProx's share."""


def train_round(lab: Lab, weights: Weights, config: Phase2Config, round_number: int, seed: int) -> Trained:
    """Train for one round (numbered from 1), starting from the given weights.

    Each round has a new optimizer, so that no state reaches another lab or the next round.
    """
    built = load_network(weights, config)
    teacher = load_network(weights, config) if uses_unlabeled(config, round_number) else None
    network = built.network.train()
    start = {name: tensor.detach().clone() for name, tensor in network.named_parameters()}
    optimizer = Adam(network.parameters(), learning_rate(config, round_number))
    random = numpy_stream(seed, "round", round_number, lab.name)
    losses = []
    for _ in range(config.training.steps):
        optimizer.zero_grad()
        loss = round_loss(lab, built, teacher, config, random)
        losses.append(loss.item())
        if config.proximal:
            loss = loss + config.proximal / 2 * proximal_term(network, start)
        loss.backward()
        optimizer.step()
    return Trained(exchanged(network), sum(losses) / len(losses))


def train_message(lab: Lab, weights: Weights, config: Phase2Config, number: int, seed: int) -> Trained:
    """Train all rounds of message `number`, one after the other."""
    count = config.local_rounds
    # Number them as rounds of the federation, so that each draws differently and the learning rate keeps falling.
    local = replace(config, rounds=config.rounds * count, local_rounds=1)
    losses = []
    for part in range(count):
        trained = train_round(lab, weights, local, (number - 1) * count + part + 1, seed)
        weights = trained.weights
        losses.append(trained.loss)
    return Trained(weights, fmean(losses))


def round_loss(
    lab: Lab, network: Built, teacher: Built | None, config: Phase2Config, random: np.random.Generator
) -> Tensor:
    """Return the loss of one step: on labeled crops, if there are any, and of FixMatch, if it has a teacher."""
    vary, fixmatch, training = lab.staining.vary, config.fixmatch, config.training
    losses = []
    if lab.labeled:
        losses.append(labeled_loss(network, lab.labeled, training, vary, random))
    if lab.unlabeled and teacher is not None:
        loss = unlabeled_loss(network, teacher, lab.unlabeled, fixmatch, training, vary=vary, random=random)
        losses.append(fixmatch.weight * loss)
    if losses:
        return torch.stack(losses).sum()
    raise InputError(f"{lab.name} has nothing to train on; give it labels, or enable fixmatch")


def learning_rate(config: Phase2Config, round_number: int) -> float:
    """Return the learning rate of a round, which falls from the full rate to zero along a cosine."""
    passed = (round_number - 1) / config.rounds
    return config.training.learning_rate * (1 + math.cos(math.pi * passed)) / 2


def score_lab(lab: Lab, weights: Weights, config: Phase2Config, temperature: float = 1.0) -> Tensor:
    """Return the tally (`metrics.tally`) of these weights on the lab's test images; nothing else leaves the lab."""
    return score(load_network(weights, config), lab.test, config.task, temperature)
