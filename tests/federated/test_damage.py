"""A flipped bit in any file of a run, on the server or in a lab, is noticed or changes nothing."""

import json
import os
import random
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from bottlegan.core.audit import verify
from bottlegan.core.errors import BottleGANError, InputError
from bottlegan.federated.client.client import open_client
from bottlegan.federated.client.holdings import find_labs
from bottlegan.federated.protocol.exchange import Absence, LocalExchange, Reply, Request
from bottlegan.federated.protocol.phase2 import Phase2Config
from bottlegan.federated.server.config import FederationConfig, RoundsConfig
from bottlegan.federated.server.federation import run_federation
from bottlegan.models.document import PRIOR

FLIPS = 36
"""Number of flips: every file of the run at least once; the environment can ask for more, with FLIPS=500."""


class Killed(LocalExchange):
    """Simulates a crash when it is asked to train in a certain round."""

    def __init__(self, labs: Mapping[str, Path], at: int | None = None) -> None:
        super().__init__({name: open_client(path).answer for name, path in labs.items()})
        self.at = at

    def ask(self, requests: Mapping[str, Request], deadline: float) -> dict[str, Reply | Absence]:
        if self.at is not None and any(each.settings.get("round") == self.at for each in requests.values()):
            raise KeyboardInterrupt
        return super().ask(requests, deadline)


@pytest.fixture(scope="module")
def stopped(drawn: Path, tiny: Phase2Config, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, FederationConfig]:
    """A run with its own prior and FedBN, and its labs, killed in round 4 of 4."""
    out = tmp_path_factory.mktemp("stopped")
    for part in ("labs", "reference"):
        shutil.copytree(drawn / part, out / part)
    shutil.copy(PRIOR, out / "given.safetensors")
    phase2 = replace(tiny, mode="normalize", local_normalization=True)
    config = FederationConfig(phase2=phase2, rounds=RoundsConfig(least=1, evaluate_every=2))
    with pytest.raises(KeyboardInterrupt):
        run_federation(Killed(find_labs(out / "labs"), 4), config, out / "run", prior=out / "given.safetensors")
    return out, config


def go_on(out: Path, config: FederationConfig) -> bytes:
    run_federation(Killed(find_labs(out / "labs")), config, out / "run", prior=out / "given.safetensors")
    return (out / "run" / "network.safetensors").read_bytes()


def list_state(out: Path) -> list[Path]:
    found = [*(out / "run").rglob("*"), *(path for lab in (out / "labs").iterdir() for path in lab.glob("state/**/*"))]
    return sorted(path for path in found if path.is_file())


def test_every_flipped_bit_is_found_or_changes_nothing(
    stopped: tuple[Path, FederationConfig], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source, config = stopped
    shutil.copytree(source, tmp_path / "whole")
    wanted = go_on(tmp_path / "whole", config)
    names = [path.relative_to(source) for path in list_state(source)]
    said = {str(name) for name in names}
    assert {"run/checkpoint.safetensors", "run/checkpoint.previous.safetensors", "run/clients.json"} <= said
    assert any("own_layers" in name for name in said)
    assert any("normalized" in name for name in said)
    assert len(names) <= FLIPS
    draw = random.Random(5)  # noqa: S311 - no secret
    for count in range(int(os.environ.get("FLIPS", FLIPS))):
        out = tmp_path / f"{count}"
        shutil.copytree(source, out)
        path = out / names[count % len(names)]
        content = bytearray(path.read_bytes())
        bit = draw.randrange(8 * len(content))
        content[bit // 8] ^= 1 << bit % 8
        path.write_bytes(content)
        caplog.clear()
        assert is_noticed(out, config, wanted) or "is damaged" in caplog.text, f"bit {bit} of {path.name}"
        shutil.rmtree(out)


def is_noticed(out: Path, config: FederationConfig, wanted: bytes) -> bool:
    """Whether the flip is noticed when the run resumes or its logs are verified, or the result is the same."""
    try:
        found = go_on(out, config)
        for path in (out / "run").glob("*.jsonl"):
            verify(path)
    except BottleGANError:
        return True
    rounds = json.loads((out / "run" / "history.json").read_bytes())["rounds"]
    return found == wanted or any(each["left_out"] for each in rounds)


def test_a_log_with_a_flipped_bit_is_found(stopped: tuple[Path, FederationConfig], tmp_path: Path) -> None:
    source, _ = stopped
    path = tmp_path / "log.jsonl"
    whole = (source / "run" / "federation.jsonl").read_bytes()
    path.write_bytes(whole[:-30] + bytes([whole[-30] ^ 1]) + whole[-29:])
    with pytest.raises(InputError, match=r"line \d+ was changed, or is damaged"):
        verify(path)
