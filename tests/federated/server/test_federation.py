import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from bottlegan.core.errors import FederationError, InputError
from bottlegan.core.progress import Silent
from bottlegan.core.task import Task
from bottlegan.federated.protocol.exchange import (
    LABELED,
    LOSS,
    TEST,
    UNLABELED,
    VERDICT,
    Absence,
    LocalExchange,
    Reply,
    Request,
)
from bottlegan.federated.protocol.handshake import HANDSHAKE, from_text, to_tensor
from bottlegan.federated.protocol.phase1 import CODE, Phase1Config
from bottlegan.federated.protocol.phase2 import Phase2Config
from bottlegan.federated.server import roster
from bottlegan.federated.server.config import FederationConfig, RoundsConfig, StrategyConfig
from bottlegan.federated.server.federation import remove_client, run_federation
from bottlegan.federated.server.folder import holds_run
from bottlegan.federated.server.members import read_members
from bottlegan.federated.server.uploads import UploadStore
from bottlegan.metrics.tally import tally
from bottlegan.models.files import load_model
from bottlegan.models.networks import Weights
from bottlegan.models.weights import read_document
from bottlegan.training.fixmatch import FixMatchConfig
from bottlegan.training.task import lay_out

CODE_SIZE = 24
LAYOUT = lay_out(Task())
COUNTS = {LABELED: 2, UNLABELED: 3, TEST: 1, "class/0": 50, "class/1": 50, "test_class/0": 0, "test_class/1": 9}


class Recorder(LocalExchange):
    """Records all requests and replies, and can make clients absent."""

    def __init__(self, answers: Mapping[str, Callable[[Request], Reply]]) -> None:
        super().__init__(answers)
        self.said: list[tuple[str, Request, Reply | Absence]] = []
        self.away: set[str] = set()

    def clients(self) -> list[str]:
        return [name for name in self.answers if name not in self.away]

    def ask(self, requests: Mapping[str, Request], deadline: float) -> dict[str, Reply | Absence]:
        replies = super().ask(requests, deadline)
        self.said += [(name, requests[name], reply) for name, reply in replies.items()]
        return replies

    def kinds(self, name: str) -> list[str]:
        return [request.kind for who, request, _ in self.said if who == name]


def shake(request: Request) -> Tensor:
    """Return the handshake of a compatible client."""
    return to_tensor(from_text(str(request.settings[HANDSHAKE])))


class Double:
    """A client without images, whose style is a number and whose weights grow by one."""

    def __init__(self, code: float = 0.0, **replies: Reply | Exception) -> None:
        self.code, self.replies = code, replies

    def __call__(self, request: Request) -> Reply:
        if request.kind in self.replies:
            reply = self.replies[request.kind]
            if isinstance(reply, Exception):
                raise reply
            return replace(reply, arrays={HANDSHAKE: shake(request)}) if request.kind == "join" else reply
        match request.kind:
            case "join":
                return Reply({HANDSHAKE: shake(request)}, COUNTS)
            case "contribute":
                return Reply({CODE: torch.full((CODE_SIZE,), self.code)}, {VERDICT: 0})
            case "styles":
                return Reply()
            case "train":
                return Reply({name: tensor + 1 for name, tensor in request.arrays.items()}, {LOSS: 1.0})
            case _:
                return Reply({"tally": tally(torch.tensor([[0.0, 1.0]] * 9), torch.ones(9), LAYOUT)})


class Told(Silent):
    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, object]]] = []

    def event(self, kind: str, **fields: object) -> None:
        self.events.append((kind, fields))

    def left_out(self) -> dict[object, object]:
        return {fields["client"]: fields["reason"] for kind, fields in self.events if kind == "left out"}


@pytest.fixture
def plain(tiny: Phase2Config) -> FederationConfig:
    return FederationConfig(
        phase2=replace(tiny, rounds=3),
        strategy=StrategyConfig(name="fedavg"),
        rounds=RoundsConfig(least=1, deadline=0.05, evaluate_every=2),
        upload_deadline=5.0,
    )


@pytest.fixture
def stained(plain: FederationConfig) -> FederationConfig:
    return replace(plain, phase2=replace(plain.phase2, mode="normalize"))


def equal(a: Weights, b: Weights) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


class Killed(Recorder):
    """Crashes at the given request for training, after clients have trained."""

    def __init__(self, answers: Mapping[str, Callable[[Request], Reply]], at: int) -> None:
        super().__init__(answers)
        self.left = at

    def ask(self, requests: Mapping[str, Request], deadline: float) -> dict[str, Reply | Absence]:
        replies = super().ask(requests, deadline)
        if any(request.kind == "train" for request in requests.values()):
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt
        return replies


def test_uploads_are_asked_for_once(stained: FederationConfig, tmp_path: Path) -> None:
    answers = {"a": Double(0.1), "b": Double(0.2)}
    with pytest.raises(KeyboardInterrupt):
        run_federation(Killed(answers, 1), stained, tmp_path)
    before = (tmp_path / "styles.safetensors").read_bytes()
    exchange = Recorder(answers)
    run_federation(exchange, stained, tmp_path)
    assert exchange.kinds("a") == ["train", "train", "evaluate", "train", "evaluate"]
    assert (tmp_path / "styles.safetensors").read_bytes() == before


def test_a_late_client_is_taken_in_without_asking_the_others_again(stained: FederationConfig, tmp_path: Path) -> None:
    class Arriving(Recorder):
        def clients(self) -> list[str]:
            return [name for name in self.answers if name != "late" or len(self.kinds("a")) > 4]

    exchange = Arriving({"a": Double(0.1), "b": Double(0.2), "late": Double(0.3)})
    state = run_federation(exchange, stained, tmp_path)
    assert [record.trained for record in state.history.rounds] == [("a", "b"), ("a", "b"), ("a", "b", "late")]
    kinds = ["join", "contribute", "styles", "train", "train", "evaluate", "styles", "train", "evaluate"]
    assert exchange.kinds("a") == kinds
    assert exchange.kinds("late") == ["join", "contribute", "styles", "train", "evaluate"]
    model = load_model(tmp_path / "styles.safetensors")
    assert model.codes.names == ["a", "b", "late"]
    assert [float(code[0].detach()) for code in model.codes.table] == pytest.approx([0.1, 0.2, 0.3])


def test_a_client_that_leaves_is_removed_and_not_asked_again(stained: FederationConfig, tmp_path: Path) -> None:
    answers = {"a": Double(0.1), "b": Double(0.2), "c": Double(0.3)}
    with pytest.raises(KeyboardInterrupt):
        run_federation(Killed(answers, 2), stained, tmp_path)
    remove_client(tmp_path, "b")
    assert UploadStore(tmp_path / "uploads").names() == ["a", "c"]
    assert read_document(tmp_path / "styles.safetensors").styles == ("a", "c")
    exchange = Recorder(answers)
    state = run_federation(exchange, stained, tmp_path)
    assert exchange.kinds("b") == []
    assert exchange.kinds("a") == ["styles", "train", "evaluate", "train", "evaluate"]
    assert [len(record.trained) for record in state.history.rounds] == [3, 2, 2]
    with pytest.raises(InputError, match="has no client called b; there are: a, c"):
        remove_client(tmp_path, "b")


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (Double(join=FederationError("join ended with ImageError")), "join ended with ImageError"),
        (Double(join=Reply(numbers={LABELED: 1.0})), "number class/0 is missing"),
        (Double(join=Reply(numbers={**COUNTS, LABELED: float("nan")})), "number labeled is nan"),
        (Double(contribute=FederationError("gone")), "gone"),
        (Double(contribute=Reply({CODE: torch.zeros(9)}, {VERDICT: 0})), r"shape (9,), not (24,)"),
        (Double(float("nan")), "holds NaN or infinity"),
        (Double(1000.0), "its style code holds 1e+03, training knew at most 100"),
        (Double(90.0), "of its style holds"),
        (Double(contribute=Reply({CODE: torch.zeros(CODE_SIZE)})), "number verdict is missing"),
        (Double(contribute=Reply({CODE: torch.zeros(CODE_SIZE)}, {VERDICT: 2})), "its style was refused"),
        (Double(contribute=Reply({CODE: torch.zeros(CODE_SIZE)}, {VERDICT: 99})), "its style was refused"),
        (Double(styles=FederationError("no space left")), "no space left"),
    ],
)
def test_a_client_that_cannot_join_is_left_out_by_name(
    bad: Double, reason: str, stained: FederationConfig, tmp_path: Path
) -> None:
    exchange, told = Recorder({"a": Double(0.1), "bad": bad, "c": Double(0.2)}), Told()
    state = run_federation(exchange, stained, tmp_path, progress=told)
    assert all(record.trained == ("a", "c") for record in state.history.rounds)
    assert reason in str(told.left_out()["bad"])
    assert sorted(state.history.rounds[-1].each) == ["a", "c"]
    assert exchange.kinds("bad").count("contribute") <= 1
    assert "train" not in exchange.kinds("bad")
    assert "left out" in (tmp_path / "federation.jsonl").read_text()


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (None, "it does not say which bottlegan it runs; install the same bottlegan on both sides: pip install"),
        (torch.zeros(5), "its handshake is not a short text"),
        (torch.zeros(2000, dtype=torch.uint8), "its handshake is not a short text"),
        (torch.full((9,), 255, dtype=torch.uint8), "the handshake cannot be read"),
        ({"package": "0.0.1"}, "it runs bottlegan 0.0.1, the server"),
        ({"prior": "ab" * 32}, "its prior is abababababab, the server's"),
        ({"network": "\n" * 80}, "the network it builds is ????????????, the server's"),
    ],
)
def test_a_client_that_has_not_in_common_with_the_server_what_it_must_is_refused_by_name(
    bad: Tensor | dict[str, str] | None, said: str, plain: FederationConfig, tmp_path: Path
) -> None:
    class Odd(Double):
        def __call__(self, request: Request) -> Reply:
            reply = super().__call__(request)
            if request.kind != "join":
                return reply
            if isinstance(bad, dict):
                claimed = replace(from_text(str(request.settings[HANDSHAKE])), **bad)
                return replace(reply, arrays={HANDSHAKE: to_tensor(claimed)})
            return replace(reply, arrays={} if bad is None else {HANDSHAKE: bad})

    told = Told()
    state = run_federation(Recorder({"a": Double(), "odd": Odd()}), plain, tmp_path, progress=told)
    assert said in str(told.left_out()["odd"])
    assert all(record.trained == ("a",) for record in state.history.rounds)


def test_a_client_that_was_left_out_is_asked_again_when_it_comes_back(
    stained: FederationConfig, tmp_path: Path
) -> None:
    bad = Double(0.3, contribute=FederationError("wrong folder"))

    class Returning(Recorder):
        def clients(self) -> list[str]:
            trained = self.kinds("a").count("train")
            if trained == 1:
                bad.replies.clear()
            return ["a", "c"] if trained == 1 else ["a", "bad", "c"]

    exchange = Returning({"a": Double(0.1), "bad": bad, "c": Double(0.2)})
    state = run_federation(exchange, stained, tmp_path)
    assert [record.trained for record in state.history.rounds] == [("a", "c"), ("a", "c"), ("a", "bad", "c")]


def test_too_few_clients_are_waited_for_but_not_for_ever(
    plain: FederationConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = replace(plain, rounds=RoundsConfig(least=2, deadline=0.2))
    exchange = Recorder({"a": Double(), "b": Double()})
    exchange.away = {"b"}
    with pytest.raises(FederationError, match=r"1 clients are connected after 0.2 s, 2 are needed; start the others"):
        run_federation(exchange, config, tmp_path / "a")
    # It connects while the server waits.
    monkeypatch.setattr(roster.time, "sleep", lambda seconds: exchange.away.clear())
    assert run_federation(exchange, config, tmp_path / "b").finished == 3


def test_how_a_run_ended_is_in_its_log(plain: FederationConfig, tmp_path: Path) -> None:
    failing = Double(train=FederationError("train ended with OSError"))
    with pytest.raises(FederationError, match="0 usable replies"):
        run_federation(Recorder({"a": failing}), plain, tmp_path)
    last = json.loads((tmp_path / "federation.jsonl").read_text().splitlines()[-1])
    assert (last["kind"], last["error"]) == ("failed", "FederationError")
    assert "a: train ended with OSError" in last["text"]
    with pytest.raises(KeyboardInterrupt):
        run_federation(Killed({"a": Double()}, 2), plain, tmp_path)
    assert json.loads((tmp_path / "history.json").read_text())["rounds"][0]["loss"] == {"a": 1.0}
    run_federation(Recorder({"a": Double()}), plain, tmp_path)
    events = [json.loads(line)["kind"] for line in (tmp_path / "federation.jsonl").read_text().splitlines()]
    assert events == ["begun", "failed", "begun", "round", "failed", "begun", "round", "round", "finished"]


def test_clients_that_cannot_train_are_too_few(plain: FederationConfig, tmp_path: Path) -> None:
    idle = Double(join=Reply(numbers={**COUNTS, LABELED: 0, UNLABELED: 5}))
    config = replace(plain, rounds=RoundsConfig(least=2, deadline=0.05))
    with pytest.raises(FederationError, match=r"fewer than 2 of 2 clients can train .*no labels"):
        run_federation(Recorder({"a": Double(), "idle": idle}), config, tmp_path / "a")
    failing = Double(join=FederationError("join ended with ImageError"))
    with pytest.raises(FederationError, match=r"fewer than 2 of 2 clients can train .*b: join ended with ImageError"):
        run_federation(Recorder({"a": Double(), "b": failing}), config, tmp_path / "b")
    fixmatch = replace(config, phase2=replace(config.phase2, fixmatch=FixMatchConfig(enabled=True, warm_up=0.0)))
    state = run_federation(Recorder({"a": Double(), "idle": idle}), fixmatch, tmp_path / "c")
    assert state.history.rounds[0].trained == ("a", "idle")
    assert read_members(tmp_path / "c").clients["idle"].unlabeled == 5


def test_a_client_that_dies_in_a_round_costs_that_round_its_share(plain: FederationConfig, tmp_path: Path) -> None:
    class Dying(Double):
        def __call__(self, request: Request) -> Reply:
            if request.kind == "train" and request.settings["round"] == 2:
                raise FederationError("killed")
            return super().__call__(request)

    state = run_federation(Recorder({"a": Double(), "b": Dying()}), plain, tmp_path)
    assert [record.trained for record in state.history.rounds] == [("a", "b"), ("a",), ("a", "b")]
    assert state.history.rounds[1].left_out == {"b": "killed"}


def test_a_folder_belongs_to_one_configuration(plain: FederationConfig, tmp_path: Path) -> None:
    exchange = Recorder({"a": Double()})
    assert not holds_run(tmp_path)
    run_federation(exchange, plain, tmp_path)
    assert holds_run(tmp_path)
    said = len(exchange.said)
    run_federation(exchange, plain, tmp_path)
    assert len(exchange.said) == said
    for other in (replace(plain, seed=1), replace(plain, phase1=Phase1Config(method="generators"))):
        with pytest.raises(InputError, match="another configuration or seed"):
            run_federation(exchange, other, tmp_path)


def test_a_history_without_scores_says_so(plain: FederationConfig, tmp_path: Path) -> None:
    silent = Double(evaluate=Reply({"tally": torch.zeros(LAYOUT.size, dtype=torch.float64)}))
    run_federation(Recorder({"a": silent}), plain, tmp_path)
    assert (tmp_path / "scores.txt").read_text() == "No client has test images, so nothing was scored.\n"
