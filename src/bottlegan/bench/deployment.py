"""The cost of a message in a deployment, compared with an app that does nothing: real processes, over loopback."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from bottlegan.bench.timing import time_rounds
from bottlegan.core.progress import Json, Progress, Silent
from bottlegan.federated.client.holdings import find_labs
from bottlegan.federated.deploy.consortium import deploy
from bottlegan.federated.protocol.phase2 import Phase2Config
from bottlegan.federated.server.config import FederationConfig, RoundsConfig
from bottlegan.federated.simulation import LabsConfig, draw_labs
from bottlegan.models.networks import NetworkConfig
from bottlegan.training.task import TrainingConfig

MESSAGES = 6
LAB = "lab"
CONFIG = FederationConfig(
    phase2=Phase2Config(
        mode="plain",
        rounds=MESSAGES + 1,
        network=NetworkConfig(arguments={"width": 4, "depth": 1}),
        training=TrainingConfig(steps=1, batch=1, crop=32),
    ),
    rounds=RoundsConfig(least=1, evaluate_every=MESSAGES + 1),
)
"""One step on one small crop takes milliseconds, so the rest is the message."""
FLOOR = """
import json, time
from pathlib import Path
from flwr.app import Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

client = ClientApp()
server = ServerApp()

@client.train()
def answer(message, context):
    return Message(RecordDict(), reply_to=message)

@server.main()
def main(grid, context):
    (node,) = grid.get_node_ids()
    seconds = []
    for _ in range({messages}):
        started = time.monotonic()
        sent = list(grid.push_messages([Message(RecordDict(), node, "train")]))
        while not list(grid.pull_messages(sent)):
            time.sleep({poll})
        seconds.append(time.monotonic() - started)
    Path({out!r}).write_text(json.dumps(seconds))
"""
FLOOR_PROJECT = """
[project]
name = "floor"
version = "1.0.0"
license = "Apache-2.0"
dependencies = []
[tool.flwr.app]
publisher = "bottlegan"
[tool.flwr.app.components]
serverapp = "floor:server"
clientapp = "floor:client"
"""


def bench_deployment(progress: Progress | None = None) -> dict[str, Json]:
    """Return the median seconds of a message to one lab, for our app and for one that does nothing, in one run."""
    with TemporaryDirectory() as name, ExitStack() as running:
        folder = Path(name)
        server, environment = prepare(folder, progress or Silent())
        running.enter_context(started(server / "superlink.sh", environment))
        call([server / "register.sh"], environment, attempts=30)
        running.enter_context(started(folder / "made" / "labs" / LAB / "start.sh", environment))
        call([server / "run.sh", "--wait"], environment)
        ours = time_rounds(server / "run")
        floor = median(time_floor(server, environment))
    return {"seconds": ours, "flower_alone": floor, "ratio": ours / floor}


def prepare(folder: Path, progress: Progress) -> tuple[Path, dict[str, str]]:
    """Write a deployment of one lab; return the server's folder, and the environment of all processes."""
    drawn = LabsConfig(count=2, train=1, test=1, size=96, labeled=2, windows=2, window_size=64, reference_patches=1)
    draw_labs(drawn, 0, folder / "drawn", progress)
    deploy(folder / "made", "127.0.0.1", [LAB], CONFIG)
    lab = folder / "made" / "labs" / LAB
    shutil.copytree(next(iter(find_labs(folder / "drawn" / "labs").values())).parent, lab, dirs_exist_ok=True)
    text = (lab / "lab.toml").read_text(encoding="utf-8")
    (lab / "lab.toml").write_text(
        "".join(line for line in text.splitlines(True) if not line.startswith("reference")), "utf-8"
    )
    port = reserve_port()
    own = {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "NO_PROXY": "127.0.0.1",
        "SUPERLINK_PORT": port,
        "SUPERLINK": f"127.0.0.1:{port}",
        "SUPERNODE_PORT": reserve_port(),
    }
    return folder / "made" / "server", {**os.environ, **own}


def time_floor(server: Path, environment: dict[str, str]) -> list[float]:
    """Return the seconds of messages to an app that does nothing, on the same server and node."""
    from bottlegan.federated.flower.exchange import REPLY_POLL_SECONDS  # noqa: PLC0415 - Flower is imported only here

    app, out = server / "floor", server / "floor.json"
    app.mkdir()
    (app / "pyproject.toml").write_text(FLOOR_PROJECT, "utf-8")
    (app / "floor.py").write_text(FLOOR.format(messages=MESSAGES, poll=REPLY_POLL_SECONDS, out=str(out)), "utf-8")
    call([server / "flwr.sh", "run", app, "consortium"], environment)
    while not out.exists():
        time.sleep(0.5)
    time.sleep(0.5)  # until it is written
    seconds: list[float] = json.loads(out.read_text(encoding="utf-8"))
    return seconds


def call(words: list[str | Path], environment: dict[str, str], attempts: int = 1) -> None:
    """Run a command to its end, and retry it if it may have been too early. Its words are ours."""
    for left in reversed(range(attempts)):
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)  # noqa: S603
        if done.returncode == 0:
            return
        if not left:
            raise RuntimeError(f"{words[0]} ended with {done.returncode}: {done.stdout}{done.stderr}")
        time.sleep(1)


@contextmanager
def started(script: Path, environment: dict[str, str], *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run one of the deployment's scripts until the block ends, then end it and everything that it started."""
    with script.with_suffix(".log").open("wb") as log:
        process = subprocess.Popen(  # noqa: S603
            [script, *words], env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            yield process
        finally:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(10)
            # Its process group is exactly what it started; a refused node leaves a helper behind.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(10)


def reserve_port() -> str:
    """Return a free loopback port that the system will not give to anybody by chance within the next minute.

    A connection that this side closed keeps its port in TIME_WAIT. The system then does not assign it to anybody who
    requests any port, but does allow a server that requests this one.
    """
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        # Only now: had it been set before, a port that another has reserved would have done.
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.listen(1)
        with socket.create_connection(listening.getsockname()) as other:
            accepted, _ = listening.accept()
            accepted.close()
            other.recv(1)  # its end has arrived
        return str(listening.getsockname()[1])
