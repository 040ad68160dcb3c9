"""The speed of normalizing a whole slide, against a plain copy by libvips and the peers tile by tile, in one run.

Each measurement of a whole slide is a process of its own, by turns, so that its peak memory is its own too:

- a copy: libvips reads the slide and writes a pyramid of the same quality, and does nothing else;
- ours: import, fit a style, map the slide with no color known (cold), and again with the table ready, each timed apart;
- the command `bottlegan normalize`, from the start of Python to its end.

All read a file that the system has in memory, and write to the same folder. From quality 90 on libvips keeps whole
chroma, as we always do, but compresses red, green and blue rather than brightness and color; below it halves chroma.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from statistics import median

from bottlegan.bench.tiles import bench_tiles
from bottlegan.core.errors import InputError, MissingError
from bottlegan.core.progress import Json, Progress, Silent
from bottlegan.reproduce.table2_files import find_commit
from bottlegan.simulation.lab_folder import draw_lab
from bottlegan.simulation.slide import write_slide
from bottlegan.slides.reader import open_slide
from bottlegan.slides.writer import QUALITY

RUN = [sys.executable, "-m", "bottlegan.bench.slide_runs"]
COMMAND = [sys.executable, "-c", "from bottlegan.cli.main import main; main()", "normalize", "--force"]
COPY = "pyvips copy"
MEGABYTE = 1e6
SEED = 0


@dataclass(frozen=True)
class Finished:
    """The cost of a process."""

    seconds: float
    """Seconds from its start to its end."""
    memory: float
    """Megabytes at its peak."""
    steps: dict[str, float]
    """Seconds of each step that it reported."""


def bench_slide(
    slide: Path | None = None,
    size: int = 20_000,
    quality: int = QUALITY,
    repeats: int = 3,
    progress: Progress | None = None,
) -> dict[str, Json]:
    """Return the seconds and the memory of all rows, their ratios to a plain copy, and the peers' speed on tiles.

    Args:
        slide: Slide to measure with; by default one is drawn.
        size: Side of the drawn slide.
        quality: JPEG quality of the written tiles.
        repeats: Number of measurements; the median is reported.
        progress: Receives progress.
    """
    if repeats < 1:
        raise InputError(f"expected at least one repeat, got {repeats}")
    if find_spec("pyvips") is None:
        raise MissingError("the plain copy needs pyvips: pip install 'bottlegan[bench,slides]'")
    progress = progress or Silent()
    with tempfile.TemporaryDirectory(prefix="bottlegan-") as folder, drawn(slide, size, progress) as source:
        target = str(Path(folder) / "out.tiff")
        runs = {
            COPY: [*RUN, "copy", str(source), target, str(quality)],
            "ours": [*RUN, "ours", str(source), target, str(quality)],
            "the command": [*COMMAND, str(source), target, "--quality", str(quality)],
        }
        source.read_bytes()  # so that none of them waits for the disk
        turns = [name for _ in range(repeats) for name in runs]
        taken: dict[str, list[Finished]] = {name: [] for name in runs}
        for name in progress.track(turns, "whole slides", len(turns)):
            taken[name].append(run_apart(runs[name]))
        with open_slide(source) as opened:
            megapixels = opened.levels[0].width * opened.levels[0].height / MEGABYTE
        tiles = bench_tiles(source, progress)
    return {
        "slide": "procedural" if slide is None else "given",
        "megapixels": megapixels,
        "quality": quality,
        "repeats": repeats,
        "cores": os.cpu_count(),
        "load average": os.getloadavg()[0],
        "commit": find_commit(),
        "rows": summarize(taken, megapixels),
        "tiles": tiles,
    }


@contextmanager
def drawn(slide: Path | None, size: int, progress: Progress) -> Iterator[Path]:
    """Yield the slide, or a drawn one that is deleted afterwards."""
    if slide is not None:
        yield slide
        return
    with tempfile.TemporaryDirectory(prefix="bottlegan-") as folder:
        path = Path(folder) / "slide.tiff"
        write_slide(path, size, SEED, draw_lab(SEED), progress=progress)
        yield path


def run_apart(command: Sequence[str]) -> Finished:
    """Run a command, and return its cost; raise an error with the reason if it fails."""
    done = subprocess.run([*RUN, "measure", *command], capture_output=True, text=True, check=True)  # noqa: S603 - ours
    figures = json.loads(done.stdout.splitlines()[-1])
    if figures["status"]:
        raise InputError(f"a run of the benchmark failed: {figures['last'] or 'it was stopped'}")
    steps = json.loads(figures["last"]) if figures["last"].startswith("{") else {}
    return Finished(figures["seconds"], figures["memory"], steps)


def summarize(taken: dict[str, list[Finished]], megapixels: float) -> dict[str, Json]:
    """Return one row per step, or per process without steps: its median, and its ratio to a plain copy."""
    rows: dict[str, list[tuple[float, float]]] = {}
    for name, runs in taken.items():
        for run in runs:
            steps = {f"ours, {step}": taken for step, taken in run.steps.items()} if name == "ours" else {}
            for row, seconds in (steps or {name: run.steps.get("copy", run.seconds)}).items():
                rows.setdefault(row, []).append((seconds, run.memory))
    base = median(seconds for seconds, _ in rows[COPY])
    return {row: describe_row(measured, base, megapixels) for row, measured in rows.items()}


def describe_row(measured: list[tuple[float, float]], base: float, megapixels: float) -> dict[str, Json]:
    """Return the figures of one row, measured several times in seconds and megabytes."""
    middle = median(seconds for seconds, _ in measured)
    return {
        "seconds": middle,
        f"ratio to {COPY}": middle / base,
        "megapixels a second": megapixels / middle,
        "peak memory, MB": max(memory for _, memory in measured),
        "all seconds": [seconds for seconds, _ in measured],
    }
