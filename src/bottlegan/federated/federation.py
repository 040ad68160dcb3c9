"""A whole federation on the server: phase 1, the rounds of phase 2, and what comes of them. Free of any network code.

All of it is in one folder, and a run that was stopped anywhere goes on from there:

| file | holds |
| --- | --- |
| federation.json | the configuration |
| federation.jsonl | what happened, line by line |
| clients.json | who takes part |
| uploads/, styles.safetensors | phase 1: the clients' styles, and the global BottleGAN made of them |
| checkpoint.safetensors | phase 2: the last round |
| segmenter.safetensors, history.json, scores.txt | the result |
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bottlegan.config import document, load, parse, to_json, to_values
from bottlegan.errors import ConfigError, InputError
from bottlegan.federated.exchange import Exchange, Scalar
from bottlegan.federated.outcome import format_scores, save_segmenter
from bottlegan.federated.phase1 import Phase1Config, UploadStore
from bottlegan.federated.phase2 import Phase2Config
from bottlegan.federated.roster import UPLOADS, Members, Roster, assemble_styles, read_members, write_members
from bottlegan.federated.rounds import Plan, RoundsConfig, State, run_rounds
from bottlegan.federated.strategies import StrategyConfig
from bottlegan.files import make_folder, write_text
from bottlegan.imaging.files import Levels
from bottlegan.progress import EventLog, Item, Json, Progress, Silent, Unit

CONFIG, LOG, CHECKPOINT = "federation.json", "federation.jsonl", "checkpoint.safetensors"
SEGMENTER, HISTORY, SCORES = "segmenter.safetensors", "history.json", "scores.txt"


@document
class FederationConfig:
    """A federation: all that decides what comes of it, besides the clients. Every leaf is a text, number or switch."""

    seed: int = 0
    upload_deadline: float = 3600.0
    """Seconds that clients have to find their style, in phase 1."""
    phase1: Phase1Config = Phase1Config()
    phase2: Phase2Config = Phase2Config()
    strategy: StrategyConfig = StrategyConfig()
    rounds: RoundsConfig = RoundsConfig()

    def __post_init__(self) -> None:
        """Check what the parts ask of each other."""
        if self.upload_deadline <= 0:
            raise ConfigError("upload_deadline must be above 0")
        if self.strategy.name == "fedprox" and self.phase2.proximal == 0:
            raise ConfigError("strategy fedprox needs phase2.proximal above 0; without it, it is fedavg")


def run_federation(
    exchange: Exchange,
    config: FederationConfig,
    folder: Path,
    *,
    reference_set: Sequence[Levels] | None = None,
    progress: Progress | None = None,
) -> State:
    """Run both phases, or what is left of them, and write the result to `folder`.

    Args:
        exchange: Reaches the clients.
        config: What to do; in a folder that holds a run already, it must be the same.
        folder: Where the run is kept.
        reference_set: The public reference set C, which upload = "generators" needs.
        progress: Where to report progress; events are also appended to the log in `folder`.
    """
    keep_config(folder, config)
    plan = Plan(config.phase2, config.strategy, config.rounds, config.seed)
    with EventLog(folder / LOG) as log:
        told = _Both(progress or Silent(), log)
        roster = Roster(exchange, config, folder, reference_set, told)
        state = run_rounds(exchange, roster.update, plan, folder / CHECKPOINT, told)
    save_segmenter(folder / SEGMENTER, state.weights, config.phase2, state.history)
    write_text(folder / HISTORY, to_json(state.history))
    write_text(folder / SCORES, format_scores(state.history))
    return state


def holds_run(folder: Path) -> bool:
    """Return whether a federation has begun in `folder`."""
    return (folder / CONFIG).exists()


def keep_config(folder: Path, config: FederationConfig) -> None:
    """Write the configuration to `folder`; one that is there already must be the same."""
    make_folder(folder)
    if holds_run(folder) and load(FederationConfig, folder / CONFIG) != config:
        raise InputError(f"{folder}: holds a run of another configuration or seed; choose another folder, or remove it")
    write_text(folder / CONFIG, to_json(config))


def remove_client(
    folder: Path, name: str, *, reference_set: Sequence[Levels] | None = None, progress: Progress | None = None
) -> None:
    """Remove a client, its upload and its style from the federation in `folder`, where no run may be going on.

    It is not asked again, even if it is still connected. The other clients get the new styles when the run is resumed.
    """
    members = read_members(folder)
    if name not in members.clients:
        known = ", ".join(sorted(members.clients)) or "none"
        raise InputError(f"{folder}: has no client called {name}; there are: {known}")
    kept = {each: member for each, member in members.clients.items() if each != name}
    write_members(folder, Members(clients=kept, removed=(*members.removed, name)))
    uploads = UploadStore(folder / UPLOADS)
    if name in uploads.names():
        uploads.remove(name)
    assemble_styles(folder, load(FederationConfig, folder / CONFIG), reference_set, progress or Silent())


def flatten(config: FederationConfig) -> dict[str, Scalar]:
    """Return a configuration as Flower's run configuration holds it: no tables, but dots in the keys."""
    return dict(_flatten(to_values(config), ""))


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
        table[last] = value
    return parse(FederationConfig, nested, "run configuration")


def _flatten(values: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Scalar]]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


@dataclass(frozen=True)
class _Both:
    """Shows progress in one place, and tells events to two."""

    shown: Progress
    log: EventLog

    def track(
        self, items: Iterable[Item], label: str, total: int | None = None, unit: Unit | None = None
    ) -> Iterator[Item]:
        return self.shown.track(items, label, total, unit)

    def event(self, kind: str, **fields: Json) -> None:
        self.shown.event(kind, **fields)
        self.log.event(kind, **fields)
