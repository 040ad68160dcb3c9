"""Checkpoints: everything needed to resume training, in one safetensors file, without pickle."""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from bottlegan.core.config import to_values
from bottlegan.core.errors import InputError
from bottlegan.core.files import make_folder
from bottlegan.core.stamp import BLANK
from bottlegan.core.stamp import KEY as CHECKSUM
from bottlegan.core.state import read_state, write_state

if TYPE_CHECKING:
    from bottlegan.training.gan import TrainConfig, TrainingRun


def name_checkpoint(folder: Path | None, settings: str, seed: int, *images: Iterable[NDArray[Any]]) -> Path | None:
    """Return a path in `folder`, if given, named after everything that training depends on.

    Checkpoints of other settings or images are removed, because nothing can resume from them.
    """
    if folder is None:
        return None
    digest = hashlib.sha256(f"{settings} {seed}".encode())
    for array in (array for arrays in images for array in arrays):
        digest.update(f" {array.dtype} {array.shape} ".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    path = folder / f"{digest.hexdigest()[:16]}.safetensors"
    make_folder(folder)
    for other in folder.iterdir():
        if not other.name.startswith(path.stem):  # keep this run's file and its older generation
            other.unlink()
    return path


def save_checkpoint(path: Path, run: "TrainingRun", config: "TrainConfig", seed: int) -> None:
    """Write the run to `path` atomically."""
    counters = {"step": run.step, "best": min(run.best, 1e30), "stale": run.stale, "seed": seed}
    document = json.dumps({CHECKSUM: BLANK, "counters": counters, "config": to_values(config)}, sort_keys=True)
    write_state(path, save(_tensors(run), {"training": document}))


def load_checkpoint(path: Path, run: "TrainingRun", config: "TrainConfig", seed: int) -> None:
    """Restore `run` from the checkpoint in `path`, which must have the same configuration and seed."""
    try:
        read_state(path)
        with safe_open(path, framework="pt") as file:
            document = json.loads((file.metadata() or {}).get("training", "null"))
            saved = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, ValueError, OSError) as error:
        raise InputError(f"{path}: is not a checkpoint ({error}); remove it to start anew") from None
    if not isinstance(document, dict) or set(document) != {CHECKSUM, "counters", "config"}:
        raise InputError(f"{path}: is not a checkpoint of a training run; remove it to start anew")
    counters = document["counters"]
    if document["config"] != json.loads(json.dumps(to_values(config))) or counters.get("seed") != seed:
        raise InputError(f"{path}: belongs to a run of another configuration or seed; remove it to start anew")
    _prime(run, saved)
    wanted = _tensors(run)
    if {n: t.shape for n, t in saved.items()} != {n: t.shape for n, t in wanted.items()}:
        raise InputError(f"{path}: holds other styles or images than this run; remove it to start anew")
    with torch.no_grad():
        for name, tensor in wanted.items():
            tensor.copy_(saved[name])
    run.step, run.stale = int(counters["step"]), int(counters["stale"])
    run.best = float(counters["best"]) if counters["best"] < 1e30 else float("inf")


def _tensors(run: "TrainingRun") -> dict[str, Tensor]:
    """Return every tensor of a run by name. Copying into a tensor changes the run."""
    tensors = {f"model.{name}": tensor for name, tensor in run.model.state_dict().items()}
    tensors |= {f"critics.{name}": tensor for name, tensor in run.critics.state_dict().items()}
    for label, optimizer in (("generators", run.generator_optimizer), ("critics", run.critic_optimizer)):
        for row, parameter in enumerate(p for group in optimizer.param_groups for p in group["params"]):
            for key, value in optimizer.state.get(parameter, {}).items():
                tensors[f"adam.{label}.{row}.{key}"] = value
    tensors |= {f"kept.{name}": tensor for name, tensor in run.kept.items()}
    return {name: tensor.detach() for name, tensor in tensors.items()}


def _prime(run: "TrainingRun", saved: dict[str, Tensor]) -> None:
    """Give each optimizer with a saved state a state of the same form, to be overwritten."""
    for label, optimizer in (("generators", run.generator_optimizer), ("critics", run.critic_optimizer)):
        if f"adam.{label}.0.step" in saved:
            for parameter in (p for group in optimizer.param_groups for p in group["params"]):
                moments = {key: torch.zeros_like(parameter) for key in ("exp_avg", "exp_avg_sq")}
                optimizer.state[parameter] = {"step": torch.zeros(()), **moments}
