"""How the server makes new global weights of a round's replies: Flower's strategies, with a state that can be saved."""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAdam, FedAvg, FedAvgM, FedProx
from torch import Tensor

from bottlegan.federated.server.config import StrategyConfig

Weights = dict[str, Tensor]
EXAMPLES = "num-examples"


@dataclass(frozen=True)
class _Received:
    """What Flower's strategies look at in a reply, without the envelope that only a running federation can make."""

    content: RecordDict

    def has_error(self) -> bool:
        return False


class Aggregator:
    """One of Flower's strategies, fed with validated replies only."""

    def __init__(self, config: StrategyConfig) -> None:
        """Build the strategy."""
        self.config = config
        match config.name:
            case "fedavg":
                self.strategy: Any = FedAvg()
            case "fedprox":
                # Its proximal term belongs to the clients; what is left at the server is an average.
                self.strategy = FedProx(proximal_mu=1.0)
            case "fedavgm":
                self.strategy = FedAvgM(server_momentum=config.momentum, server_learning_rate=config.learning_rate)
            case "fedadam":
                self.strategy = FedAdam(eta=config.learning_rate, beta_1=config.momentum)

    def aggregate(
        self, round_number: int, start: Weights, replies: Mapping[str, Weights], examples: Mapping[str, float]
    ) -> Weights:
        """Return new global weights, of the names, shapes and types of `start`."""
        # In one order, because sums of floats depend on it, and FedAvgM takes tensors for those in the same place.
        received = [
            _Received(
                RecordDict(
                    {
                        "arrays": ArrayRecord({key: _to_array(replies[name][key]) for key in start}),
                        "metrics": MetricRecord({EXAMPLES: 1.0 if self.config.uniform else float(examples[name])}),
                    }
                )
            )
            for name in sorted(replies)
        ]
        self._begin_at(start)
        with _quiet_flower():
            arrays, _ = self.strategy.aggregate_train(round_number, received)
        # FedAdam computes in float64.
        return {key: torch.from_numpy(arrays[key].numpy().astype(np.float32)) for key in start}

    def _begin_at(self, start: Weights) -> None:
        """Tell the strategy what its clients began with, as `configure_train` would."""
        if isinstance(self.strategy, FedAvgM):
            self.strategy.current_arrays = ArrayRecord({key: _to_array(tensor) for key, tensor in start.items()})
        elif isinstance(self.strategy, FedAdam):
            self.strategy.current_arrays = {key: tensor.numpy() for key, tensor in start.items()}

    def state(self, names: list[str]) -> Weights:
        """Return the server optimizer's tensors, by name; `names` are those of the weights, in their order."""
        if isinstance(self.strategy, FedAvgM) and self.strategy.momentum_vector is not None:
            pairs = zip(names, self.strategy.momentum_vector, strict=True)
            return {f"momentum.{name}": torch.from_numpy(np.array(vector)) for name, vector in pairs}
        if isinstance(self.strategy, FedAdam) and self.strategy.m_t and self.strategy.v_t:
            moments = (("m", self.strategy.m_t), ("v", self.strategy.v_t))
            return {
                f"{label}.{name}": torch.from_numpy(np.array(moment[name]))
                for label, moment in moments
                for name in names
            }
        return {}

    def restore(self, state: Weights, names: list[str]) -> None:
        """Bring the server optimizer to where `state` was taken."""
        if isinstance(self.strategy, FedAvgM) and state:
            self.strategy.momentum_vector = [state[f"momentum.{name}"].numpy() for name in names]
        elif isinstance(self.strategy, FedAdam) and state:
            self.strategy.m_t = {name: state[f"m.{name}"].numpy() for name in names}
            self.strategy.v_t = {name: state[f"v.{name}"].numpy() for name in names}


@contextmanager
def _quiet_flower() -> Iterator[None]:
    """Keep Flower from logging each round to the terminal, where our own progress is."""
    logger = logging.getLogger("flwr")
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)


def _to_array(tensor: Tensor) -> Array:
    return Array(np.ascontiguousarray(tensor.detach().numpy()))
