import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load, save

from bottlegan.core.errors import DamagedError, InputError
from bottlegan.core.progress import EventLog
from bottlegan.core.stamp import BLANK, stamp
from bottlegan.core.state import find_older, forget_generations, read_metadata
from bottlegan.federated.protocol.exchange import LocalExchange, Reply, Request
from bottlegan.federated.protocol.phase2 import Phase2Config
from bottlegan.federated.server import rounds
from bottlegan.federated.server.checkpoint import load_rounds, save_rounds
from bottlegan.federated.server.config import FederationConfig, RoundsConfig, StrategyConfig
from bottlegan.federated.server.folder import CHECKPOINT
from bottlegan.federated.server.members import Member
from bottlegan.federated.server.phase2 import run_phase2
from bottlegan.federated.server.roster import Roster
from bottlegan.federated.server.rounds import State
from bottlegan.models.networks import Weights


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
        with pytest.raises(InputError, match=r"another configuration or seed; remove it and .* to start anew"):
            begin(other, path)


@pytest.mark.parametrize("damage", [lambda b: b[:-7], lambda b: b"\xff" * 40, lambda b: b"", lambda b: b"\0" * len(b)])
def test_a_damaged_file_is_refused(
    saved: tuple[Path, FederationConfig, State], damage: Callable[[bytes], bytes]
) -> None:
    path, plan, _ = saved
    for each in (path, find_older(path)):
        each.write_bytes(damage(each.read_bytes()))
    with pytest.raises(DamagedError, match=r"is damaged.*previous.*is damaged.*remove it and .* to start anew"):
        begin(plan, path)
    forget_generations(path)
    assert begin(plan, path).finished == 0


def test_the_older_generation_is_used_if_the_newer_is_damaged_or_missing_and_said_so(
    saved: tuple[Path, FederationConfig, State],
) -> None:
    path, plan, state = saved
    before = find_older(path).read_bytes()
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    found = rounds.begin(plan)
    damage = load_rounds(path, plan, found)
    assert damage is not None
    assert "checkpoint.safetensors: is damaged" in damage
    assert "using the generation before it, checkpoint.previous.safetensors" in damage
    assert found.finished == 3
    assert found.history.rounds == state.history.rounds[:3]
    path.unlink()
    assert "is missing" in (load_rounds(path, plan, rounds.begin(plan)) or "")
    assert find_older(path).read_bytes() == before


def test_a_run_goes_on_from_the_older_generation_to_the_same_bytes(
    saved: tuple[Path, FederationConfig, State], tmp_path: Path
) -> None:
    path, plan, state = saved
    path.write_bytes(b"")
    told = tmp_path / "told.jsonl"
    with EventLog(told) as log:
        again = run_phase2(LocalExchange({"a": grow}), plan, tmp_path, Roster(tmp_path), progress=log)
    assert all(torch.equal(again.weights[name], state.weights[name]) for name in state.weights)
    assert again.history == state.history
    assert '"damaged"' in told.read_text()


def change(path: Path, alter: Callable[[Weights], Weights], keep_document: bool = True) -> None:
    content = path.read_bytes()
    said = json.loads(read_metadata(content)["federation"])
    metadata = {"federation": json.dumps({**said, "checksum": BLANK})} if keep_document else {"other": BLANK}
    path.write_bytes(stamp(save(alter(load(content)), metadata)))


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
    with pytest.raises(InputError, match="is not a checkpoint of a federation; remove it and"):
        begin(plan, path)
