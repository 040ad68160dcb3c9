"""Private rounds of labs with images: the server learns only sums, and labs may drop out at any step."""

import json
import random
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import IO

import numpy as np
import pytest
import torch

from bottlegan.core.config import to_toml, to_values
from bottlegan.core.errors import ConfigError, FederationError
from bottlegan.core.progress import Silent
from bottlegan.federated.client.client import Client, open_client
from bottlegan.federated.client.holdings import Demands, find_labs
from bottlegan.federated.client.private import Private
from bottlegan.federated.flower import messages
from bottlegan.federated.folder.payload import pack_reply, unpack_reply, unpack_request
from bottlegan.federated.protocol.accounting import Spent, find_epsilon
from bottlegan.federated.protocol.exchange import Absence, LocalExchange, Reply, Request, Stamp
from bottlegan.federated.protocol.phase1 import Phase1Config
from bottlegan.federated.protocol.phase2 import Phase2Config
from bottlegan.federated.protocol.privacy import Floats, Grid, PrivacyConfig, to_row
from bottlegan.federated.server.config import FederationConfig, RoundsConfig, StrategyConfig
from bottlegan.federated.server.federation import run_federation
from bottlegan.federated.server.phase1 import run_phase1
from bottlegan.federated.server.rounds import State
from bottlegan.federated.simulation import LabsConfig, draw_labs
from bottlegan.models.network_file import read_network_document
from bottlegan.models.networks import Weights
from bottlegan.quality.run_report import list_rounds, read_run

SECURE = PrivacyConfig(secure=True)
LABS = 5


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Client]:
    """Five labs that all have labels."""
    out = tmp_path_factory.mktemp("labs")
    drawn = LabsConfig(count=LABS, train=1, test=1, size=64, labeled=LABS, windows=8, window_size=64)
    draw_labs(replace(drawn, reference_patches=1), 2, out, Silent())
    return {name: open_client(path) for name, path in find_labs(out / "labs").items()}


@pytest.fixture
def plan(tiny: Phase2Config) -> FederationConfig:
    rounds = RoundsConfig(least=2, evaluate_every=9)
    strategy = StrategyConfig(name="fedavgm", uniform=True, robust="none")
    return FederationConfig(phase2=replace(tiny, rounds=2), strategy=strategy, rounds=rounds, privacy=SECURE)


class Watched(LocalExchange):
    """Records all requests and replies, and drops the chosen ones."""

    def __init__(self, clients: Mapping[str, Client], lose: Mapping[str, str] | None = None) -> None:
        super().__init__({name: client.answer for name, client in clients.items()})
        self.lose = dict(lose or {})
        self.said: list[tuple[str, Request, Reply | Absence]] = []
        self.change: Callable[[str, Request, Reply | Absence], Reply | Absence] = lambda _, __, reply: reply

    def ask(self, requests: Mapping[str, Request], deadline: float) -> dict[str, Reply | Absence]:
        found = super().ask({n: r for n, r in requests.items() if self.lose.get(n) != r.kind}, deadline)
        replies = {n: self.change(n, r, found.get(n, Absence("it is gone"))) for n, r in requests.items()}
        self.said += [(name, requests[name], reply) for name, reply in replies.items()]
        return replies


def run(exchange: LocalExchange, plan: FederationConfig, folder: Path) -> State:
    return run_federation(exchange, plan, folder)


def close(one: Weights, other: Weights) -> bool:
    return all(torch.allclose(one[name], other[name], atol=1e-5) for name in one)


def test_the_sum_is_that_of_a_run_that_hides_nothing(
    clients: dict[str, Client], plan: FederationConfig, tmp_path: Path
) -> None:
    state = run(Watched(clients), plan, tmp_path / "secure")
    plain = run(Watched(clients), replace(plan, privacy=PrivacyConfig()), tmp_path / "plain")
    assert close(state.weights, plain.weights)
    assert state.history.rounds[-1].trained == plain.history.rounds[-1].trained == tuple(sorted(clients))
    assert state.history.rounds[-1].loss == {}
    assert state.history.rounds[-1].scores.keys() == plain.history.rounds[-1].scores.keys()


@pytest.mark.parametrize("step", ["keys", "shares", "train", "unmask"])
def test_a_lab_that_is_gone_at_any_step_is_made_up_for(
    clients: dict[str, Client], plan: FederationConfig, tmp_path: Path, step: str
) -> None:
    plan = replace(plan, phase2=replace(plan.phase2, rounds=1))
    gone = sorted(clients)[2]
    state = run(Watched(clients, {gone: step}), plan, tmp_path / "secure")
    others = clients if step == "unmask" else {name: each for name, each in clients.items() if name != gone}
    wanted = run(Watched(others), replace(plan, privacy=PrivacyConfig()), tmp_path / "plain")
    assert close(state.weights, wanted.weights)
    (record,) = state.history.rounds
    assert record.trained == tuple(sorted(others))
    assert record.left_out == ({} if step == "unmask" else {gone: "it is gone"})


def test_with_fewer_than_two_thirds_nothing_is_summed(
    clients: dict[str, Client], plan: FederationConfig, tmp_path: Path
) -> None:
    gone = dict.fromkeys(sorted(clients)[:2], "train")
    with pytest.raises(FederationError, match="3 labs have answered 'train', at least 4 are needed"):
        run(Watched(clients, gone), plan, tmp_path)


def test_a_run_that_was_killed_between_steps_ends_with_the_same_bytes(
    clients: dict[str, Client], plan: FederationConfig, tmp_path: Path
) -> None:
    run(Watched(clients), plan, tmp_path / "whole")
    for step in ("shares", "unmask"):
        killed = Watched(clients)

        def kill(_: str, request: Request, reply: Reply | Absence, step: str = step) -> Reply | Absence:
            if request.kind == step:
                raise KeyboardInterrupt
            return reply

        killed.change = kill
        with pytest.raises(KeyboardInterrupt):
            run(killed, plan, tmp_path / step)
        run(Watched(clients), plan, tmp_path / step)
        name = "network.safetensors"
        assert (tmp_path / step / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_what_the_server_gets_of_one_lab_is_noise(
    clients: dict[str, Client], plan: FederationConfig, tmp_path: Path
) -> None:
    exchange, clear = Watched(clients), Watched(clients)
    plan = replace(plan, phase2=replace(plan.phase2, rounds=1))
    run(exchange, plan, tmp_path / "secure")
    run(clear, replace(plan, privacy=PrivacyConfig()), tmp_path / "plain")
    start = next(request.arrays for _, request, _ in clear.said if request.kind == "train")
    for name, request, reply in clear.said:
        if request.kind == "train":
            assert isinstance(reply, Reply)
            truth = to_row(reply.arrays, start)
            (masked,) = (r.arrays["update"].numpy() for n, q, r in exchange.said if n == name and q.kind == "train")
            assert abs(np.corrcoef(masked.astype(float), truth)[0, 1]) < 5 / np.sqrt(truth.size)
            assert abs(np.bincount((masked.view(np.uint32) >> 29), minlength=8) / truth.size - 1 / 8).max() < 0.05


def test_a_wrong_share_or_update_is_found(clients: dict[str, Client], plan: FederationConfig, tmp_path: Path) -> None:
    liar = sorted(clients)[0]

    def spoil(kind: str) -> Callable[[str, Request, Reply | Absence], Reply | Absence]:
        def change(name: str, request: Request, reply: Reply | Absence) -> Reply | Absence:
            if name == liar and request.kind == kind and isinstance(reply, Reply):
                return Reply({key: tensor + 77 for key, tensor in reply.arrays.items()})
            return reply

        return change

    exchange = Watched(clients)
    exchange.change = spoil("unmask")
    with pytest.raises(FederationError, match=r"the shares of .* do not match"):
        run(exchange, plan, tmp_path / "share")

    def scream(name: str, request: Request, reply: Reply | Absence) -> Reply | Absence:
        if name == liar and request.kind == "train" and isinstance(reply, Reply):
            return Reply({"update": torch.from_numpy(np.arange(reply.arrays["update"].numel(), dtype=np.int32) * 9999)})
        return reply

    exchange.change = scream
    with pytest.raises(FederationError, match="the sum is longer than 5 updates can be"):
        run(exchange, plan, tmp_path / "update")


def replay(client: Client, said: list[tuple[str, Request, Reply | Absence]], name: str, kind: str) -> Request:
    return next(request for who, request, _ in said if who == name and request.kind == kind)


def test_a_lab_hides_and_reveals_once(clients: dict[str, Client], plan: FederationConfig, tmp_path: Path) -> None:
    """Requests of a curious server, each of which would reveal an update."""
    plan = replace(plan, phase2=replace(plan.phase2, rounds=1))
    exchange = Watched(clients)
    run(exchange, plan, tmp_path)
    name = sorted(clients)[0]
    client = clients[name]
    train, unmask = (replay(client, exchange.said, name, kind) for kind in ("train", "unmask"))
    assert torch.equal(client.answer(train).arrays["update"], client.answer(train).arrays["update"])
    other = Request("train", {key: tensor + 0.1 for key, tensor in train.arrays.items()}, train.settings)
    fewer = json.dumps(sorted(clients)[:4])
    keys = replay(client, exchange.said, name, "shares")
    for request in (
        other,
        Request("train", train.arrays, {**train.settings, "partners": fewer}),
        Request("train", train.arrays, {**train.settings, "labs": 50}),
        Request("unmask", unmask.arrays, {"trained": fewer}),
        Request("unmask", unmask.arrays, {"trained": json.dumps([name])}),
        Request("shares", {"keys": keys.arrays["keys"].roll(1, 0)}, keys.settings),
        Request("shares", {"keys": keys.arrays["keys"][:2]}, {"names": json.dumps(sorted(clients)[:2])}),
    ):
        with pytest.raises(FederationError, match="ended with InputError"):
            client.answer(request)


def test_a_lab_may_insist_on_privacy(clients: dict[str, Client], plan: FederationConfig, tmp_path: Path) -> None:
    strict = {name: Client(each.holdings, each.state) for name, each in clients.items()}
    for each in strict.values():
        each.private.demands = Demands(secure=True)
    with pytest.raises(ConfigError, match=r"insists on secure aggregation; set privacy.secure = true"):
        run(Watched(strict), replace(plan, privacy=PrivacyConfig()), tmp_path / "plain")
    assert run(Watched(strict), plan, tmp_path / "secure").finished == 2
    train = Request("train", {}, {"round": 1, "config": "{}", "seed": 0})
    with pytest.raises(FederationError, match="insists on secure aggregation"):
        next(iter(strict.values())).answer(train)


@pytest.mark.parametrize("privacy", [PrivacyConfig(noise=2.0), PrivacyConfig(noise=2.0, secure=True)])
def test_a_lab_stops_when_its_budget_is_spent(
    clients: dict[str, Client], plan: FederationConfig, tmp_path: Path, privacy: PrivacyConfig
) -> None:
    frugal = {name: Client(each.holdings, tmp_path / name) for name, each in clients.items()}
    for each in frugal.values():
        each.private.demands = Demands(epsilon=3.0)
    plan = replace(plan, privacy=privacy, phase2=replace(plan.phase2, rounds=4))
    with pytest.raises(FederationError, match=r"round 3: .*its budget of epsilon 3 is spent"):
        run(Watched(frugal), plan, tmp_path / "run")
    unlimited = replace(plan, privacy=replace(privacy, noise_at="server"))
    with pytest.raises(ConfigError, match=r"has a budget for privacy; set privacy.noise, and privacy.noise_at = labs"):
        run(Watched(frugal), unlimited, tmp_path / "server")


def test_a_release_that_is_asked_for_again_has_the_same_noise_and_costs_nothing(tmp_path: Path) -> None:
    private = Private(tmp_path, Demands())
    privacy, row = PrivacyConfig(noise=1.0, clip=1.0), np.ones(1000) / 100
    first, again = (private.release(row, privacy, 3, "a", []).arrays["update"] for _ in range(2))
    other = private.release(row * 0.999, privacy, 3, "a", []).arrays["update"]
    assert torch.equal(first, again)
    assert private._read_budget().spent.rounds == 2
    difference = Grid(privacy, 3, 1000).from_whole((other - first).numpy().view(np.uint32))
    assert np.std(difference) == pytest.approx(np.sqrt(2), rel=0.2), "two noises, not one"


def test_masked_updates_pass_through_flower_and_through_files() -> None:
    reply = Reply({"update": torch.tensor([-(2**31), -1, 0, 2**31 - 1], dtype=torch.int32)})
    stamp = Stamp("a", "digest")
    for found in (messages.unpack_reply(messages.pack_reply(reply, stamp), stamp), unpack_reply(pack_reply(reply))):
        assert isinstance(found, Reply)
        assert torch.equal(found.arrays["update"], reply.arrays["update"])


def test_a_style_code_gets_the_noise_that_is_asked_for_once(
    clients: dict[str, Client], plan: FederationConfig, tmp_path: Path
) -> None:
    run_phase1(Watched(clients), plan, tmp_path)
    client = next(iter(clients.values()))
    plain, noisy = (json.dumps(to_values(Phase1Config(code_noise=deviation))) for deviation in (0.0, 0.01))
    codes = [
        client.answer(Request("contribute", settings={"config": said, "seed": 0})).arrays["code"]
        for said in (plain, noisy, noisy)
    ]
    assert torch.equal(codes[1], codes[2])
    assert float((codes[1] - codes[0]).std()) == pytest.approx(0.01, rel=0.5)
    with pytest.raises(ConfigError, match=r"needs phase1.method = .code."):
        Phase1Config(code_noise=0.1, method="generators")


@pytest.mark.parametrize("privacy", [{"secure": True}, {}, {"noise_at": "server"}])
def test_noise_is_as_strong_as_it_is_said(
    clients: dict[str, Client], plan: FederationConfig, tmp_path: Path, privacy: dict[str, object]
) -> None:
    one = replace(plan, phase2=replace(plan.phase2, rounds=1), strategy=StrategyConfig(name="fedavg", robust="none"))
    quiet = run(Watched(clients), replace(one, privacy=SECURE), tmp_path / "quiet")
    noisy = replace(one, privacy=PrivacyConfig(noise=0.5, clip=5.0, **privacy))  # type: ignore[arg-type]
    loud = run(Watched(clients), noisy, tmp_path / "loud")
    assert loud.history.rounds[-1].epsilon == pytest.approx(find_epsilon(Spent().after(0.5), 1e-5))
    said = read_network_document(tmp_path / "loud" / "network.safetensors").record
    assert said["epsilon"] == loud.history.rounds[-1].epsilon
    assert list_rounds(read_run(tmp_path / "loud")).columns[-1] == "epsilon"
    noise = to_row(loud.weights, quiet.weights)
    # In the sum. With `secure`, five replied but four were needed; without it, each adds all of the noise.
    factor = {"{'secure': True}": np.sqrt(5 / 4), "{}": np.sqrt(5)}.get(str(privacy), 1.0)
    assert LABS * noise.std() == pytest.approx(2.5 * factor, rel=0.1)


def test_robust_rules_and_too_few_labs_are_refused_by_name(plan: FederationConfig) -> None:
    with pytest.raises(ConfigError, match=r"strategy.robust = median compares single updates"):
        replace(plan, strategy=replace(plan.strategy, robust="median"))
    with pytest.raises(ConfigError, match=r"privacy.secure needs 3 labs in a round"):
        replace(plan, rounds=RoundsConfig(clients=2, least=1))


SERVER = """
import os
import sys
from pathlib import Path

from bottlegan.core.config import load
from bottlegan.federated.folder.payload import pack_request, unpack_reply
from bottlegan.federated.server.phase1 import run_phase1
from bottlegan.federated.server.config import FederationConfig
from bottlegan.federated.server.federation import run_federation

config, out, *names = sys.argv[1:]
said, heard = os.fdopen(os.dup(1), "wb"), sys.stdin.buffer
os.dup2(2, 1)

def say(content):
    said.write(len(content).to_bytes(8, "big") + content)
    said.flush()

class Piped:
    def clients(self): return names
    def most(self): return len(names)
    def ask(self, requests, deadline):
        found = {}
        for name, request in requests.items():
            say(name.encode())
            say(pack_request(request, "run"))
            found[name] = unpack_reply(heard.read(int.from_bytes(heard.read(8), "big")))
        return found

run_federation(Piped(), load(FederationConfig, Path(config)), Path(out))
say(b"")
heard.read(1)
"""


def read(stream: IO[bytes]) -> bytes:
    return stream.read(int.from_bytes(stream.read(8), "big"))


def scan(pid: int, needles: list[bytes]) -> int:
    """Return how many of the needles occur in the memory of a process."""
    found: set[bytes] = set()
    with Path(f"/proc/{pid}/maps").open() as maps, Path(f"/proc/{pid}/mem").open("rb", 0) as memory:
        for line in maps:
            place, rights = line.split()[:2]
            if not rights.startswith("rw") or "[v" in line:
                continue
            begin, end = (int(each, 16) for each in place.split("-"))
            memory.seek(begin)
            try:
                content = memory.read(end - begin)
            except OSError:
                continue
            found |= {needle for needle in needles if needle in content}
    return len(found)


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="only Linux shows the memory of a process")
@pytest.mark.parametrize("secure", [True, False])
def test_the_server_process_never_holds_an_update_in_the_clear(
    clients: dict[str, Client], plan: FederationConfig, tmp_path: Path, secure: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The labs run in this process, the server in another, whose memory is searched for the labs' updates.

    Without secure aggregation, they are found there.
    """
    needles: list[bytes] = []
    release, draw = Private.release, random.Random(1)  # noqa: S311 - no secret

    def watch(self: Private, row: Floats, privacy: PrivacyConfig, labs: int, *rest: object) -> Reply:
        whole = Grid(privacy, labs, row.size).to_whole(Grid(privacy, labs, row.size).cut(row))
        at = draw.randrange(row.size - 16)
        needles.extend(form[at : at + 16].tobytes() for form in (whole, row, row.astype(np.float32)))
        return release(self, row, privacy, labs, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(Private, "release", watch)
    # Without `secure`, noise that is too small to change any number gives the same rows on the same grid.
    privacy = SECURE if secure else PrivacyConfig(noise=1e-12)
    plan = replace(plan, privacy=privacy, phase2=replace(plan.phase2, rounds=1))
    (tmp_path / "plan.toml").write_text(to_toml(plan))
    counts = []
    command = [sys.executable, "-c", SERVER, tmp_path / "plan.toml", tmp_path / "run", *sorted(clients)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        while name := read(server.stdout).decode():
            request = unpack_request(read(server.stdout))
            if request.kind in ("train", "unmask") and name == sorted(clients)[-1]:
                counts.append(scan(server.pid, needles))
            reply = pack_reply(clients[name].answer(request))
            server.stdin.write(len(reply).to_bytes(8, "big") + reply)
            server.stdin.flush()
        counts.append(scan(server.pid, needles))
    assert server.returncode == 0
    assert len(needles) == LABS * 3
    assert counts
    assert (sum(counts) == 0) if secure else (max(counts) > 0)
