"""A federation's state on disk, after every round: one safetensors file, without pickle.

Random streams need no place in it: each is made anew from the seed and the number of the round.
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from bottlegan.config import document, parse, to_values
from bottlegan.errors import InputError
from bottlegan.federated.validation import find_fault
from bottlegan.files import replacing

if TYPE_CHECKING:
    from bottlegan.federated.rounds import Plan, State

KEY = "federation"


@document
class RoundRecord:
    """What happened in one round."""

    number: int
    trained: tuple[str, ...]
    """Clients whose weights were averaged."""
    left_out: dict[str, str]
    """Clients that were asked, but could not be counted, and why."""
    scores: dict[str, float]
    """IOU, ECE and NLL over all clients' test images, where the round was scored."""
    each: dict[str, dict[str, float]]
    """The same, client by client."""


@document
class History:
    """All rounds so far."""

    rounds: tuple[RoundRecord, ...] = ()


def save_rounds(path: Path, plan: "Plan", state: "State") -> None:
    """Write a run to `path`, whole or not at all."""
    names = list(state.weights)
    tensors = {f"weights.{name}": tensor.contiguous() for name, tensor in state.weights.items()}
    tensors |= {f"server.{name}": tensor.contiguous() for name, tensor in state.aggregator.state(names).items()}
    values = {"plan": _plan_values(plan), "finished": state.finished, "history": to_values(state.history)}
    with replacing(path) as temporary:
        save_file(tensors, temporary, metadata={KEY: json.dumps(values, sort_keys=True)})


def load_rounds(path: Path, plan: "Plan", state: "State") -> None:
    """Bring `state` to where the run in `path` was; it must have been of the same plan."""
    remedy = "remove it to start anew, or choose another folder"
    try:
        with safe_open(path, framework="pt") as file:
            values = json.loads((file.metadata() or {}).get(KEY, "null"))
            saved = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118 - no dictionary
    except (SafetensorError, ValueError, OSError) as error:
        raise InputError(f"{path}: is not a checkpoint of a federation ({error}); {remedy}") from None
    if not isinstance(values, dict) or set(values) != {"plan", "finished", "history"}:
        raise InputError(f"{path}: is not a checkpoint of a federation; {remedy}")
    if values["plan"] != _plan_values(plan):
        raise InputError(f"{path}: belongs to a run of another configuration or seed; {remedy}")
    shapes = {name: tuple(tensor.shape) for name, tensor in state.weights.items()}
    weights = _below("weights", saved)
    server = _below("server", saved)
    labels = {name.split(".")[0] for name in server}
    faults = [find_fault(part, shapes) for part in (weights, *(_below(label, server) for label in labels))]
    if any(faults) or labels not in ({"momentum"}, {"m", "v"}, set()):
        raise InputError(f"{path}: {next(filter(None, faults), 'holds another optimizer')}; {remedy}")
    names = list(state.weights)
    state.weights = {name: weights[name] for name in names}
    state.aggregator.restore(server, names)
    state.finished, state.history = int(values["finished"]), parse(History, values["history"], str(path))


def _below(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors whose name begins with a prefix, without it."""
    return {name.removeprefix(f"{prefix}."): t for name, t in tensors.items() if name.startswith(f"{prefix}.")}


def _plan_values(plan: "Plan") -> dict[str, object]:
    parts = {"phase2": plan.phase2, "strategy": plan.strategy, "rounds": plan.rounds}
    # Through JSON, as it will be compared with what was read from there.
    return json.loads(json.dumps({name: to_values(part) for name, part in parts.items()} | {"seed": plan.seed}))
