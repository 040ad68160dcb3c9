"""A federation's settings: together with the clients, they determine its result."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, Literal

from bottlegan.core.config import document, parse, to_values
from bottlegan.core.errors import ConfigError
from bottlegan.federated.protocol.exchange import Scalar
from bottlegan.federated.protocol.phase1 import Phase1Config
from bottlegan.federated.protocol.phase2 import Phase2Config
from bottlegan.federated.protocol.privacy import LEAST_LABS, PrivacyConfig

UNSET = ""
"""A value in a Flower app's configuration that stands for the default."""
StrategyName = Literal["fedavg", "fedavgm", "fedprox", "fedadam"]
Robust = Literal["none", "trimmed", "median"]


@document
class StrategyConfig:
    """The aggregation and its server optimizer."""

    name: StrategyName = "fedavgm"
    momentum: float = 0.5
    """FedAvgM: share of the last round's change that carries over."""
    learning_rate: float = 1.0
    """FedAvgM, FedAdam: learning rate of the server."""
    uniform: bool = False
    """Whether all clients count the same, instead of in proportion to their examples."""
    robust: Robust = "trimmed"
    """How replies are combined: their mean, or a robust mean that withstands a quarter (trimmed mean) or nearly half
    (median) of bad replies.

    Unless it is `none`, suspects are left out, and all others count the same.
    """

    def __post_init__(self) -> None:
        """Check the numbers."""
        if not 0 <= self.momentum < 1 or self.learning_rate <= 0:
            raise ConfigError("strategy: momentum must be from 0 to below 1, learning_rate above 0")


@document
class RoundsConfig:
    """The server's part of each round."""

    clients: int = 0
    """Number of clients drawn in each round from those with training data; 0 for all of them."""
    least: int = 2
    """Fewest replies for a round to count."""
    deadline: float = 600.0
    """Seconds that clients have to reply."""
    length_bound: float = 1.5
    """Longest update, in medians. Longer updates are clipped to that."""
    weight_bound: float = 2.0
    """Largest weight of a client, in medians, in the mean of weights and in the scores."""
    evaluate_every: int = 10
    """Number of rounds between scorings on the clients' test images. The last round is always scored."""

    def __post_init__(self) -> None:
        """Check the numbers."""
        if self.clients < 0 or min(self.least, self.evaluate_every) < 1 or self.deadline <= 0:
            raise ConfigError("rounds: least and evaluate_every must be at least 1, deadline above 0")
        if min(self.length_bound, self.weight_bound) < 1:
            raise ConfigError("rounds: length_bound and weight_bound must be at least 1")
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
    """Safetensors file with initial weights: a network of the same factory, possibly with other classes."""
    upload_deadline: float = 3600.0
    """Seconds that clients have to find their style in phase 1."""
    phase1: Phase1Config = Phase1Config()
    phase2: Phase2Config = Phase2Config()
    strategy: StrategyConfig = StrategyConfig()
    rounds: RoundsConfig = RoundsConfig()
    privacy: PrivacyConfig = PrivacyConfig()

    def __post_init__(self) -> None:
        """Check that the parts fit together."""
        if self.upload_deadline <= 0:
            raise ConfigError("upload_deadline must be above 0")
        if self.strategy.name == "fedprox" and self.phase2.proximal == 0:
            raise ConfigError("strategy fedprox needs phase2.proximal above 0; without it, it is fedavg")
        if self.privacy.active and self.strategy.robust != "none":
            raise ConfigError(
                f"strategy.robust = {self.strategy.robust} compares single updates, which privacy hides or blurs; "
                "set strategy.robust = none, or privacy.secure = false and privacy.noise = 0"
            )
        if self.privacy.secure and self.rounds.clients and self.rounds.clients < LEAST_LABS:
            raise ConfigError(f"privacy.secure needs {LEAST_LABS} labs in a round; raise rounds.clients")


def check_usable_styles(config: FederationConfig) -> None:
    """Refuse styles that phase 2 cannot use: it needs maps of colors, but published generators look at whole images."""
    phase1 = config.phase1
    if phase1.method == "code" or config.phase2.mode == "plain":
        return
    form = phase1.server.train.model.generator
    if form.kind != "pixel" or form.statistics != "frozen" or not form.skip:
        raise ConfigError(
            "phase1: phase 2 needs a map of colors, which this global model is not; let the server learn from pairs "
            "(phase1.adversarial.paired = true), or use the preset cpu"
        )


def check_enough_labs(config: FederationConfig, labs: int) -> None:
    """Refuse a federation that needs more labs per round than there are: it would wait in vain."""
    if config.privacy.secure and labs < LEAST_LABS:
        raise ConfigError(f"privacy.secure needs {LEAST_LABS} labs, but there are {labs}; add labs, or set it to false")
    if config.rounds.least > labs:
        raise ConfigError(
            f"rounds: {config.rounds.least} clients must reply in each round, but there are {labs}; "
            "lower rounds.least, or add labs"
        )


def flatten(config: FederationConfig) -> dict[str, Scalar]:
    """Return a configuration in the form of Flower's run configuration: dotted keys, and lists as JSON."""
    return dict(_flatten(to_tables(config), ""))


def to_tables(config: FederationConfig) -> dict[str, Any]:
    """Return a configuration as the tables of a Flower app. Flower allows no lists, so they become JSON.

    Unset values become empty texts, because a run can only override keys that exist.
    """
    tables = _write_lists(to_values(config))
    _add_unset(config, tables)
    return tables


def unflatten(values: Mapping[str, Scalar]) -> FederationConfig:
    """Return the configuration from flattened values; missing or empty keys have their default."""
    nested: dict[str, Any] = {}
    for key, value in values.items():
        if value == UNSET:
            continue
        *tables, last = key.split(".")
        table = nested
        for name in tables:
            table = table.setdefault(name, {})
            if not isinstance(table, dict):
                raise ConfigError(f"run configuration: `{key}` is below `{name}`, which is no table")
        table[last] = _read_json(value) if isinstance(value, str) and value[0] in "[{" else value
    return parse(FederationConfig, nested, "run configuration")


def _write_lists(values: Any) -> Any:
    if isinstance(values, dict):
        return {key: _write_lists(value) for key, value in values.items()}
    return json.dumps(values) if isinstance(values, list) else values


def _add_unset(config: Any, table: dict[str, Any]) -> None:
    for field in fields(config):
        value = getattr(config, field.name)
        if value is None:
            table[field.name] = UNSET
        elif is_dataclass(value):
            _add_unset(value, table[field.name])


def _read_json(text: str) -> Any:
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
