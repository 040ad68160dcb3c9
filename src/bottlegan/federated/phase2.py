"""Phase 2, the client's half: one round of training a segmentation network, and scoring it. Free of any network code.

A lab's images pass three places where their stain can be handled, and a way to handle it, a `Staining`, names what
happens at each: once, before training (`prepare`); anew in each batch (`vary`); and before prediction (`present`).

| mode | prepare | vary | present |
| --- | --- | --- | --- |
| plain | as it is | as it is | as it is |
| normalize | the lab's OWN normalizer | as it is | the lab's own normalizer |
| restain | the lab's own normalizer | random styles of ALL labs | as it is |
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from bottlegan.config import document
from bottlegan.errors import ConfigError, InputError
from bottlegan.imaging.files import Levels
from bottlegan.models.paradigms import BottleGAN
from bottlegan.models.segmenter import Segmenter, SegmenterConfig, build_segmenter, is_normalization
from bottlegan.normalize.normalizer import Normalizer
from bottlegan.seeding import numpy_stream, torch_stream
from bottlegan.training.fixmatch import FixMatchConfig, unlabeled_loss
from bottlegan.training.segmentation import (
    Labeled,
    SegmentationConfig,
    Vary,
    labeled_loss,
    proximal_term,
    score,
)

Mode = Literal["plain", "normalize", "restain"]
Weights = dict[str, Tensor]


@document
class Phase2Config:
    """How the labs train together."""

    mode: Mode = "normalize"
    """How stain is handled; `plain` is federated learning without BottleGAN."""
    restained: float | None = None
    """Share of the crops that get another lab's style; by default none in mode normalize, all in mode restain."""
    rounds: int = 100
    proximal: float = 0.0
    """FedProx: weight of the distance to the weights of the round's start, times one half."""
    local_normalization: bool = False
    """FedBN: each lab keeps its own normalization layers."""
    segmenter: SegmenterConfig = SegmenterConfig()
    training: SegmentationConfig = SegmentationConfig()
    fixmatch: FixMatchConfig = FixMatchConfig()

    def __post_init__(self) -> None:
        """Check the numbers."""
        if self.rounds < 1 or self.proximal < 0 or not 0 <= (self.restained or 0) <= 1:
            raise ConfigError("rounds must be at least 1, proximal at least 0, restained from 0 to 1")

    @property
    def share(self) -> float:
        """Share of the crops that get another lab's style."""
        if self.restained is not None:
            return self.restained
        return 1.0 if self.mode == "restain" else 0.0


def keep(image: Levels) -> Levels:
    """Leave an image as it is."""
    return image


def keep_all(crops: Levels, random: np.random.Generator) -> Levels:
    """Leave crops as they are."""
    return crops


@dataclass(frozen=True)
class Staining:
    """How a lab's stain is handled, and where."""

    prepare: Callable[[Levels], Levels] = keep
    """Once, to each image (H, W, 3) before training."""
    vary: Vary = keep_all
    """To the crops (N, H, W, 3) of each batch."""
    present: Callable[[Levels], Levels] = keep
    """To each image before prediction."""


def stain_with(config: Phase2Config, model: BottleGAN | None, own: str | None) -> Staining:
    """Return how a lab whose style is called `own` handles stain with the global BottleGAN, which knows all styles."""
    if config.mode == "plain":
        return Staining()
    if model is None or own is None:
        raise InputError(f"mode {config.mode} needs the styles of phase 1; run that first, or use mode plain")
    normalizer = Normalizer.from_model(model, own)
    vary = restain_randomly(model, config.share) if config.share else keep_all
    return Staining(normalizer, vary, normalizer if config.mode == "normalize" else keep)


@lru_cache(maxsize=1)
def restain_randomly(model: BottleGAN, share: float) -> Vary:
    """Return what brings a share of reference-stained crops to styles drawn anew for each, through tables.

    Labs in one process, as in a simulation, share the tables of a model: each may take 64 MB.
    """
    styles = [Normalizer.from_model(model, name) for name in model.codes.names]

    def vary(crops: Levels, random: np.random.Generator) -> Levels:
        output = crops.copy()
        for row, crop in enumerate(crops):
            chance, style = random.random(), int(random.integers(len(styles)))
            if chance < share:
                output[row] = styles[style].restain(np.ascontiguousarray(crop))
        return output

    return vary


@dataclass
class Lab:
    """What one client holds: its images, how it handles their stain, and, in FedBN, layers of its own."""

    name: str
    labeled: Sequence[Labeled]
    unlabeled: Sequence[Levels]
    test: Sequence[Labeled]
    staining: Staining = field(default_factory=Staining)
    own_layers: Weights = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Normalize once what would else be normalized in every batch."""
        prepare, present = self.staining.prepare, self.staining.present
        self.labeled = [Labeled(prepare(each.image), each.mask) for each in self.labeled]
        self.unlabeled = [prepare(image) for image in self.unlabeled]
        self.test = [Labeled(present(each.image), each.mask) for each in self.test]

    def examples(self, config: Phase2Config, round_number: int) -> int:
        """Return how many images it trains on in a round."""
        return count_examples(config, len(self.labeled), len(self.unlabeled), round_number)


def count_examples(config: Phase2Config, labeled: int, unlabeled: int, round_number: int) -> int:
    """Return how many images a lab trains on in a round: those with labels or, with FixMatch, any if it has none.

    It is what the lab weighs in the average; an unlabeled image may count for less than a labeled one.
    """
    if labeled or not config.fixmatch.enabled:
        return labeled
    begun = round_number > config.fixmatch.warm_up * config.rounds
    return math.ceil(config.fixmatch.weight * unlabeled) if begun else 0


def initial_weights(config: Phase2Config, seed: int) -> Weights:
    """Return the weights that round 1 begins with."""
    return dict(build_segmenter(config.segmenter, torch_stream(seed, "segmenter")).state_dict())


def load_network(lab: Lab, weights: Weights, config: Phase2Config) -> Segmenter:
    """Return a network with the given weights, and with the lab's own layers where it keeps some."""
    network = Segmenter(config.segmenter)
    network.load_state_dict({**weights, **lab.own_layers}, strict=True)
    return network


def train_round(lab: Lab, weights: Weights, config: Phase2Config, round_number: int, seed: int) -> Weights:
    """Return the weights after a lab's steps of one round (numbered from 1), begun at the global ones.

    The optimizer is made anew, so that its state reaches neither another lab nor the next round.
    """
    network = load_network(lab, weights, config).train()
    start = {name: tensor.detach().clone() for name, tensor in network.named_parameters()}
    optimizer = torch.optim.Adam(network.parameters(), lr=learning_rate(config, round_number))
    random = numpy_stream(seed, "round", round_number, lab.name)
    for _ in range(config.training.steps):
        optimizer.zero_grad()
        loss = round_loss(lab, network, config, random)
        if config.proximal:
            loss = loss + config.proximal / 2 * proximal_term(network, start)
        loss.backward()
        optimizer.step()
    trained = dict(network.state_dict())
    if config.local_normalization:
        lab.own_layers = {name: tensor.clone() for name, tensor in trained.items() if is_normalization(name)}
    return trained


def round_loss(lab: Lab, network: Segmenter, config: Phase2Config, random: np.random.Generator) -> Tensor:
    """Return the loss of one step: of labeled crops or, at a lab without labels, of FixMatch."""
    vary = lab.staining.vary
    if lab.labeled:
        return labeled_loss(network, lab.labeled, config.training, vary, random)
    if config.fixmatch.enabled and lab.unlabeled:
        return unlabeled_loss(network, lab.unlabeled, config.fixmatch, config.training, vary=vary, random=random)
    raise InputError(f"{lab.name} has nothing to train on; give it labels, or enable fixmatch")


def learning_rate(config: Phase2Config, round_number: int) -> float:
    """Return the learning rate of a round: from the full one down to zero along a cosine."""
    passed = (round_number - 1) / config.rounds
    return config.training.learning_rate * (1 + math.cos(math.pi * passed)) / 2


def score_lab(lab: Lab, weights: Weights, config: Phase2Config, temperature: float = 1.0) -> Tensor:
    """Return the tally (`metrics.tally`) of the given weights on the lab's test images; nothing else leaves the lab."""
    return score(load_network(lab, weights, config), lab.test, temperature)


def average(replies: Mapping[str, Weights], shares: Mapping[str, float]) -> Weights:
    """Return the average of weights, the plain way: what any aggregation without a server optimizer comes to."""
    total = sum(shares[name] for name in replies)
    first = next(iter(replies.values()))
    return {key: sum(shares[n] / total * replies[n][key] for n in sorted(replies)) for key in first}  # type: ignore[misc]
