from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from bottlegan.errors import InputError
from bottlegan.federated.checkpoint import save_rounds
from bottlegan.federated.exchange import LocalExchange, Reply, Request
from bottlegan.federated.phase2 import Phase2Config, Weights
from bottlegan.federated.rounds import Plan, RoundsConfig, State, begin, run_rounds
from bottlegan.federated.strategies import StrategyConfig


def grow(request: Request) -> Reply:
    if request.kind == "evaluate":
        return Reply()
    return Reply({name: tensor + 1 for name, tensor in request.arrays.items()})


@pytest.fixture
def saved(tiny: Phase2Config, tmp_path: Path) -> tuple[Path, Plan, State]:
    path = tmp_path / "checkpoint.safetensors"
    plan = Plan(tiny, StrategyConfig(name="fedavgm"), RoundsConfig(least=1), 3)
    return path, plan, run_rounds(LocalExchange({"a": grow}), {"a": 1}, plan, path)


def test_what_was_saved_is_loaded(saved: tuple[Path, Plan, State]) -> None:
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


def test_a_run_of_another_plan_is_not_gone_on_with(saved: tuple[Path, Plan, State]) -> None:
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
def test_a_damaged_file_is_refused(saved: tuple[Path, Plan, State], damage: Callable[[bytes], bytes]) -> None:
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
    saved: tuple[Path, Plan, State], alter: Callable[[Weights], Weights], message: str
) -> None:
    path, plan, _ = saved
    change(path, alter)
    with pytest.raises(InputError, match=message):
        begin(plan, path)


def test_another_safetensors_file_is_refused(saved: tuple[Path, Plan, State]) -> None:
    path, plan, _ = saved
    change(path, lambda tensors: tensors, keep_document=False)
    with pytest.raises(InputError, match="is not a checkpoint of a federation; remove it"):
        begin(plan, path)


def test_without_a_file_a_run_begins_at_the_beginning(tiny: Phase2Config, tmp_path: Path) -> None:
    plan = Plan(tiny, StrategyConfig(), RoundsConfig(), 0)
    assert begin(plan, tmp_path / "none").finished == begin(plan, None).finished == 0
