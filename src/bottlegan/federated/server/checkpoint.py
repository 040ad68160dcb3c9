"""A federation's state after each round: one safetensors file, without pickle, in two generations.

It needs no random state: each stream is derived from the seed and the number of the round.
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors.torch import load, save
from torch import Tensor

from bottlegan.core.config import parse, to_values
from bottlegan.core.errors import InputError
from bottlegan.core.stamp import BLANK
from bottlegan.core.stamp import KEY as CHECKSUM
from bottlegan.core.state import find_older, read_generation, read_metadata, write_generation
from bottlegan.federated.protocol.validation import find_fault
from bottlegan.federated.server.config import FederationConfig
from bottlegan.federated.server.history import History

if TYPE_CHECKING:
    from bottlegan.federated.server.rounds import State

KEY = "federation"


def save_rounds(path: Path, config: FederationConfig, state: "State") -> None:
    """Write a run to `path` atomically; the file that was there becomes the older generation."""
    names = list(state.weights)
    tensors = {f"weights.{name}": tensor.contiguous() for name, tensor in state.weights.items()}
    tensors |= {f"server.{name}": tensor.contiguous() for name, tensor in state.aggregator.state(names).items()}
    values = {"config": _to_json(config), "finished": state.finished, "history": to_values(state.history)}
    values["noise_key"] = state.noise_key
    write_generation(path, save(tensors, {KEY: json.dumps({CHECKSUM: BLANK, **values})}))


def load_rounds(path: Path, config: FederationConfig, state: "State") -> str | None:
    """Restore `state` from the checkpoint in `path`, if there is one; its configuration must be the same.

    Returns:
        Why the older generation was used, if so.
    """
    remedy = f"remove it and {find_older(path).name} to start anew, or choose another folder"
    kept = read_generation(path, remedy)
    if kept is None:
        return None
    values, saved = json.loads(read_metadata(kept.content).get(KEY, "null")), load(kept.content)
    if not isinstance(values, dict) or set(values) != {CHECKSUM, "config", "finished", "history", "noise_key"}:
        raise InputError(f"{path}: is not a checkpoint of a federation; {remedy}")
    if values["config"] != _to_json(config):
        raise InputError(f"{path}: belongs to a run of another configuration or seed; {remedy}")
    shapes = {name: tuple(tensor.shape) for name, tensor in state.weights.items()}
    weights = _below("weights", saved)
    server = _below("server", saved)
    labels = {name.split(".")[0] for name in server}
    learned = {name: shape for name, shape in shapes.items() if name not in state.aggregator.averaged}
    faults = [find_fault(weights, shapes), *(find_fault(_below(label, server), learned) for label in labels)]
    if any(faults) or labels not in ({"momentum"}, {"m", "v"}, set()):
        raise InputError(f"{path}: {next(filter(None, faults), 'holds another optimizer')}; {remedy}")
    names = list(state.weights)
    state.weights = {name: weights[name] for name in names}
    state.aggregator.restore(server, names)
    state.noise_key = str(values["noise_key"])
    state.finished, state.history = int(values["finished"]), parse(History, values["history"], str(path))
    return kept.damage


def _below(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors whose names begin with a prefix, with the prefix removed."""
    return {name.removeprefix(f"{prefix}."): t for name, t in tensors.items() if name.startswith(f"{prefix}.")}


def _to_json(config: FederationConfig) -> dict[str, object]:
    # Through JSON, because it is compared with values read from JSON.
    return json.loads(json.dumps(to_values(config)))
