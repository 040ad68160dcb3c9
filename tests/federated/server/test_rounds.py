import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from bottlegan.core.config import parse, to_values
from bottlegan.core.errors import ConfigError, FederationError, InputError
from bottlegan.core.progress import Progress, Silent
from bottlegan.core.task import Task
from bottlegan.data.labels import Labeled
from bottlegan.federated.client.training import Lab, score_lab, train_round
from bottlegan.federated.protocol.exchange import Absence, Exchange, LocalExchange, Reply, Request
from bottlegan.federated.protocol.phase2 import Phase2Config, initial_weights
from bottlegan.federated.server.config import FederationConfig, RoundsConfig, StrategyConfig
from bottlegan.federated.server.folder import CHECKPOINT
from bottlegan.federated.server.members import Member
from bottlegan.federated.server.phase2 import run_phase2
from bottlegan.federated.server.roster import Roster
from bottlegan.federated.server.rounds import State, draw_clients
from bottlegan.metrics.tally import compute_scores, tally
from bottlegan.models.networks import Weights
from bottlegan.training.task import count_classes, lay_out

FEDAVG = StrategyConfig(name="fedavg", robust="none")


def plan(config: Phase2Config, strategy: StrategyConfig = FEDAVG, seed: int = 0, **rounds: float) -> FederationConfig:
    wanted = RoundsConfig(**{"least": 1, **rounds})  # type: ignore[arg-type]
    return FederationConfig(seed=seed, phase2=config, strategy=strategy, rounds=wanted)


def run(
    exchange: Exchange,
    examples: Mapping[str, int],
    config: FederationConfig,
    folder: Path,
    progress: Progress | None = None,
    tested: tuple[int, ...] = (4, 6),
) -> State:
    """Run phase 2 with clients that have joined with these numbers of labeled images."""
    folder.mkdir(exist_ok=True)
    roster = Roster(folder)
    roster.put({name: Member(labeled=count, unlabeled=0, test=1, tested=tested) for name, count in examples.items()})
    return run_phase2(exchange, config, folder, roster, progress=progress)


LAYOUT = lay_out(Task())
COUNTED = tally(torch.tensor([[0.0, 1.0]] * 10), torch.tensor([1] * 6 + [0] * 4), LAYOUT)
"""Return the tally of ten pixels, six of them right."""


def shift(by: float) -> Callable[[Request], Reply]:
    """A client that adds a number to all weights, and counts 10 pixels."""

    def answer(request: Request) -> Reply:
        if request.kind == "evaluate":
            return Reply({"tally": COUNTED.clone()})
        return Reply({name: tensor + by for name, tensor in request.arrays.items()}, {"loss": abs(by)})

    return answer


def spoil(change: Callable[[Weights], Weights], by: float = 1.0) -> Callable[[Request], Reply]:
    """A client that changes its valid weights before it sends them."""

    def answer(request: Request) -> Reply:
        reply = shift(by)(request)
        return Reply(change(dict(reply.arrays)), reply.numbers) if request.kind == "train" else reply

    return answer


def fail(request: Request) -> Reply:
    raise InputError("the disk is gone")


def equal(a: Weights, b: Weights) -> bool:
    return list(a) == list(b) and all(torch.equal(a[name], b[name]) for name in a)


def moved(config: Phase2Config, weights: Weights) -> float:
    """Return the difference between all weights and the initial ones."""
    start = initial_weights(config, 0)
    return float(torch.stack([(weights[name] - start[name]).mean() for name in start]).mean())


def test_replies_are_averaged_by_examples(tiny: Phase2Config, tmp_path: Path) -> None:
    exchange = LocalExchange({"a": shift(1), "b": shift(1.4)})
    state = run(exchange, {"a": 3, "b": 1}, plan(replace(tiny, rounds=1), weight_bound=3), tmp_path)
    assert moved(tiny, state.weights) == pytest.approx(1.1, abs=1e-5)
    assert state.history.rounds[0].trained == ("a", "b")
    assert state.history.rounds[0].loss == {"a": 1.0, "b": 1.4}


def test_nobody_weighs_or_moves_more_than_the_bounds_allow(tiny: Phase2Config, tmp_path: Path) -> None:
    exchange = LocalExchange({"a": shift(1), "b": shift(1), "liar": shift(-100)})
    state = run(exchange, {"a": 5, "b": 5, "liar": 10**9}, plan(replace(tiny, rounds=1)), tmp_path)
    # Clipped to 1.5 medians, with a weight of 2 medians: (1 + 1 - 2 * 1.5) / 4.
    assert moved(tiny, state.weights) == pytest.approx(-0.25, abs=1e-5)


def without_first(arrays: Weights) -> Weights:
    return dict(list(arrays.items())[1:])


def with_nan(arrays: Weights) -> Weights:
    return {name: tensor * torch.nan for name, tensor in arrays.items()}


def with_wrong_shape(arrays: Weights) -> Weights:
    return {name: tensor[None] for name, tensor in arrays.items()}


def with_more(arrays: Weights) -> Weights:
    return {**arrays, "extra": torch.zeros(1)}


def with_doubles(arrays: Weights) -> Weights:
    return {name: tensor.double() for name, tensor in arrays.items()}


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (fail, "the disk is gone"),
        (spoil(without_first), "is missing"),
        (spoil(with_nan), "holds NaN or infinity"),
        (spoil(with_wrong_shape), "has shape"),
        (spoil(with_more), "unexpected tensor extra"),
        (spoil(with_doubles), "is torch.float64"),
        (lambda request: replace(shift(1)(request), numbers={"loss": float("nan")}), "number loss is nan"),
        (lambda request: replace(shift(1)(request), numbers={}), "number loss is missing"),
    ],
)
def test_a_bad_client_costs_its_own_share_and_is_named(
    bad: Callable[[Request], Reply], reason: str, tiny: Phase2Config, tmp_path: Path
) -> None:
    config = replace(tiny, rounds=2)
    exchange = LocalExchange({"a": shift(1), "bad": bad, "b": shift(1.1), "c": shift(0.9)})
    examples = dict.fromkeys(exchange.clients(), 1)
    state = run(exchange, examples, plan(config), tmp_path)
    for record in state.history.rounds:
        assert record.trained == ("a", "b", "c")
        assert list(record.left_out) == ["bad"]
        assert reason in record.left_out["bad"]
    assert moved(tiny, state.weights) == pytest.approx(2, abs=1e-4)


def test_too_few_replies_end_the_run_with_their_reasons(tiny: Phase2Config, tmp_path: Path) -> None:
    exchange = LocalExchange({"a": shift(1), "b": fail})
    with pytest.raises(
        FederationError, match=r"round 1: 1 usable replies, at least 2 are needed \(b: the disk is gone"
    ):
        run(exchange, {"a": 1, "b": 1}, plan(tiny, least=2), tmp_path)
    assert not (tmp_path / CHECKPOINT).exists()
    with pytest.raises(FederationError, match="fewer than 1 of 2 clients can train"):
        run(exchange, {"a": 0, "b": 0}, plan(tiny), tmp_path)


def test_a_client_that_is_absent_or_late_is_counted_when_it_is_there(tiny: Phase2Config, tmp_path: Path) -> None:
    class Arriving(LocalExchange):
        asked = 0

        def clients(self) -> list[str]:
            return ["a", "late"] if self.asked >= 2 else ["a"]

        def ask(self, requests: Mapping[str, Request], deadline: float) -> dict[str, Reply | Absence]:
            self.asked += 1
            return super().ask(requests, deadline)

    exchange = Arriving({"a": shift(1), "late": shift(2)})
    state = run(exchange, {"a": 1, "late": 1}, plan(tiny), tmp_path)
    assert [record.trained for record in state.history.rounds] == [("a",), ("a",), ("a", "late"), ("a", "late")]


def test_a_request_says_all_that_a_client_needs_to_know(tiny: Phase2Config, tmp_path: Path) -> None:
    seen: list[Request] = []

    def answer(request: Request) -> Reply:
        seen.append(request)
        return shift(1)(request)

    run(LocalExchange({"a": answer}), {"a": 1}, plan(tiny, seed=7, evaluate_every=2), tmp_path)
    assert [request.kind for request in seen] == ["train", "train", "evaluate", "train", "train", "evaluate"]
    assert [request.settings["round"] for request in seen] == [1, 2, 2, 3, 4, 4]
    for request in seen:
        assert request.settings["seed"] == 7
        assert parse(Phase2Config, json.loads(str(request.settings["config"])), "") == tiny
        assert all(isinstance(value, str | int | float | bool) for value in request.settings.values())


def test_the_last_round_is_scored_over_all_clients(tiny: Phase2Config, tmp_path: Path) -> None:
    def forgetful(request: Request) -> Reply:
        return Reply({"tally": torch.zeros(LAYOUT.size).double()}) if request.kind == "evaluate" else shift(1)(request)

    def lying(request: Request) -> Reply:
        return Reply({"tally": -torch.ones(LAYOUT.size).double()}) if request.kind == "evaluate" else shift(1)(request)

    def boasting(request: Request) -> Reply:
        reply = shift(1)(request)
        if request.kind == "evaluate":
            reply.arrays["tally"][0] = 11
        return reply

    answers = {"a": shift(1), "b": forgetful, "c": lying, "d": fail, "e": shift(1), "f": boasting}
    state = run(LocalExchange(answers), dict.fromkeys(answers, 1), plan(tiny), tmp_path)
    assert [bool(record.scores) for record in state.history.rounds] == [False, False, False, True]
    last = state.history.rounds[-1]
    assert sorted(last.each) == ["a", "e"]
    assert list(last.unscored) == ["b", "c", "d", "f"]
    assert last.unscored["b"] == "its tally counts 0 and 0 of the classes, not 4 and 6"
    assert last.unscored["d"] == "the disk is gone"
    assert "more correct than there are" in last.unscored["f"]
    assert last.unscored["c"] == "its tally holds an impossible count"
    assert last.scores["iou"] == pytest.approx(0.6)
    assert last.scores["nll"] == pytest.approx(0.7133, abs=1e-3)


def test_clients_are_drawn_from_our_seed_whoever_else_draws(tiny: Phase2Config) -> None:
    names = [f"lab-{k}" for k in range(10)]
    examples = {name: int(name != "lab-3") for name in names}
    drawn = [draw_clients(names, examples, plan(tiny, clients=4), number) for number in range(1, 30)]
    again = [draw_clients(names[::-1], examples, plan(tiny, clients=4), number) for number in range(1, 30)]
    assert drawn == again
    assert all(len(set(each)) == 4 and "lab-3" not in each for each in drawn)
    assert len({tuple(each) for each in drawn}) > 5
    assert {name for each in drawn for name in each} == set(names) - {"lab-3"}
    assert drawn != [draw_clients(names, examples, plan(tiny, seed=1, clients=4), number) for number in range(1, 30)]


def real(lab: Lab, config: Phase2Config, request: Request) -> Reply:
    """A lab that keeps no state between two rounds."""
    if request.kind == "evaluate":
        return Reply({"tally": score_lab(lab, request.arrays, config)})
    number, seed = int(request.settings["round"]), int(request.settings["seed"])
    trained = train_round(lab, request.arrays, config, number, seed)
    return Reply(trained.weights, {"loss": trained.loss})


class Killed(LocalExchange):
    """The machine crashes at one of the requests: before, during or after the clients' training."""

    def __init__(self, exchange: LocalExchange, at: int) -> None:
        super().__init__(exchange.answers)
        self.left = at

    def ask(self, requests: Mapping[str, Request], deadline: float) -> dict[str, Reply | Absence]:
        replies = super().ask(requests, deadline)
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt
        return replies


@pytest.mark.parametrize("name", ["fedavg", "fedavgm", "fedadam"])
@pytest.mark.parametrize("at", [0, 2, 5])
def test_a_killed_run_goes_on_to_the_same_bytes(
    name: str, at: int, tiny: Phase2Config, dark: list[Labeled], pale: list[Labeled], tmp_path: Path
) -> None:
    labs = [Lab("dark", dark[:1], [], dark[:1]), Lab("pale", pale[:2], [], pale[:1])]
    exchange = LocalExchange({lab.name: partial(real, lab, tiny) for lab in labs})
    strategy = StrategyConfig(name=name, learning_rate=0.1)  # type: ignore[arg-type]
    wanted, examples = plan(tiny, strategy, evaluate_every=2, clients=1), {"dark": 1, "pale": 2}
    whole = run(exchange, examples, wanted, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run(Killed(exchange, at), examples, wanted, tmp_path / "killed")
    resumed = run(exchange, examples, wanted, tmp_path / "killed")
    assert resumed.history == whole.history
    assert equal(resumed.weights, whole.weights)
    again = run(LocalExchange({}), {}, wanted, tmp_path / "killed")
    assert equal(again.weights, whole.weights)


def test_momentum_is_part_of_what_is_resumed(tiny: Phase2Config, tmp_path: Path) -> None:
    exchange, wanted = LocalExchange({"a": shift(1)}), plan(tiny, StrategyConfig(momentum=0.5, robust="none"))
    with pytest.raises(KeyboardInterrupt):
        run(Killed(exchange, 3), {"a": 1}, wanted, tmp_path)
    state = run(exchange, {"a": 1}, wanted, tmp_path)
    # v = 1, 1.5, 1.75, 1.875.
    assert moved(tiny, state.weights) == pytest.approx(6.125, abs=1e-4)


def test_every_round_is_told(tiny: Phase2Config, tmp_path: Path) -> None:
    told: list[dict[str, object]] = []

    class Told(Silent):
        def event(self, kind: str, **fields: object) -> None:
            told.append({"kind": kind, **fields})

    run(LocalExchange({"a": shift(1), "b": fail}), {"a": 1, "b": 1}, plan(tiny), tmp_path, Told())
    assert [each["number"] for each in told] == [1, 2, 3, 4]
    assert told[0]["left_out"] == {"b": "the disk is gone"}


@pytest.mark.parametrize(
    "values",
    [
        {"least": 0},
        {"clients": -1},
        {"deadline": 0.0},
        {"length_bound": 0.5},
        {"weight_bound": 0.0},
        {"clients": 2, "least": 3},
    ],
)
def test_impossible_numbers_are_refused(values: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="rounds:"):
        RoundsConfig(**values)  # type: ignore[arg-type]


def test_scores_are_those_of_one_place(
    tiny: Phase2Config, dark: list[Labeled], pale: list[Labeled], tmp_path: Path
) -> None:
    labs = [Lab("dark", dark[:1], [], dark), Lab("pale", pale[:1], [], pale)]
    exchange = LocalExchange({lab.name: partial(real, lab, tiny) for lab in labs})
    state = run(exchange, {"dark": 1, "pale": 1}, plan(tiny), tmp_path, tested=tuple(count_classes(dark, Task())))
    total = score_lab(Lab("all", [], [], [*dark, *pale]), state.weights, tiny)
    pooled = compute_scores(total, LAYOUT, tiny.task.classes)
    assert state.history.rounds[-1].scores == pytest.approx(pooled)
    assert to_values(state.history)["rounds"][-1]["each"].keys() == {"dark", "pale"}


def test_a_lab_that_pulls_against_the_others_is_named_and_left_out(tiny: Phase2Config, tmp_path: Path) -> None:
    labs = {f"lab-{k}": shift(1 + k / 20) for k in range(6)} | {"mad": shift(-1)}
    config = plan(replace(tiny, rounds=6), StrategyConfig(name="fedavg"))
    state = run(LocalExchange(labs), dict.fromkeys(labs, 1), config, tmp_path)
    last = state.history.rounds[-1]
    assert list(last.suspects) == ["mad"]
    assert "point away from the others'" in last.left_out["mad"]
    assert "mad" not in last.trained
    assert last.standing["mad"].cosine == pytest.approx(-1, abs=1e-3)
    assert last.standing["lab-0"].cosine == pytest.approx(1, abs=1e-3)
    assert state.history.rounds[0].suspects == {}  # one round is not enough evidence
    only_named = replace(config, strategy=StrategyConfig(name="fedavg", robust="none"))
    state = run(LocalExchange(labs), dict.fromkeys(labs, 1), only_named, tmp_path / "none")
    assert list(state.history.rounds[-1].suspects) == ["mad"]
    assert "mad" in state.history.rounds[-1].trained
