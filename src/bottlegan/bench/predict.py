"""The speed of predicting a whole slide, against only reading it, in one run.

Both read the same tiles, of the level that the network was trained at, in as many threads. Reading alone does nothing
else; predicting normalizes, runs the network, and writes the map, its outlines and its areas. The style is fitted, and
the statistics of layers are taken, within the time.
"""

import os
import resource
import tempfile
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

import numpy as np
import torch

from bottlegan.bench.slide import drawn
from bottlegan.core.errors import InputError
from bottlegan.core.progress import Json, Progress, Silent
from bottlegan.core.seeding import numpy_stream, torch_stream
from bottlegan.core.task import Task
from bottlegan.data.labels import Labeled
from bottlegan.imaging.tensors import from_batch
from bottlegan.models.document import PRIOR
from bottlegan.models.network_file import NetworkDocument, digest_model, save_network
from bottlegan.models.networks import NetworkConfig, build_network, exchanged
from bottlegan.models.weights import read_weights
from bottlegan.normalize.choice import MapChoice
from bottlegan.predict.predictor import Predictor
from bottlegan.predict.slides import MILLION, TILE, predict_slide
from bottlegan.predict.view import look_at
from bottlegan.reproduce.table2_files import find_commit
from bottlegan.simulation.styles import render
from bottlegan.simulation.tissue import draw_tissue
from bottlegan.slides.grid import Grid
from bottlegan.slides.reader import open_slide
from bottlegan.stain.style import REFERENCE
from bottlegan.training.task import TrainingConfig, labeled_loss

STEPS, PATCHES, SIDE = 150, 12, 256
"""Steps of training, patches and their side: enough for glands, because outlines of noise would take far longer."""
READ, PREDICT = "reading alone", "predict"
SEED = 0


def bench_predict(
    slide: Path | None = None,
    size: int = 20_000,
    network: Path | None = None,
    repeats: int = 3,
    progress: Progress | None = None,
) -> dict[str, Json]:
    """Return the seconds of both, their ratio, and megapixels per second, of the slide and of the network's input.

    Args:
        slide: Slide to measure with; by default one is drawn.
        size: Side of the drawn slide.
        network: Network to measure with; by default our own, trained for seconds.
        repeats: Number of measurements; the median is reported.
        progress: Receives progress.
    """
    if repeats < 1:
        raise InputError(f"expected at least one repeat, got {repeats}")
    progress = progress or Silent()
    with tempfile.TemporaryDirectory(prefix="bottlegan-") as name, drawn(slide, size, progress) as source:
        folder = Path(name)
        predictor = Predictor.load(network or train_default(folder / "network.safetensors", progress))
        make_map = MapChoice(predictor.model).prepare() if predictor.normalizes else None
        source.read_bytes()  # so that neither waits for the disk
        taken: dict[str, list[float]] = {READ: [], PREDICT: []}
        for _ in progress.track(range(repeats), "reading and predicting", repeats):
            taken[READ].append(time_reading(predictor, source))
            started = time.perf_counter()
            done = predict_slide(predictor, source, folder / "map.tiff", make_map=make_map)
            taken[PREDICT].append(time.perf_counter() - started)
        with open_slide(source) as opened:
            finest = opened.levels[0].width * opened.levels[0].height / MILLION
    base = median(taken[READ])
    rows: dict[str, Json] = {
        row: {
            "seconds": median(seconds),
            "ratio to reading alone": median(seconds) / base,
            "megapixels a second, of the network": done.megapixels / median(seconds),
            "megapixels a second, of the slide": finest / median(seconds),
            "all seconds": list(seconds),
        }
        for row, seconds in taken.items()
    }
    return {
        "slide": "procedural" if slide is None else "given",
        "network": "default" if network is None else "given",
        "megapixels of the slide": finest,
        "megapixels of the network": done.megapixels,
        "repeats": repeats,
        "cores": os.cpu_count(),
        "load average": os.getloadavg()[0],
        "peak memory, MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000,
        "commit": find_commit(),
        "rows": rows,
    }


def time_reading(predictor: Predictor, source: Path) -> float:
    """Return the seconds of only reading all tiles, at the network's resolution."""
    started = time.perf_counter()
    with open_slide(source) as slide, ThreadPoolExecutor(os.cpu_count()) as pool:
        view = look_at(slide, predictor.task.micrometers, None)
        deque(pool.map(view.read, Grid(view.whole, TILE)), maxlen=0)
    return time.perf_counter() - started


def train_default(path: Path, progress: Progress) -> Path:
    """Write the default network, trained for seconds on procedural tissue, to `path`."""
    task, config = Task(micrometers=1.0), TrainingConfig(batch=4)
    built = build_network(NetworkConfig(), task, torch_stream(SEED, "segmenter"), crop=config.crop)
    patches = []
    for index in range(PATCHES):
        tissue = draw_tissue(SEED, index, SIDE)
        image = from_batch(render(tissue.concentration[None], REFERENCE))[0]
        patches.append(Labeled(image, tissue.epithelium.numpy().astype(np.uint8)))
    random, optimizer = numpy_stream(SEED, "bench"), torch.optim.Adam(built.network.parameters(), lr=0.004)
    for _ in progress.track(range(STEPS), "training a network", STEPS):
        optimizer.zero_grad()
        labeled_loss(built, patches, config, lambda crops, _: crops, random).backward()
        optimizer.step()
    document = NetworkDocument(
        task=task,
        network=NetworkConfig(),
        crop=config.crop,
        mode="normalize",
        model=digest_model(read_weights(PRIOR)),
        scores={},
        weights="0" * 64,
        record={},
    )
    save_network(path, exchanged(built.network), document)
    return path
