"""Whole federations of labs with images, in one process."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bottlegan.core.audit import verify
from bottlegan.core.errors import InputError, ModelFileError
from bottlegan.core.state import read_document
from bottlegan.federated.client.client import open_client
from bottlegan.federated.protocol.exchange import (
    Absence,
    LocalExchange,
    Reply,
    Request,
)
from bottlegan.federated.protocol.handshake import HANDSHAKE
from bottlegan.federated.protocol.phase1 import CODE
from bottlegan.federated.protocol.phase2 import Phase2Config
from bottlegan.federated.server.config import FederationConfig, RoundsConfig, StrategyConfig
from bottlegan.federated.server.federation import run_federation
from bottlegan.federated.server.history import History
from bottlegan.federated.server.outcome import format_scores
from bottlegan.models.document import PRIOR
from bottlegan.models.files import load_model
from bottlegan.models.network_file import digest_model, load_network
from bottlegan.models.networks import Weights
from bottlegan.models.weights import read_weights, write_weights
from bottlegan.training.fixmatch import FixMatchConfig


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


def open_all(labs: Mapping[str, Path]) -> dict[str, Callable[[Request], Reply]]:
    return {name: open_client(path).answer for name, path in labs.items()}


@pytest.mark.parametrize("mode", ["normalize", "restain"])
def test_nothing_of_a_lab_but_numbers_leaves_it(
    mode: str, labs: dict[str, Path], stained: FederationConfig, tmp_path: Path
) -> None:
    phase2 = replace(stained.phase2, mode=mode, fixmatch=FixMatchConfig(enabled=True, warm_up=0.0, threshold=0.6))
    exchange = Recorder(open_all(labs))
    state = run_federation(exchange, replace(stained, phase2=phase2), tmp_path / "run")
    assert state.finished == 3
    assert all(len(record.trained) == 3 for record in state.history.rounds)
    assert {request.kind for _, request, _ in exchange.said} == {"join", "contribute", "styles", "train", "evaluate"}
    allowed = {
        "train": set(state.weights),
        "evaluate": {"tally"},
        "contribute": {CODE},
        "join": {HANDSHAKE},
        "styles": set(),
    }
    smallest = 64 * 64
    for _, request, reply in exchange.said:
        assert isinstance(reply, Reply), reply
        assert set(reply.arrays) == allowed.get(request.kind, set())
        assert all(type(value) in (int, float) for value in reply.numbers.values())
        for name, tensor in reply.arrays.items():
            assert tensor.dtype in (torch.float32, torch.float64) or name == HANDSHAKE
            assert tensor.numel() < smallest
            # Not a view of a larger tensor either, which a careless transport would send as a whole.
            assert tensor.untyped_storage().nbytes() == tensor.nbytes, name
    # The others learn only a client's name, as given by the server, and its style.
    told = [request for _, request, _ in exchange.said]
    secrets = ("lab.toml", "images", "/", str(tmp_path))
    for request in told:
        texts = [value for value in request.settings.values() if isinstance(value, str)]
        assert not [word for word in secrets for text in texts if word in text]


def test_a_run_leaves_a_network_its_history_and_its_scores(
    labs: dict[str, Path], stained: FederationConfig, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    state = run_federation(LocalExchange(open_all(labs)), stained, folder)
    built, said = load_network(folder / "network.safetensors")
    assert equal(dict(built.network.state_dict()), state.weights)
    assert (said.task, said.network, said.mode) == (stained.phase2.task, stained.phase2.network, "normalize")
    assert said.model == digest_model(read_weights(folder / "styles.safetensors")) == digest_model(read_weights(PRIOR))
    assert said.temperature == state.history.rounds[-1].temperature != 1
    assert said.scores == state.history.rounds[-1].scores
    assert read_document(History, folder / "history.json") == state.history
    assert sorted(load_model(folder / "styles.safetensors").codes.names) == sorted(labs)
    text = (folder / "scores.txt").read_text()
    assert text == format_scores(state.history)
    assert [line.split()[0] for line in text.splitlines()[3:]] == [*sorted(labs), "all"]
    events = [json.loads(line)["kind"] for line in (folder / "federation.jsonl").read_text().splitlines()]
    assert events == ["begun"] + ["upload"] * 3 + ["styles"] + ["round"] * 3 + ["finished"]
    assert verify(folder / "federation.jsonl").lines == len(events)
    assert [path for path in (folder, *folder.rglob("*")) if path.stat().st_mode & 0o077] == []


def test_a_run_is_the_same_whatever_the_order_of_its_labs(
    labs: dict[str, Path], plain: FederationConfig, tmp_path: Path
) -> None:
    one = run_federation(LocalExchange(open_all(labs)), plain, tmp_path / "one")
    other = run_federation(LocalExchange(open_all(dict(reversed(labs.items())))), plain, tmp_path / "other")
    assert equal(one.weights, other.weights)
    assert one.history == other.history


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


@pytest.mark.parametrize("strategy", ["fedavgm", "fedadam"])
@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_killed_federation_of_labs_with_own_layers_goes_on_to_the_same_bytes(
    strategy: str, at: int, labs: dict[str, Path], plain: FederationConfig, tmp_path: Path
) -> None:
    config = replace(
        plain,
        phase2=replace(plain.phase2, local_normalization=True),
        strategy=StrategyConfig(name=strategy, learning_rate=0.1),  # type: ignore[arg-type]
    )
    whole = run_federation(LocalExchange(open_all(labs)), config, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run_federation(Killed(open_all(labs), at), config, tmp_path / "killed")
    exchange = Recorder(open_all(labs))
    resumed = run_federation(exchange, config, tmp_path / "killed")
    assert equal(resumed.weights, whole.weights)
    assert resumed.history == whole.history
    assert not [request for _, request, _ in exchange.said if request.kind == "join"]


def test_a_federation_with_a_prior_of_its_own_sends_it_and_goes_on_with_it_only(
    labs: dict[str, Path], stained: FederationConfig, tmp_path: Path
) -> None:
    weights = read_weights(PRIOR)
    own = tmp_path / "own.safetensors"
    write_weights(replace(weights, document=replace(weights.document, record={"seed": 99})), own)
    folder, exchange = tmp_path / "run", Recorder(open_all(labs))
    run_federation(exchange, stained, folder, prior=own)
    assert (folder / "prior.safetensors").read_bytes() == own.read_bytes()
    joins = [(request, reply) for _, request, reply in exchange.said if request.kind == "join"]
    assert all(request.arrays["prior"].numpy().tobytes() == own.read_bytes() for request, _ in joins)
    assert all(isinstance(reply, Reply) for _, reply in joins)
    for other in (None, PRIOR):
        with pytest.raises(InputError, match="holds a run of another prior"):
            run_federation(exchange, stained, folder, prior=other)
    run_federation(exchange, stained, folder, prior=own)
    (tmp_path / "none.safetensors").write_bytes(b"no model")
    with pytest.raises(ModelFileError):
        run_federation(exchange, stained, tmp_path / "new", prior=tmp_path / "none.safetensors")
    assert not (tmp_path / "new").exists()
