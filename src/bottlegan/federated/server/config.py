"""A federation's settings: all that decides what comes of it, besides the clients."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from bottlegan.core.config import document, parse, to_values
from bottlegan.core.errors import ConfigError
from bottlegan.federated.protocol.exchange import Scalar
from bottlegan.federated.protocol.phase1 import Phase1Config
from bottlegan.federated.protocol.phase2 import Phase2Config
from bottlegan.federated.protocol.privacy import LEAST_LABS, PrivacyConfig

StrategyName = Literal["fedavg", "fedavgm", "fedprox", "fedadam"]


@document
class StrategyConfig:
    """Which aggregation, and its server optimizer."""

    name: StrategyName = "fedavgm"
    momentum: float = 0.5
    """FedAvgM: how much of the last round's change goes on."""
    learning_rate: float = 1.0
    """FedAvgM, FedAdam: of the server."""
    uniform: bool = False
    """Whether all clients count the same, instead of by their examples."""

    def __post_init__(self) -> None:
        """Check the numbers."""
        if not 0 <= self.momentum < 1 or self.learning_rate <= 0:
            raise ConfigError("strategy: momentum must be from 0 to below 1, learning_rate above 0")


@document
class RoundsConfig:
    """What the server does in each round."""

    clients: int = 0
    """Clients drawn in each round, of those that have something to train on; 0 for all of them."""
    least: int = 2
    """Replies without which a round counts for nothing."""
    deadline: float = 600.0
    """Seconds that clients have to reply."""
    norm_bound: float = 10.0
    """How many times longer than the median an update may be, and how many times more a client may weigh."""
    evaluate_every: int = 10
    """Rounds between two scorings on the clients' test images; the last round is always scored."""

    def __post_init__(self) -> None:
        """Check the numbers."""
        if self.clients < 0 or min(self.least, self.evaluate_every) < 1 or min(self.deadline, self.norm_bound) <= 0:
            raise ConfigError("rounds: least and evaluate_every must be at least 1, deadline and norm_bound above 0")
        if 0 < self.clients < self.least:
            raise ConfigError(
                f"rounds: {self.clients} clients are drawn in a round, of which {self.least} must reply; "
                "raise rounds.clients, or lower rounds.least"
            )


@document
class FederationConfig:
    """A federation. Every leaf is a text, number, switch, or a list of these."""

    seed: int = 0
    start: Path | None = None
    """Weights to begin with, a safetensors file: a network of the same factory, which may have had other classes."""
    upload_deadline: float = 3600.0
    """Seconds that clients have to find their style, in phase 1."""
    phase1: Phase1Config = Phase1Config()
    phase2: Phase2Config = Phase2Config()
    strategy: StrategyConfig = StrategyConfig()
    rounds: RoundsConfig = RoundsConfig()
    privacy: PrivacyConfig = PrivacyConfig()

    def __post_init__(self) -> None:
        """Check what the parts ask of each other."""
        if self.upload_deadline <= 0:
            raise ConfigError("upload_deadline must be above 0")
        if self.strategy.name == "fedprox" and self.phase2.proximal == 0:
            raise ConfigError("strategy fedprox needs phase2.proximal above 0; without it, it is fedavg")
        robust = getattr(self.strategy, "robust", "none")
        if self.privacy.active and robust != "none":
            raise ConfigError(
                f"strategy.robust = {robust} looks at single updates, which privacy hides from it or noise blurs; "
                "set strategy.robust = none, or privacy.secure = false and privacy.noise = 0"
            )
        if self.privacy.secure and self.rounds.clients and self.rounds.clients < LEAST_LABS:
            raise ConfigError(f"privacy.secure needs {LEAST_LABS} labs in a round; raise rounds.clients")


def check_enough_labs(config: FederationConfig, labs: int) -> None:
    """Refuse a federation that needs more labs in a round than there are: it would wait for them in vain."""
    if config.privacy.secure and labs < LEAST_LABS:
        raise ConfigError(f"privacy.secure needs {LEAST_LABS} labs, but there are {labs}; add labs, or set it to false")
    if config.rounds.least > labs:
        raise ConfigError(
            f"rounds: {config.rounds.least} clients must reply in each round, but there are {labs}; "
            "lower rounds.least, or add labs"
        )


def flatten(config: FederationConfig) -> dict[str, Scalar]:
    """Return a configuration as Flower's run configuration holds it: dots for tables, and lists as JSON."""
    return dict(_flatten(to_tables(config), ""))


def to_tables(config: FederationConfig) -> dict[str, Any]:
    """Return a configuration as the tables of a Flower app, which may hold no lists: they become JSON."""
    return _write_lists(to_values(config))


def unflatten(values: Mapping[str, Scalar]) -> FederationConfig:
    """Return the configuration that was flattened; keys that are missing have their default."""
    nested: dict[str, Any] = {}
    for key, value in values.items():
        *tables, last = key.split(".")
        table = nested
        for name in tables:
            table = table.setdefault(name, {})
            if not isinstance(table, dict):
                raise ConfigError(f"run configuration: `{key}` is below `{name}`, which is no table")
        table[last] = _read_list(value) if isinstance(value, str) and value.startswith("[") else value
    return parse(FederationConfig, nested, "run configuration")


def _write_lists(values: Any) -> Any:
    if isinstance(values, dict):
        return {key: _write_lists(value) for key, value in values.items()}
    return json.dumps(values) if isinstance(values, list) else values


def _read_list(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _flatten(values: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Scalar]]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
