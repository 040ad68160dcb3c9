"""The effect of killing a server at any moment, and of flipped bits on its disk."""

import multiprocessing
import shutil
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from bottlegan.bench.attacks.row import Row
from bottlegan.bench.attacks.world import draw_small_world
from bottlegan.core.errors import BottleGANError
from bottlegan.core.progress import Progress
from bottlegan.federated.protocol.exchange import Absence, Answer, LocalExchange, Reply, Request
from bottlegan.federated.server.config import FederationConfig, RoundsConfig
from bottlegan.federated.server.federation import run_federation
from bottlegan.federated.server.folder import CHECKPOINT, CONFIG, DAMAGED, LOG, NETWORK, STYLES, UPLOADS
from bottlegan.quality.run_report import read_events

FATES = REFUSED, REPAIRED, UNREAD, CHANGED = (
    "refused",
    "repaired and said so",
    "where nothing is read again",
    "change the network unnoticed",
)
ROUNDS = 4
"""Rounds of the federation that is killed and damaged; it stops halfway."""


def kill_anywhere(folder: Path, progress: Progress, count: int = 12) -> list[Row]:
    """Kill runs in their own process at random moments, and return how many then give another result."""
    started = time.monotonic()
    whole = federate(folder / "whole")
    seconds = time.monotonic() - started
    random, worse, hit = np.random.default_rng(0), 0, 0
    context = multiprocessing.get_context("spawn")
    for number in progress.track(range(count), "kills", count):
        run = folder / f"killed-{number}"
        shutil.rmtree(run, ignore_errors=True)
        process = context.Process(target=federate, args=(run,))
        process.start()
        # Before the run begins, a process only imports.
        while process.is_alive() and not (run / CONFIG).exists():
            time.sleep(0.01)
        process.join(random.uniform(0, seconds))
        process.kill()
        process.join()
        hit += (run / CONFIG).exists() and not (run / NETWORK).exists()
        worse += federate(run) != whole
    result = f"{count - worse} of {count} resume to the same network; {hit} were hit before they were done"
    return [Row("kills", "kill -9 at random moments of the run", worse == 0, result)]


def flip_bits(folder: Path, progress: Progress, count: int = 25) -> list[Row]:
    """Flip bits in each kind of state file, and return how many change the result unnoticed."""
    whole = federate(folder / "whole")
    half = folder / "half"
    federate(half, stop_after=ROUNDS // 2)
    kinds = {
        "checkpoint": CHECKPOINT,
        "older checkpoint": f"{Path(CHECKPOINT).stem}.*.safetensors",
        "styles": STYLES,
        "uploads": f"{UPLOADS}/*.safetensors",
    }
    random, rows = np.random.default_rng(0), []
    for kind, pattern in kinds.items():
        fates: Counter[str] = Counter()
        for number in progress.track(range(count), f"bit flips: {kind}", count):
            run = folder / f"{kind}-{number}"
            shutil.rmtree(run, ignore_errors=True)
            shutil.copytree(half, run)
            flip_bit(sorted(run.glob(pattern))[0], random)
            fates[notice(run, whole)] += 1
            shutil.rmtree(run)
        result = ", ".join(f"{fates[fate]} {fate}" for fate in FATES)
        rows.append(Row("bit flips", kind, fates[CHANGED] == 0, result))
    return rows


def notice(run: Path, whole: bytes) -> str:
    """Resume a damaged run, and return its fate."""
    try:
        same = federate(run) == whole
    except BottleGANError:
        return REFUSED
    if not same:
        return CHANGED
    return REPAIRED if any(event["kind"] == DAMAGED for event in read_events(run / LOG)) else UNREAD


def flip_bit(path: Path, random: np.random.Generator) -> None:
    """Change one bit of a file."""
    content = bytearray(path.read_bytes())
    content[random.integers(len(content))] ^= 1 << int(random.integers(8))
    path.write_bytes(bytes(content))


def federate(folder: Path, stop_after: int | None = None) -> bytes:
    """Run or resume a small federation in `folder`, and return its network; or stop after some rounds."""
    world = draw_small_world(ROUNDS)
    phase2 = replace(world.phase2, mode="normalize")
    config = FederationConfig(phase2=phase2, rounds=RoundsConfig(evaluate_every=ROUNDS))
    clients = {lab.name: lab.open(folder / "labs" / lab.name).answer for lab in world.labs}
    exchange = _Stopping(clients, stop_after)
    try:
        run_federation(exchange, config, folder)
    except _StopError:
        return b""
    return (folder / NETWORK).read_bytes()


class _StopError(Exception):
    """A crash of the machine."""


class _Stopping(LocalExchange):
    """Crashes when the round after the last is requested."""

    def __init__(self, answers: Mapping[str, Answer], after: int | None) -> None:
        super().__init__(answers)
        self.after = after

    def ask(self, requests: Mapping[str, Request], deadline: float) -> dict[str, Reply | Absence]:
        for request in requests.values():
            if self.after is not None and request.kind == "train" and int(request.settings["round"]) > self.after:
                raise _StopError
        return super().ask(requests, deadline)
