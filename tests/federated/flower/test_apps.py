"""The Flower apps: in one process through a grid that calls the client app, and once in Flower's own simulation."""

import json
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.proto.node_pb2 import NodeInfo
from flwr.supercore.task_identity import TaskIdentity

from bottlegan.core.config import to_values
from bottlegan.core.errors import ConfigError, FederationError, InputError, MissingError
from bottlegan.core.state import read_document
from bottlegan.federated.flower.client_app import app as client_app
from bottlegan.federated.flower.client_app import build_client_app, explain, open_cached
from bottlegan.federated.flower.exchange import FlowerExchange
from bottlegan.federated.flower.server_app import ServerConfig
from bottlegan.federated.flower.server_app import app as server_app
from bottlegan.federated.flower.simulation import run as run_flower
from bottlegan.federated.protocol.exchange import Absence, Reply, Request
from bottlegan.federated.protocol.handshake import introduce, to_text
from bottlegan.federated.protocol.phase2 import Phase2Config
from bottlegan.federated.server.config import FederationConfig, RoundsConfig, flatten
from bottlegan.federated.server.folder import HISTORY, LOG
from bottlegan.federated.server.history import History
from bottlegan.federated.simulation import run_local
from bottlegan.imaging.files import read_image
from bottlegan.models.document import PRIOR
from bottlegan.models.network_file import load_network
from bottlegan.training.task import TrainingConfig

SMALL = Phase2Config(training=TrainingConfig(crop=32))
SETTINGS = {"handshake": to_text(introduce(SMALL, PRIOR)), "config": json.dumps(to_values(SMALL))}
JOIN = Request("join", settings={"client": "a", **SETTINGS})


def join_as(*names: str) -> dict[str, Request]:
    return {name: Request("join", settings={"client": name, **SETTINGS}) for name in names}


@pytest.fixture(autouse=True)
def _identity(monkeypatch: pytest.MonkeyPatch) -> None:
    # Flower creates messages only in a running task.
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


class Grid:
    """Flower's grid, which calls the client apps directly."""

    def __init__(self, apps: dict[int, ClientApp], contexts: dict[int, Context], names: dict[int, str]) -> None:
        self.apps, self.contexts, self.names = apps, contexts, names
        self.sent: list[Message] = []
        self.received: list[Message] = []
        self.spoil: dict[int, Callable[[Message], Message | None]] = {}

    def get_nodes(self) -> Iterable[NodeInfo]:
        return [NodeInfo(node_id=number, name=self.names.get(number, "")) for number in self.apps]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        for message in messages:
            message.metadata.__dict__["_message_id"] = f"message-{len(self.sent)}"
            self.sent.append(message)
        return [message.metadata.message_id for message in messages]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [reply for identifier in message_ids for reply in self.pull_message(identifier)]

    def pull_message(self, identifier: str) -> Iterable[Message]:
        message = next(each for each in self.sent if each.metadata.message_id == identifier)
        number = message.metadata.dst_node_id
        if number in self.spoil:
            reply = self.spoil[number](message)
        else:
            reply = self.apps[number](message, self.contexts[number])
        if reply is None:
            return []
        self.received.append(reply)
        return [reply]


def make_context(node: dict[str, str | int], run: dict[str, bool | int | float | str] | None = None) -> Context:
    return Context(run_id=1, node_id=1, node_config=node, state=RecordDict(), run_config=run or {})  # type: ignore[arg-type]


def make_grid(labs: dict[str, Path]) -> Grid:
    """Nodes as in a deployment: each has a name and the path of its lab.toml."""
    numbers = dict(enumerate(labs, start=11))
    contexts = {number: make_context({"lab": str(labs[name])}) for number, name in numbers.items()}
    return Grid(dict.fromkeys(numbers, client_app), contexts, numbers)


def serve(grid: Grid, config: FederationConfig, **server: bool | int | float | str) -> None:
    run = {**flatten(config), **{f"server.{name}": value for name, value in server.items()}}
    server_app(grid, make_context({}, run))  # type: ignore[arg-type]


@pytest.fixture
def config(tiny: Phase2Config) -> FederationConfig:
    return FederationConfig(phase2=replace(tiny, mode="normalize", rounds=2), rounds=RoundsConfig(deadline=60))


def break_one(labs: dict[str, Path]) -> str:
    """Remove the images of a lab that the others do not need, and return its name."""
    name = next(name for name, path in labs.items() if not (path.parent / "labeled").exists())
    (labs[name].parent / "images").rename(labs[name].parent / "moved")
    return name


def texts(records: RecordDict) -> Iterator[str]:
    """Return all texts in records: names and values."""
    for name, record in records.items():
        yield name
        yield from record
        if isinstance(record, ConfigRecord):
            yield from (str(value) for value in record.values())
        if isinstance(record, ArrayRecord):
            yield from (f"{array.dtype} {array.stype}" for array in record.values())


def content(records: RecordDict) -> bytes:
    """Return the whole content of records as bytes."""
    arrays = [array.data for record in records.array_records.values() for array in record.values()]
    return b"\n".join([*(text.encode() for text in texts(records)), *arrays])


def leaks(records: RecordDict, folder: Path) -> list[str]:
    """Return everything in records that reveals images or files below a folder."""
    said, found = content(records), []
    for path in sorted(folder.rglob("*")):
        if str(path).encode() in said or (path.suffix and path.name.encode() in said):
            found.append(f"the name {path.name}")
        if path.suffix == ".png" and "mask" not in path.name:
            row = read_image(path)[20, 20:28]
            forms = [row, row.astype(np.float32) / np.float32(255), row.transpose(), row.astype(np.float64) / 255]
            found += [f"pixels of {path.name}" for form in forms if np.ascontiguousarray(form).tobytes() in said]
    return found


def test_a_federation_runs_and_no_record_holds_a_pixel_a_path_or_a_file_name(
    labs: dict[str, Path], config: FederationConfig, tmp_path: Path
) -> None:
    grid = make_grid(labs)
    serve(grid, config, folder=str(tmp_path / "run"), clients=3)
    assert load_network(tmp_path / "run" / "network.safetensors")
    kinds = [message.metadata.message_type for message in grid.sent]
    assert set(kinds) == {"train.join", "train.contribute", "train.styles", "train.train", "train.evaluate"}
    assert len(grid.received) == len(grid.sent)
    assert kinds.count("train.contribute") == 3
    for message in (*grid.sent, *grid.received):
        assert not leaks(message.content, tmp_path), message.metadata.message_type
    for reply in grid.received:
        assert set(reply.content) == {"arrays", "numbers", "stamp"}
        assert set(reply.content.config_records["stamp"]) == {"client", "request"}


def test_a_reply_of_an_earlier_round_or_of_another_lab_counts_for_nothing(
    labs: dict[str, Path], config: FederationConfig, tmp_path: Path
) -> None:
    grid = make_grid(labs)
    said: list[Message] = []

    def replay(message: Message) -> Message:
        """Answer like the lab, but train only once; later, send the same reply again, or another lab's."""
        reply = grid.apps[11](message, grid.contexts[11])
        if message.metadata.message_type != "train.train":
            return reply
        said.append(reply)
        return Message(said[0].content, reply_to=message)

    grid.spoil[11] = replay
    alone = replace(config, phase2=replace(config.phase2, rounds=3), rounds=RoundsConfig(least=1, deadline=60))
    serve(grid, alone, folder=str(tmp_path / "run"), clients=3)
    history = read_document(History, tmp_path / "run" / HISTORY)
    assert "lab-01" in history.rounds[0].trained
    for record in history.rounds[1:]:
        assert "answers another request" in record.left_out["lab-01"]


def test_a_leak_would_be_found(labs: dict[str, Path], tmp_path: Path) -> None:
    image = next(labs["lab-01"].parent.glob("images/*.png"))
    pixels = ArrayRecord([read_image(image)])
    scaled = ArrayRecord([read_image(image).astype(np.float32) / np.float32(255)])
    for record in (pixels, scaled, ConfigRecord({"a": f"see {image}"}), MetricRecord({image.name: 1})):
        assert leaks(RecordDict({"a": record}), tmp_path)


def test_a_failing_client_costs_its_share_and_tells_nothing_of_its_files(
    labs: dict[str, Path], config: FederationConfig, tmp_path: Path
) -> None:
    grid = make_grid(labs)
    broken = break_one(labs)
    serve(grid, config, folder=str(tmp_path / "run"), clients=3)
    failures = [reply.content for reply in grid.received if "failure" in reply.content]
    assert len(failures) == 1
    assert not leaks(failures[0], tmp_path)
    (event,) = [json.loads(line) for line in (tmp_path / "run" / LOG).read_text().splitlines() if "left out" in line]
    assert (event["client"], event["reason"]) == (broken, "join ended with MissingError; see the lab's own log")


def test_a_run_is_not_begun_anew_by_accident_and_can_be_resumed(
    labs: dict[str, Path], config: FederationConfig, tmp_path: Path
) -> None:
    folder, config = str(tmp_path / "run"), replace(config, phase2=replace(config.phase2, mode="plain"))
    serve(make_grid(labs), config, folder=folder)
    with pytest.raises(InputError, match="holds a run"):
        serve(make_grid(labs), config, folder=folder)
    grid = make_grid(labs)
    serve(grid, config, folder=folder, resume=True)
    assert not grid.sent


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [("server.clients", 0, "at least 1"), ("server.folders", "x", "unknown key"), ("phase2.roundz", 1, "roundz")],
)
def test_a_wrong_run_configuration_is_refused(key: str, value: int | str, said: str, tmp_path: Path) -> None:
    run = {**flatten(FederationConfig()), "server.folder": str(tmp_path / "run"), key: value}
    with pytest.raises(ConfigError, match=said):
        server_app(make_grid({}), make_context({}, run))  # type: ignore[arg-type]


def test_too_few_clients_are_not_waited_for_for_ever(config: FederationConfig, tmp_path: Path) -> None:
    with pytest.raises(FederationError, match=r"0 clients are connected after 0 s \(none\), 2 are needed"):
        serve(make_grid({}), config, folder=str(tmp_path / "run"), wait=0)
    assert "0 clients are connected" in (tmp_path / "run" / LOG).read_text()
    with pytest.raises(ConfigError, match=r"server.clients is 1, but 2 must reply in each round; raise server.clients"):
        serve(make_grid({}), config, folder=str(tmp_path / "run"), clients=1)


@pytest.mark.parametrize(
    ("changed", "server", "said"),
    [
        ({"phase2.network.factory": "nowhere:at_all"}, {}, "nowhere of the factory nowhere:at_all cannot be imported"),
        ({"start": "none.safetensors"}, {}, "none.safetensors: there is no such network file"),
        ({"phase2.roundz": 1}, {}, "roundz"),
        ({}, {"prior": "none.safetensors"}, "none.safetensors"),
        ({}, {"reference": "none"}, "none"),
    ],
)
def test_input_that_cannot_be_used_is_told_before_anybody_is_waited_for_and_kept(
    changed: dict[str, str | int], server: dict[str, str], said: str, config: FederationConfig, tmp_path: Path
) -> None:
    own = {f"server.{key}": value for key, value in {"folder": str(tmp_path / "run"), **server}.items()}
    with pytest.raises(InputError, match=f"^bad input: .*{said}"):
        server_app(make_grid({}), make_context({}, {**flatten(config), **changed, **own}))  # type: ignore[arg-type]
    (event,) = map(json.loads, (tmp_path / "run" / LOG).read_text().splitlines())
    assert event["kind"] == "failed"
    assert said in event["text"]


def test_what_is_wrong_in_a_lab_is_told_there_in_one_line(
    labs: dict[str, Path], config: FederationConfig, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broken = break_one(labs)
    serve(make_grid(labs), config, folder=str(tmp_path / "run"), clients=3)
    (told,) = caplog.records
    assert told.message.startswith(f"join: {labs[broken].parent / 'images'}: ")
    assert told.exc_info is None
    caplog.clear()
    labs[broken].write_text("images = 3")
    open_cached.cache_clear()
    FlowerExchange(make_grid({"a": labs[broken]})).ask({"a": JOIN}, 5)  # type: ignore[arg-type]
    (told,) = caplog.records
    assert told.message.startswith(f"join: {labs[broken]}")
    assert told.exc_info is None


def exchange_with(spoil: Callable[[Message], Message | None], labs: dict[str, Path]) -> FlowerExchange:
    grid = make_grid(labs)
    grid.spoil[12] = spoil
    return FlowerExchange(grid, poll_seconds=0.01)  # type: ignore[arg-type]


def raising(message: Message) -> Message:
    raise ValueError("an object that Flower cannot inflate")


SPOILED = {
    "it is late": (lambda message: None, "no reply within 0.1 s"),
    "its node has died": (lambda message: Message(Error(3, "node\ngone"), reply_to=message), "node?gone"),
    "its error has no reason": (lambda message: Message(Error(3), reply_to=message), "error 3"),
    "its reply cannot be inflated": (raising, "its reply cannot be read (ValueError)"),
    "its reply is empty": (lambda message: Message(RecordDict(), reply_to=message), "record arrays is missing"),
}


@pytest.mark.parametrize(("spoil", "said"), SPOILED.values(), ids=SPOILED)
def test_one_clients_trouble_is_its_own(
    spoil: Callable[[Message], Message | None], said: str, labs: dict[str, Path]
) -> None:
    exchange = exchange_with(spoil, labs)
    assert exchange.clients() == ["lab-01", "lab-02", "lab-03"]
    answers = exchange.ask(join_as(*labs), 0.1)
    assert list(answers) == list(labs)
    assert all(isinstance(answers[name], Reply) for name in ("lab-01", "lab-03"))
    found = answers["lab-02"]
    assert isinstance(found, Absence)
    assert said in found.reason


def test_one_who_is_not_there_is_absent(labs: dict[str, Path]) -> None:
    exchange = exchange_with(raising, labs)
    answers = exchange.ask(join_as("lab-01", "nobody"), 1)
    assert isinstance(answers["lab-01"], Reply)
    assert isinstance(answers["nobody"], Absence)
    assert "not connected" in answers["nobody"].reason


def test_messages_end_with_their_deadline(labs: dict[str, Path]) -> None:
    exchange = exchange_with(lambda message: None, labs)
    begun = time.monotonic()
    exchange.ask({"lab-02": JOIN}, 0.2)
    assert 0.2 <= time.monotonic() - begun < 60  # a busy machine is no failure
    assert exchange.grid.sent[0].metadata.ttl == 0.2  # type: ignore[attr-defined]


def test_names_are_safe_and_differ() -> None:
    names = {1: "graz", 2: "", 3: "../../etc", 4: "twin", 5: "twin", 6: "two\nlines", 7: "node-2"}
    grid = Grid(dict.fromkeys(names, client_app), {}, names)
    exchange = FlowerExchange(grid)  # type: ignore[arg-type]
    assert exchange.clients() == ["graz", "node-2", "node-3", "node-6", "node-7"]
    assert exchange.nodes["node-6"] == 6


def test_a_second_node_under_a_name_is_refused_and_the_first_stays(caplog: pytest.LogCaptureFixture) -> None:
    names = {1: "graz", 2: "oslo"}
    grid = Grid(dict.fromkeys(names, client_app), {}, names)
    exchange = FlowerExchange(grid)  # type: ignore[arg-type]
    assert exchange.clients() == ["graz", "oslo"]
    grid.apps[3], names[3] = client_app, "graz"
    for _ in range(2):
        assert exchange.clients() == ["graz", "oslo"]
        assert exchange.nodes["graz"] == 1
    assert [each.getMessage() for each in caplog.records] == ["node 3 is refused: another node is called graz, too"]
    del grid.apps[1]
    assert exchange.nodes == {"graz": 1, "oslo": 2}


def test_nodes_of_a_simulation_have_the_names_of_their_labs(labs: dict[str, Path]) -> None:
    apps = dict.fromkeys((7, 8, 9), build_client_app(list(labs.values())))
    contexts = {number: make_context({"partition-id": 9 - number, "num-partitions": 3}) for number in apps}
    grid = Grid(apps, contexts, {})
    exchange = FlowerExchange(grid, list(labs), 0.01)  # type: ignore[arg-type]
    assert exchange.wait(3, 5) == ["lab-01", "lab-02", "lab-03"]
    assert exchange.nodes == {"lab-01": 9, "lab-02": 8, "lab-03": 7}
    asked = len(grid.sent)
    exchange.clients()
    assert len(grid.sent) == asked


def test_a_simulation_whose_workers_cannot_run_the_app_ends_at_once(labs: dict[str, Path]) -> None:
    grid = Grid({7: client_app}, {7: make_context({"partition-id": 0})}, {})
    grid.spoil[7] = lambda message: Message(Error(2, "cannot import"), reply_to=message)
    with pytest.raises(FederationError, match="cannot import"):
        FlowerExchange(grid, list(labs), 0.01).wait(1, 60)  # type: ignore[arg-type]


def test_a_simulation_by_flwr_run_finds_its_labs_in_the_run_configuration(labs: dict[str, Path]) -> None:
    run: dict[str, bool | int | float | str] = {"server.labs": str(labs["lab-01"].parents[1])}
    grid = Grid({5: client_app}, {5: make_context({"partition-id": 1}, run)}, {5: "a"})
    FlowerExchange(grid).ask({"a": JOIN}, 5)  # type: ignore[arg-type]
    assert (labs["lab-02"].parent / "state" / "lab.jsonl").exists()


def test_a_node_that_does_not_say_which_lab_it_is_fails_in_words() -> None:
    grid = Grid({5: client_app}, {5: make_context({})}, {5: "a"})
    answers = FlowerExchange(grid).ask({"a": JOIN}, 5)  # type: ignore[arg-type]
    assert answers == {"a": Absence("its configuration cannot be used; see the client's own log")}


@pytest.mark.parametrize(
    "error",
    [MissingError("/data/x"), ConfigError("/data/x"), InputError("/data/x"), OSError("/data/x"), KeyError("/x")],
)
def test_the_words_of_an_error_stay_with_the_client(error: Exception) -> None:
    assert "/" not in explain(error)


def test_the_shipped_settings_wait_for_as_many_as_a_round_needs() -> None:
    assert ServerConfig().clients >= RoundsConfig().least


@pytest.mark.slow
# Ray leaves open pipes and stopped processes to the garbage collector.
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_flowers_simulation_ends_with_the_bytes_of_the_plain_loop(
    labs: dict[str, Path], config: FederationConfig, tmp_path: Path
) -> None:
    break_one(labs)
    expected = run_local(labs, config, tmp_path / "local")
    state = run_flower(labs, config, tmp_path / "flower", workers=1)
    assert state.history == expected.history
    assert all(torch.equal(state.weights[name], tensor) for name, tensor in expected.weights.items())
