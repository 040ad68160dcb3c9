"""Aggregation: Flower's strategies turn a round's replies into new global weights, with a state that can be saved.

First the replies are combined into their middle: the mean, the trimmed mean or the median. Then the server's optimizer
treats the middle as the only reply. So any robust rule works with any optimizer.

To add a strategy, name it in `StrategyName` in `server/config.py`, and build it in `Aggregator`.
"""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAdam, FedAvg, FedAvgM, FedMedian, FedProx, FedTrimmedAvg
from numpy.typing import NDArray

from bottlegan.federated.server.config import StrategyConfig
from bottlegan.models.networks import Weights

Floats = NDArray[np.float32]
EXAMPLES, ALL = "num-examples", "all"
TRIMMED = 0.25
"""Share of clients that the trimmed mean leaves out at either end, number by number; so many may lie."""


@dataclass(frozen=True)
class _Received:
    """The part of a reply that Flower's strategies read, without the envelope of a running federation."""

    content: RecordDict

    def has_error(self) -> bool:
        return False


class Aggregator:
    """Two of Flower's strategies: one finds the middle of validated replies, one is the server's optimizer."""

    def __init__(self, config: StrategyConfig, averaged: frozenset[str] = frozenset()) -> None:
        """Build the strategies; `averaged` names tensors that take the middle without the server's optimizer.

        These are the statistics of batch norm, which no gradient changes: momentum could make variances negative.
        """
        self.config, self.averaged = config, averaged
        self._form: Weights = {}
        """Tensors with the names and shapes of the server optimizer's state."""
        match config.robust:
            case "none":
                self.middle: Any = FedAvg()
            case "trimmed":
                self.middle = FedTrimmedAvg(beta=TRIMMED)
            case "median":
                self.middle = FedMedian()
        match config.name:
            case "fedavg":
                self.strategy: Any = FedAvg()
            case "fedprox":
                # The proximal term is the clients' part; the server only averages.
                self.strategy = FedProx(proximal_mu=1.0)
            case "fedavgm":
                self.strategy = FedAvgM(server_momentum=config.momentum, server_learning_rate=config.learning_rate)
            case "fedadam":
                self.strategy = FedAdam(eta=config.learning_rate, beta_1=config.momentum)

    def aggregate(
        self, round_number: int, start: Weights, replies: Mapping[str, Weights], shares: Mapping[str, float]
    ) -> Weights:
        """Return new global weights with the names, shapes and types of `start`.

        Args:
            round_number: The number of this round, from 1.
            start: The weights at the start of the round.
            replies: Each client's weights at the end.
            shares: Each client's weight in the mean; the trimmed mean and the median count all alike.
        """
        # In a fixed order, because sums of floats depend on it.
        rows = {name: _join(replies[name], start) for name in sorted(replies)}
        middle = _split(_run(self.middle, round_number, rows, shares), start)
        learned = {key: tensor for key, tensor in start.items() if key not in self.averaged}
        self._begin_at(_join(learned, learned))
        self._form = learned
        moved = _run(self.strategy, round_number, {ALL: _join(middle, learned)}, {ALL: 1.0})
        weights = {**middle, **_split(moved, learned)}
        return {key: weights[key] for key in start}

    def _begin_at(self, start: Floats) -> None:
        """Give the strategy the weights at the start of the round, as `configure_train` would."""
        if isinstance(self.strategy, FedAvgM):
            self.strategy.current_arrays = ArrayRecord({ALL: Array(start)})
        elif isinstance(self.strategy, FedAdam):
            self.strategy.current_arrays = {ALL: start}

    def state(self, names: list[str]) -> Weights:
        """Return the server optimizer's tensors by name; `names` lists the weights in their order."""
        form = {name: self._form[name] for name in names if name in self._form}
        moments: dict[str, Floats] = {}
        if isinstance(self.strategy, FedAvgM) and self.strategy.momentum_vector is not None:
            moments = {"momentum": np.asarray(self.strategy.momentum_vector[0])}
        elif isinstance(self.strategy, FedAdam) and self.strategy.m_t and self.strategy.v_t:
            moments = {"m": self.strategy.m_t[ALL], "v": self.strategy.v_t[ALL]}
        return {
            f"{label}.{name}": tensor
            for label, moment in moments.items()
            for name, tensor in _split(np.array(moment), form).items()
        }

    def restore(self, state: Weights, names: list[str]) -> None:
        """Restore the server optimizer from `state`."""
        learned = [name for name in names if name not in self.averaged]
        parts = {
            label: {name: state[f"{label}.{name}"] for name in learned}
            for label in dict.fromkeys(key.split(".")[0] for key in state)
        }
        self._form = next(iter(parts.values()), {})
        if isinstance(self.strategy, FedAvgM) and state:
            self.strategy.momentum_vector = [_join(parts["momentum"], parts["momentum"])]
        elif isinstance(self.strategy, FedAdam) and state:
            self.strategy.m_t, self.strategy.v_t = ({ALL: _join(parts[label], parts[label])} for label in ("m", "v"))


def _run(strategy: Any, round_number: int, rows: Mapping[str, Floats], shares: Mapping[str, float]) -> Floats:
    """Aggregate rows of numbers, each with its share, by a strategy."""
    # As one array, because Flower takes longer to write and read many small ones than to average them. It treats each
    # number on its own, so the result is the same.
    received = [
        _Received(
            RecordDict({"arrays": ArrayRecord({ALL: Array(row)}), "metrics": MetricRecord({EXAMPLES: shares[name]})})
        )
        for name, row in rows.items()
    ]
    with _quiet_flower():
        arrays, _ = strategy.aggregate_train(round_number, received)
    # FedAdam computes in float64.
    return np.asarray(arrays[ALL].numpy(), np.float32)


@contextmanager
def _quiet_flower() -> Iterator[None]:
    """Keep Flower from logging each round to the terminal, which shows our own progress."""
    logger = logging.getLogger("flwr")
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)


def _join(tensors: Weights, form: Weights) -> Floats:
    """Join all tensors into one row, in the order of `form`."""
    return torch.cat([tensors[key].detach().flatten() for key in form]).numpy()


def _split(row: Floats, form: Weights) -> Weights:
    """Split a row into tensors with the names and shapes of `form`."""
    pieces = torch.from_numpy(row).split([tensor.numel() for tensor in form.values()])
    return {key: piece.reshape(form[key].shape).clone() for key, piece in zip(form, pieces, strict=True)}
