from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from bottlegan.core.errors import InputError
from bottlegan.federated.protocol.exchange import LocalExchange, Reply, Request
from bottlegan.federated.protocol.phase2 import Phase2Config, Weights
from bottlegan.federated.server import rounds
from bottlegan.federated.server.checkpoint import load_rounds, save_rounds
from bottlegan.federated.server.config import FederationConfig, RoundsConfig, StrategyConfig
from bottlegan.federated.server.folder import CHECKPOINT
from bottlegan.federated.server.members import Member
from bottlegan.federated.server.phase2 import run_phase2
from bottlegan.federated.server.roster import Roster
from bottlegan.federated.server.rounds import State


def grow(request: Request) -> Reply:
    if request.kind == "evaluate":
        return Reply()
    return Reply({name: tensor + 1 for name, tensor in request.arrays.items()}, {"loss": 1.0})


def begin(config: FederationConfig, path: Path) -> State:
    state = rounds.begin(config)
    load_rounds(path, config, state)
    return state


@pytest.fixture
def saved(tiny: Phase2Config, tmp_path: Path) -> tuple[Path, FederationConfig, State]:
    strategy, wanted = StrategyConfig(name="fedavgm"), RoundsConfig(least=1)
    plan = FederationConfig(seed=3, phase2=tiny, strategy=strategy, rounds=wanted)
    roster = Roster(tmp_path)
    roster.put({"a": Member(labeled=1, unlabeled=0, test=0)})
    return tmp_path / CHECKPOINT, plan, run_phase2(LocalExchange({"a": grow}), plan, tmp_path, roster)


def test_what_was_saved_is_loaded(saved: tuple[Path, FederationConfig, State]) -> None:
    path, plan, state = saved
    found = begin(plan, path)
    assert (found.finished, found.history) == (4, state.history)
    assert list(found.weights) == list(state.weights)
    assert all(torch.equal(found.weights[name], state.weights[name]) for name in state.weights)
    names = list(state.weights)
    kept, wanted = found.aggregator.state(names), state.aggregator.state(names)
    assert kept.keys() == wanted.keys()
    assert all(torch.equal(kept[name], wanted[name]) for name in wanted)
    before = path.read_bytes()
    save_rounds(path, plan, found)
    with safe_open(path, framework="pt") as file:
        assert len(list(file.keys())) == 2 * len(names)
    assert len(path.read_bytes()) == len(before)


def test_a_run_of_another_plan_is_not_gone_on_with(saved: tuple[Path, FederationConfig, State]) -> None:
    path, plan, _ = saved
    for other in (
        replace(plan, seed=4),
        replace(plan, phase2=replace(plan.phase2, proximal=0.1)),
        replace(plan, strategy=StrategyConfig(name="fedavg")),
        replace(plan, rounds=RoundsConfig(least=1, clients=1)),
    ):
        with pytest.raises(InputError, match="another configuration or seed; remove it to start anew"):
            begin(other, path)


@pytest.mark.parametrize("damage", [lambda b: b[:-7], lambda b: b"\xff" * 40, lambda b: b"", lambda b: b"\0" * len(b)])
def test_a_damaged_file_is_refused(
    saved: tuple[Path, FederationConfig, State], damage: Callable[[bytes], bytes]
) -> None:
    path, plan, _ = saved
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(InputError, match="is not a checkpoint of a federation"):
        begin(plan, path)


def change(path: Path, alter: Callable[[Weights], Weights], keep_document: bool = True) -> None:
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
        metadata = file.metadata() if keep_document else {"other": "1"}
    save_file(alter(tensors), path, metadata=metadata)


def poison(part: str) -> Callable[[Weights], Weights]:
    return lambda tensors: {n: t * torch.nan if n.startswith(part) else t for n, t in tensors.items()}


def lose(part: str) -> Callable[[Weights], Weights]:
    return lambda tensors: {n: t for n, t in tensors.items() if n != next(x for x in tensors if x.startswith(part))}


def rename(tensors: Weights) -> Weights:
    return {name.replace("server.momentum", "server.m"): tensor for name, tensor in tensors.items()}


@pytest.mark.parametrize(
    ("alter", "message"),
    [
        (poison("weights."), "holds NaN or infinity"),
        (lose("weights."), "is missing"),
        (poison("server."), "holds NaN or infinity"),
        (lose("server."), "is missing"),
        (rename, "holds another optimizer"),
    ],
)
def test_wrong_tensors_are_refused(
    saved: tuple[Path, FederationConfig, State], alter: Callable[[Weights], Weights], message: str
) -> None:
    path, plan, _ = saved
    change(path, alter)
    with pytest.raises(InputError, match=message):
        begin(plan, path)


def test_another_safetensors_file_is_refused(saved: tuple[Path, FederationConfig, State]) -> None:
    path, plan, _ = saved
    change(path, lambda tensors: tensors, keep_document=False)
    with pytest.raises(InputError, match="is not a checkpoint of a federation; remove it"):
        begin(plan, path)
