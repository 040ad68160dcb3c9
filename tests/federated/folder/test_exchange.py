"""A federation by files: the same orchestration and the same bytes, whatever happens to the files."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bottlegan.core.audit import verify
from bottlegan.core.errors import FederationError, InputError, WaitingError
from bottlegan.federated.client.client import Client, open_client
from bottlegan.federated.folder.channel import Channel
from bottlegan.federated.folder.exchange import DAY, FolderExchange, serve
from bottlegan.federated.folder.home import Home, make_home
from bottlegan.federated.folder.lab import answer_all, open_channel
from bottlegan.federated.protocol.exchange import Absence, LocalExchange, Reply, Request
from bottlegan.federated.protocol.phase2 import Phase2Config
from bottlegan.federated.server.config import FederationConfig, RoundsConfig
from bottlegan.federated.server.federation import run_federation
from bottlegan.federated.server.rounds import State
from bottlegan.quality.run_report import read_run

NAMES = ("lab-01", "lab-03")
"""The simulated labs that have labels."""


@pytest.fixture
def config(tiny: Phase2Config) -> FederationConfig:
    return FederationConfig(phase2=replace(tiny, mode="normalize", rounds=2), rounds=RoundsConfig(evaluate_every=2))


@pytest.fixture
def homes(labs: dict[str, Path], tmp_path: Path, server: Home) -> dict[str, Home]:
    made = {name: make_home(tmp_path / "homes" / name, name, labs[name]) for name in NAMES if name in labs}
    for home in made.values():
        server.trust(home.card)
        home.trust(server.card)
    return made


def open_lab(home: Home) -> Client:
    assert home.config.lab is not None
    return open_client(home.config.lab)


def carry(server: Home, homes: dict[str, Home], shared: Path, config: FederationConfig, run: Path) -> Iterator[State]:
    """Carry the folder to each lab and back, as long as the server waits for anybody."""
    for _ in range(30):
        try:
            yield serve(server, shared, config, run)
        except WaitingError as waiting:
            for name in waiting.missing:
                home = Home(homes[name].folder)
                assert answer_all(open_channel(home, shared), open_lab(home))
        else:
            return


def run_by_hand(server: Home, homes: dict[str, Home], shared: Path, config: FederationConfig, run: Path) -> State:
    (state,) = carry(server, homes, shared, config, run)
    return state


def test_both_phases_by_files_end_with_the_bytes_of_a_run_in_one_process(
    server: Home,
    homes: dict[str, Home],
    labs: dict[str, Path],
    shared: Path,
    config: FederationConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    by_hand = run_by_hand(server, homes, shared, config, tmp_path / "run")
    shutil.rmtree(labs[NAMES[0]].parent / "state")
    direct = LocalExchange({name: open_client(labs[name]).answer for name in homes})
    other = run_federation(direct, config, tmp_path / "other")
    assert all(torch.equal(by_hand.weights[name], tensor) for name, tensor in other.weights.items())
    assert by_hand.history == other.history
    for name in ("styles.safetensors", "network.safetensors", "scores.txt"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "other" / name).read_bytes(), name
    assert read_run(tmp_path / "run").status == "Finished after 2 rounds."
    for home in (server, *homes.values()):
        verify(home.folder / "audit.jsonl")
    # Someone who finds the stick can read nothing on it.
    left = b"".join(path.read_bytes() for path in shared.rglob("*.bundle"))
    assert not [word for word in (b"weights", b"train", b"learning_rate", b"conv") if word in left]


def test_a_run_that_waits_says_for_whom(
    server: Home, homes: dict[str, Home], shared: Path, config: FederationConfig, tmp_path: Path
) -> None:
    with pytest.raises(WaitingError, match="waiting for lab-01, lab-03"):
        serve(server, shared, config, tmp_path / "run")
    assert read_run(tmp_path / "run").status == "Waiting for lab-01, lab-03: 0 of 2 rounds so far."
    sent = sorted(path.name for path in shared.rglob("*.bundle"))
    with pytest.raises(WaitingError):
        serve(server, shared, config, tmp_path / "run")
    assert sorted(path.name for path in shared.rglob("*.bundle")) == sent == ["00000001.bundle"] * 2


class Echo:
    """A server's exchange and its labs, without any training."""

    def __init__(self, server: Home, homes: dict[str, Home], shared: Path) -> None:
        self.server, self.homes, self.shared = server, homes, shared
        self.patience = DAY

    def ask(self, *rounds: int) -> dict[str, Reply | Absence]:
        request = Request("train", {"w": torch.ones(2)}, {"round": rounds[-1]})
        exchange = FolderExchange(self.server, self.shared, "run", patience=self.patience)
        return exchange.ask(dict.fromkeys(exchange.clients(), request), 0.0)

    def answer(self, name: str, loss: float = 0.5) -> None:
        channel = Channel(self.homes[name], self.server.card, self.shared)
        answer_all(channel, Fixed(loss))  # type: ignore[arg-type]


class Fixed:
    """A client that always gives the same answer."""

    def __init__(self, loss: float) -> None:
        self.loss = loss

    def answer(self, request: Request) -> Reply:
        if self.loss < 0:
            raise FederationError("train ended with MissingError")
        return Reply(request.arrays, {"loss": self.loss})


@pytest.fixture
def echo(server: Home, graz: Home, uppsala: Home, shared: Path) -> Echo:
    return Echo(server, {"graz": graz, "uppsala": uppsala}, shared)


def losses(found: dict[str, Reply | Absence]) -> dict[str, float | str]:
    return {name: each.reason if isinstance(each, Absence) else each.numbers["loss"] for name, each in found.items()}


def wait_for(echo: Echo, number: int) -> tuple[str, ...]:
    with pytest.raises(WaitingError) as caught:
        echo.ask(number)
    return caught.value.missing


def test_a_request_is_sent_once_and_its_reply_is_kept(echo: Echo) -> None:
    assert wait_for(echo, 1) == ("graz", "uppsala")
    echo.answer("graz", 0.25)
    assert wait_for(echo, 1) == ("uppsala",)
    echo.answer("uppsala")
    for _ in range(2):
        assert losses(echo.ask(1)) == {"graz": 0.25, "uppsala": 0.5}


def test_a_lab_cannot_change_what_it_has_said(echo: Echo, shared: Path) -> None:
    wait_for(echo, 1)
    echo.answer("graz", 0.25)
    echo.answer("uppsala")
    echo.ask(1)
    channel = Channel(echo.homes["graz"], echo.server.card, shared)
    from bottlegan.federated.folder.payload import pack_reply  # noqa: PLC0415

    (request,) = Channel(echo.server, echo.homes["graz"].card, shared).ledger.asked
    channel.send("reply", request, pack_reply(Reply({}, {"loss": 9.0})))
    assert losses(echo.ask(1)) == {"graz": 0.25, "uppsala": 0.5}


def test_what_failed_can_be_tried_again_there(echo: Echo) -> None:
    wait_for(echo, 1)
    echo.answer("graz", -1)
    echo.answer("uppsala")
    assert losses(echo.ask(1)) == {"graz": "train ended with MissingError", "uppsala": 0.5}
    echo.answer("graz", -1)
    echo.answer("graz", 0.75)
    assert losses(echo.ask(1)) == {"graz": 0.75, "uppsala": 0.5}
    echo.answer("graz", 0.1)
    assert losses(echo.ask(1))["graz"] == 0.75


def test_patience_ends(echo: Echo) -> None:
    wait_for(echo, 1)
    echo.answer("graz")
    echo.patience = 0.0
    found = losses(echo.ask(1))
    assert found["graz"] == 0.5
    assert str(found["uppsala"]).startswith("no reply after")
    echo.answer("uppsala")
    assert losses(echo.ask(1))["uppsala"] == 0.5


def test_a_kept_reply_that_was_damaged_is_asked_for_again(echo: Echo) -> None:
    wait_for(echo, 1)
    echo.answer("graz")
    echo.answer("uppsala")
    echo.ask(1)
    kept = next(path for path in echo.server.folder.rglob("*.bundle") if path.parent.name == "replies")
    content = bytearray(kept.read_bytes())
    content[-5] ^= 1
    kept.write_bytes(content)
    with pytest.raises(InputError, match="ask the lab again"):
        echo.ask(1)
    (missing,) = wait_for(echo, 1)
    echo.answer(missing)
    assert losses(echo.ask(1)) == {"graz": 0.5, "uppsala": 0.5}


def test_replies_are_forgotten_after_some_rounds(echo: Echo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bottlegan.federated.folder.channel.KEPT", 3)
    for number in range(1, 7):
        wait_for(echo, number)
        echo.answer("graz")
        echo.answer("uppsala")
        echo.ask(number)
    kept = [path for path in echo.server.folder.rglob("*.bundle") if path.parent.name == "replies"]
    assert len(kept) == 2 * 3
    assert len(list(echo.shared.rglob("*.bundle"))) <= 4


def test_a_request_that_is_none_is_answered_with_a_failure(echo: Echo, shared: Path) -> None:
    channel = Channel(echo.server, echo.homes["graz"].card, shared)
    channel.send("request", "x" * 64, b"no message")
    echo.answer("graz")
    (arrival,) = channel.arrivals("reply")
    assert b"the lab cannot read the request" in arrival.content


def test_each_side_has_its_own_command(
    server: Home, graz: Home, shared: Path, config: FederationConfig, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="is the home of a lab"):
        serve(graz, shared, config, tmp_path / "run")
    with pytest.raises(InputError, match="is the home of a server"):
        open_channel(server, shared)
    lonely = make_home(tmp_path / "lonely", "lonely", server=True)
    with pytest.raises(InputError, match="trusts no lab yet"):
        serve(lonely, shared, config, tmp_path / "run")
    with pytest.raises(InputError, match="2 clients must reply in each round, but there are 1"):
        serve(server, shared, config, tmp_path / "run")


def test_what_was_refused_is_in_the_log_and_the_run_goes_on(
    server: Home, homes: dict[str, Home], shared: Path, config: FederationConfig, tmp_path: Path
) -> None:
    """Each bundle is followed by a changed copy, an older bundle and a truncated one."""
    seen: list[bytes] = []
    for _ in range(30):
        try:
            serve(server, shared, config, tmp_path / "run")
            break
        except WaitingError as waiting:
            for name in waiting.missing:
                spoil(shared, seen)
                home = Home(homes[name].folder)
                assert answer_all(open_channel(home, shared), open_lab(home))
            spoil(shared, seen)
    assert (tmp_path / "run" / "network.safetensors").exists()
    lines = [json.loads(line) for line in (server.folder / "audit.jsonl").read_text().splitlines()]
    refused = [line["reason"] for line in lines if line["kind"] == "refused"]
    for word in ("signature does not match", "copied in part", "not, or no longer, trusted here"):
        assert any(word in reason for reason in refused), word


def spoil(shared: Path, seen: list[bytes]) -> None:
    for folder in [path for path in shared.iterdir() if path.is_dir()]:
        for path in sorted(folder.glob("0*.bundle")):
            content = path.read_bytes()
            seen.append(content)
            changed = content[:-9] + bytes([content[-9] ^ 4]) + content[-8:]
            (folder / "a.bundle").write_bytes(changed)
            (folder / "b.bundle").write_bytes(content[: len(content) // 3])
            (folder / "c.bundle").write_bytes(seen[0])
            (folder / "z.bundle").write_bytes(seen[len(seen) // 2])
