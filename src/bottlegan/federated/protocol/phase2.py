"""Phase 2, the part that both sides share: its settings, the network, and how much each lab trains on."""

import math

import torch

from bottlegan.core.config import document
from bottlegan.core.errors import ConfigError
from bottlegan.core.seeding import torch_stream
from bottlegan.core.task import Task
from bottlegan.models.network_file import Mode
from bottlegan.models.networks import Built, NetworkConfig, Weights, build_network, exchanged, load_weights
from bottlegan.training.fixmatch import FixMatchConfig
from bottlegan.training.task import TrainingConfig

TALLY = "tally"
"""Name of the tensor with a client's counts on its test images in a reply."""


@document
class Phase2Config:
    """How the labs train together."""

    mode: Mode = "normalize"
    """How stain is handled. `plain` is federated learning without BottleGAN."""
    restained: float | None = None
    """Share of the crops that get another lab's style; by default 0 in mode normalize, 1 in mode restain."""
    rounds: int = 100
    """Number of training messages to each lab."""
    local_rounds: int = 1
    """Number of rounds that a lab trains per message. More than one saves time if messages cost more than training."""
    proximal: float = 0.0
    """FedProx: half of this weighs the squared distance to the weights at the start of the round."""
    local_normalization: bool = False
    """FedBN: each lab keeps its own normalization layers."""
    network: NetworkConfig = NetworkConfig()
    task: Task = Task()
    training: TrainingConfig = TrainingConfig()
    fixmatch: FixMatchConfig = FixMatchConfig()

    def __post_init__(self) -> None:
        """Check the numbers."""
        if min(self.rounds, self.local_rounds) < 1 or self.proximal < 0 or not 0 <= (self.restained or 0) <= 1:
            raise ConfigError("rounds and local_rounds must be at least 1, proximal at least 0, restained from 0 to 1")

    @property
    def share(self) -> float:
        """Share of the crops that get another lab's style."""
        if self.restained is not None:
            return self.restained
        return 1.0 if self.mode == "restain" else 0.0


def draw_network(config: Phase2Config, seed: int) -> Built:
    """Build the initial network, and check that it can be trained."""
    return build_network(config.network, config.task, torch_stream(seed, "segmenter"), crop=config.training.crop)


def initial_weights(config: Phase2Config, seed: int) -> Weights:
    """Return the initial weights."""
    return exchanged(draw_network(config, seed).network)


def load_network(weights: Weights, config: Phase2Config) -> Built:
    """Build the network with the given weights, in no more memory than these take."""
    budget = sum(tensor.numel() for tensor in weights.values())
    built = build_network(
        config.network, config.task, torch.Generator(), crop=config.training.crop, budget=budget, tried=False
    )
    load_weights(built.network, weights)
    return built


def count_examples(config: Phase2Config, labeled: int, unlabeled: int, round_number: int) -> int:
    """Return how many images a lab trains on in a round: the labeled ones and, with FixMatch, all of them once more.

    This is the lab's weight in the mean; an unlabeled image may count less than a labeled one.
    """
    return labeled + (math.ceil(config.fixmatch.weight * unlabeled) if uses_unlabeled(config, round_number) else 0)


def uses_unlabeled(config: Phase2Config, round_number: int) -> bool:
    """Return whether labs learn from unlabeled images in a round, which they do once FixMatch has started."""
    return config.fixmatch.enabled and round_number > config.fixmatch.warm_up * config.rounds
