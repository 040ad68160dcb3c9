"""A private federation in Flower's simulation engine, in its own process, observed from inside."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bottlegan.core.config import to_toml
from bottlegan.core.progress import Silent
from bottlegan.federated.client.holdings import find_labs
from bottlegan.federated.protocol.phase2 import Phase2Config
from bottlegan.federated.protocol.privacy import PrivacyConfig
from bottlegan.federated.server.config import FederationConfig, RoundsConfig, StrategyConfig
from bottlegan.federated.simulation import LabsConfig, draw_labs, run_local
from bottlegan.models.network_file import load_network

LABS = 3
SIMULATE = """
import json, os, subprocess, sys
from pathlib import Path

from bottlegan.core.config import load
from bottlegan.core.progress import Silent
from bottlegan.federated.client.holdings import find_labs
from bottlegan.federated.flower.simulation import run
from bottlegan.federated.server.config import FederationConfig

labs, config, out = map(Path, sys.argv[1:])

def list_sockets():
    "Addresses that this process and all it has started listen at, as /proc writes them."
    ours, parents = {os.getpid()}, {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    while more := {pid for pid, parent in parents.items() if parent in ours} - ours:
        ours |= more
    links = set()
    for pid in ours:
        for link in Path(f"/proc/{pid}/fd").glob("*"):
            try:
                links.add(os.readlink(link))
            except OSError:
                continue
    rows = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
    return [row[1].split(":")[0] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in links]

def ask_without_token():
    "What Ray says to who does not have the token."
    from ray import get_runtime_context
    # As `ray.init` does, which would try for half a minute.
    code = f"from ray._raylet import GcsClient; GcsClient({get_runtime_context().gcs_address!r})"
    clean = {key: value for key, value in os.environ.items() if not key.startswith("RAY_AUTH_")}
    done = subprocess.run([sys.executable, "-c", code], env=clean, capture_output=True, text=True, timeout=100)
    return done.stderr

class Looking(Silent):
    def event(self, kind, **fields):
        if kind == "round" and fields["number"] == 1:
            found = {"listening": list_sockets(), "refused": ask_without_token()}
            (out / "found.json").write_text(json.dumps(found))

run(find_labs(labs), load(FederationConfig, config), out, progress=Looking(), workers=1)
"""
LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}
"""127.0.0.1, the same as an IPv6 address, and ::1."""


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory, tiny: Phase2Config) -> tuple[Path, FederationConfig]:
    out = tmp_path_factory.mktemp("engine")
    drawn = LabsConfig(count=LABS, train=1, test=1, size=64, labeled=LABS, windows=LABS, window_size=64)
    draw_labs(replace(drawn, reference_patches=1), 2, out, Silent())
    return out, FederationConfig(
        phase2=replace(tiny, rounds=2),
        strategy=StrategyConfig(uniform=True, robust="none"),
        rounds=RoundsConfig(deadline=120),
        privacy=PrivacyConfig(secure=True),
    )


@pytest.fixture(scope="module")
def run(plan: tuple[Path, FederationConfig]) -> Path:
    out, config = plan
    (out / "plan.toml").write_text(to_toml(config))
    words = [sys.executable, "-c", SIMULATE, out / "labs", out / "plan.toml", out / "run"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return out / "run"


@pytest.mark.slow
def test_secure_aggregation_in_flowers_engine_ends_with_the_network_of_a_plain_loop_that_hides_nothing(
    plan: tuple[Path, FederationConfig], run: Path
) -> None:
    out, config = plan
    expected = run_local(find_labs(out / "labs"), replace(config, privacy=PrivacyConfig()), out / "plain")
    built, document = load_network(run / "network.safetensors")
    assert document.record["secure_aggregation"] == "yes"
    weights = built.network.state_dict()
    assert all(torch.allclose(weights[name], tensor, atol=1e-5) for name, tensor in expected.weights.items())
    history = json.loads((run / "history.json").read_text())
    assert [record["trained"] for record in history["rounds"]] == [sorted(find_labs(out / "labs"))] * 2


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="only Linux shows who listens where")
def test_the_engine_listens_on_loopback_only_and_lets_nobody_in_without_its_token(run: Path) -> None:
    found = json.loads((run / "found.json").read_text())
    assert len(found["listening"]) > 3
    assert set(found["listening"]) <= LOOPBACK
    assert "InvalidAuthToken" in found["refused"]
