"""A real deployment over loopback, with TLS, node keys and nginx, from the files that `deploy init` writes.

Without nginx, labs connect directly to the SuperLink.
"""

import json
import os
import re
import shutil
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import pytest

from bottlegan.bench.deployment import reserve_port, started
from bottlegan.core.config import load
from bottlegan.federated.client.holdings import find_labs
from bottlegan.federated.deploy.certificates import write_node_key
from bottlegan.federated.deploy.consortium import deploy
from bottlegan.federated.server.config import FederationConfig
from bottlegan.models.network_file import load_network

Process = subprocess.Popen[bytes]
Proxy = Callable[[Path, str, str], AbstractContextManager[None]]
CONFIG = """
[phase2]
mode = "plain"
rounds = 1
network = { factory = "their_package.networks:build", arguments = { width = 4 } }
training = { steps = 1, batch = 1, crop = 32 }
[rounds]
deadline = 300.0  # of a message, which starts a process: on a machine that does much else, that can take a minute
"""
FACTORY = "their_package.networks:build"
THEIRS = """
from torch import nn

def build(width, classes):
    layers = nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, classes, 1)
    return nn.Sequential(*layers)
"""
"""A network from the users' own package, which is installed on the server and in all labs."""
GOOD, FAILING, STRANGER = ("lab-a", "lab-b"), "lab-c", "stranger"
SECONDS = 600.0
"""For the whole deployment on a busy machine. On an idle one, it takes a minute."""


def call(words: list[str | Path], environment: dict[str, str]) -> str:
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def wait_for(what: str, happened: Callable[[], bool], end: float, scripts: dict[Path, Process]) -> None:
    """Wait for a condition. If it can no longer come true, or takes too long, fail with the scripts' output."""
    while not happened():
        ended = [script for script, process in scripts.items() if process.poll() is not None]
        said = "\n".join(f"{script}: {script.with_suffix('.log').read_text()}" for script in ended or scripts)
        assert not ended, f"waited for {what}, but this has ended: {said}"
        assert time.monotonic() < end, f"waited too long for {what}: {said}"
        time.sleep(0.2)


def is_healthy(address: str, authority: Path) -> bool:
    """Whether the server answers with a certificate that the labs accept."""
    try:
        context = ssl.create_default_context(cafile=authority)
        # Do not use the machine's proxy.
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
        )
        with opener.open(f"https://{address}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def fill(folder: Path, images: Path) -> None:
    """Fill in the template of lab.toml with a simulated lab's images."""
    for part in ("images", "labeled", "test"):
        shutil.copytree(images / part, folder / part)
    text = (folder / "lab.toml").read_text()
    for key in ("labeled", "test", "factories"):
        text = text.replace(f"# {key} =", f"{key} =")
    (folder / "lab.toml").write_text(text.replace("monai.networks.nets:UNet", FACTORY))


def has_joined(folder: Path) -> bool:
    log = folder / "state" / "lab.jsonl"
    return log.exists() and '"join"' in log.read_text()


@pytest.mark.slow
def test_a_deployment_of_their_own_network_with_a_client_that_fails_and_one_that_is_not_registered(
    drawn: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, any_proxy: Proxy | None
) -> None:
    (tmp_path / "installed" / "their_package").mkdir(parents=True)
    (tmp_path / "installed" / "their_package" / "networks.py").write_text(THEIRS)
    monkeypatch.syspath_prepend(tmp_path / "installed")
    end = time.monotonic() + SECONDS
    behind, port = reserve_port(), reserve_port()
    address = f"127.0.0.1:{behind if any_proxy is None else port}"
    environment = {
        **os.environ,
        "PYTHONPATH": f"{tmp_path / 'installed'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
        "NO_PROXY": "127.0.0.1",
        "SUPERLINK_PORT": behind,
        "SUPERLINK": address,
    }
    (tmp_path / "federation.toml").write_text(CONFIG)
    made, names = tmp_path / "consortium", (*GOOD, FAILING)
    deploy(made, "127.0.0.1", names, load(FederationConfig, tmp_path / "federation.toml"))
    server, labs = made / "server", {name: made / "labs" / name for name in names}
    labeled = [path.parent for path in find_labs(drawn / "labs").values() if (path.parent / "labeled").exists()]
    for folder, images in zip(labs.values(), [*labeled, *labeled], strict=False):
        fill(folder, images)
    shutil.copytree(labs[GOOD[0]], made / "labs" / STRANGER)
    (made / "labs" / STRANGER / "node.key").unlink()
    write_node_key(made / "labs" / STRANGER / "node.key")

    with ExitStack() as running:
        link = running.enter_context(started(server / "superlink.sh", environment))
        needed = {server / "superlink.sh": link}
        if any_proxy is not None:
            running.enter_context(any_proxy(server / "nginx.conf", port, behind))
        wait_for("the server", lambda: is_healthy(address, labs[GOOD[0]] / "ca.crt"), end, needed)
        call([server / "register.sh"], environment)
        for name in (STRANGER, *names):
            script, port = made / "labs" / name / "start.sh", {"SUPERNODE_PORT": reserve_port()}
            needed[script] = running.enter_context(started(script, environment | port))
        del needed[made / "labs" / STRANGER / "start.sh"]
        run = running.enter_context(started(server / "run.sh", environment, "--wait"))
        wait_for("the failing client", lambda: has_joined(labs[FAILING]), end, {**needed, server / "run.sh": run})
        (labs[FAILING] / "labeled").rename(labs[FAILING] / "gone")
        wait_for("the end", lambda: run.poll() is not None, end, needed)
        assert run.returncode == 0, (server / "run.log").read_text()
        assert all(process.poll() is None for process in needed.values())

    (record,) = json.loads((server / "run" / "history.json").read_text())["rounds"]
    assert record["trained"] == list(GOOD)
    assert record["left_out"] == {FAILING: "train ended with MissingError; see the lab's own log"}
    assert set(record["each"]) == set(GOOD)
    said = (labs[FAILING] / "start.log").read_text()
    assert said.count("labeled: there is no such folder") == 2  # training, scoring
    assert "Traceback" not in said
    built, _ = load_network(server / "run" / "network.safetensors", [FACTORY])
    assert "BatchNorm2d" in str(built.network)
    assert not (made / "labs" / STRANGER / "state").exists()
    assert "Failed to activate SuperNode" in (made / "labs" / STRANGER / "start.log").read_text()
    assert re.search(r'activate-node HTTP/1\.[01]" 412', (server / "superlink.log").read_text())  # 1.0 by nginx
