"""The cost of a thousand labs for the server of a simulation, against twenty: memory, and seconds per round."""

import multiprocessing
import resource
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from bottlegan.bench.timing import time_rounds
from bottlegan.core.config import load, to_toml
from bottlegan.core.files import make_folder, write_text
from bottlegan.core.progress import Json, Progress, Silent
from bottlegan.federated.client.holdings import LAB_FILE, LabConfig, find_labs
from bottlegan.federated.protocol.phase2 import Phase2Config
from bottlegan.federated.server.config import FederationConfig, RoundsConfig
from bottlegan.federated.server.folder import LOG
from bottlegan.federated.simulation import LabsConfig, draw_labs
from bottlegan.quality.run_report import read_events
from bottlegan.training.task import TrainingConfig

FEW, MANY, DRAWN, ROUNDS = 20, 1000, 10, 8
LABS = LabsConfig(count=2, train=1, test=1, size=96, labeled=2, windows=2, window_size=64, reference_patches=1)
CONFIG = FederationConfig(
    phase2=Phase2Config(mode="plain", rounds=ROUNDS, training=TrainingConfig(crop=64)),
    rounds=RoundsConfig(clients=DRAWN, evaluate_every=ROUNDS, deadline=3600.0),
)


def bench_many_labs(few: int = FEW, many: int = MANY, progress: Progress | None = None) -> dict[str, Json]:
    """Return memory and seconds of the server with few and with many labs. Both draw equally many labs per round."""
    progress = progress or Silent()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        draw_labs(LABS, 0, folder, progress)
        model = next(iter(find_labs(folder / "labs").values()))
        sizes = {"few": few, "many": many}
        costs = {
            key: measure(folder / key, model, count) for key, count in progress.track(sizes.items(), "federations", 2)
        }
    return {
        "labs": dict(sizes),
        "drawn": DRAWN,
        **{key: dict(figures) for key, figures in costs.items()},
        "memory_ratio": costs["many"]["megabytes"] / costs["few"]["megabytes"],
        "round_ratio": costs["many"]["seconds_round"] / costs["few"]["seconds_round"],
    }


def measure(folder: Path, model: Path, count: int) -> Mapping[str, float]:
    """Return the cost of a federation of `count` labs, in its own process, so that its peak memory is its own."""
    copy_labs(model, count, folder / "labs")
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_federate, args=(folder, theirs))
    process.start()
    theirs.close()
    try:
        figures: Mapping[str, float] = ours.recv()
    finally:
        process.join()
    return figures


def copy_labs(model: Path, count: int, folder: Path) -> None:
    """Write `count` labs that share the images of one lab, each with its own state."""
    config = load(LabConfig, model)
    home = model.parent.resolve()
    shared = replace(
        config,
        images=tuple(home / path for path in config.images),
        labeled=home / config.labeled if config.labeled else None,
        test=home / config.test if config.test else None,
        reference=None,
    )
    for row in range(count):
        own = folder / f"lab-{row:04d}"
        make_folder(own)
        write_text(own / LAB_FILE, to_toml(shared))


def _federate(folder: Path, answer: "multiprocessing.connection.Connection") -> None:
    from bottlegan.federated.flower.simulation import run as run_flower  # noqa: PLC0415 - in this process only

    started = time.time()
    run_flower(find_labs(folder / "labs"), CONFIG, folder / "run")
    events = read_events(folder / "run" / LOG)
    first = next(event["time"] for event in events if event["kind"] == "round")
    answer.send(
        {
            "megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            "seconds_round": time_rounds(folder / "run"),
            "seconds_before": first - started,
            "seconds_scoring": events[-1]["time"] - events[-3]["time"],
        }
    )
