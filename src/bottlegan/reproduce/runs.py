"""Tables 1 and 3 consist of independent runs, made in parallel, each written to its own file when it is finished."""

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, fields
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

import torch

from bottlegan.core.config import Document, document, load, to_values
from bottlegan.core.errors import InputError
from bottlegan.core.files import make_folder
from bottlegan.core.progress import Progress, Silent
from bottlegan.reproduce.paired import Scale
from bottlegan.reproduce.table1_methods import TrainingMethod

Which = tuple[str, int, int]
"""Key of the row, seed and fold of a run."""
SEEDS = 5


@document
class TableRun:
    """One row with one seed and one fold."""

    key: str
    seed: int
    fold: int

    @property
    def headline(self) -> Any:
        """The scores to report as soon as the run is finished."""
        raise NotImplementedError


Made = TypeVar("Made", bound=TableRun)


@dataclass(frozen=True)
class Experiment(ABC):
    """A whole table: its runs, and where they are kept."""

    scale: Scale
    out: Path
    data: Path | None = None
    rows: tuple[str, ...] = ()
    """Keys of the rows to make; empty for all."""
    draws: int = SEEDS
    """Number of seeds."""

    def __post_init__(self) -> None:
        """Check the rows."""
        keys = [method.key for method in self.methods]
        unknown = [key for key in self.rows if key not in keys]
        if unknown:
            raise InputError(f"{self.name} has no row {unknown[0]}; there are: {', '.join(keys)}")

    @property
    @abstractmethod
    def name(self) -> str:
        """Name of the table's files."""

    @property
    @abstractmethod
    def methods(self) -> Sequence[TrainingMethod]:
        """All rows of the table."""

    @abstractmethod
    def list_runs(self) -> list[Which]:
        """Return all runs of the table."""

    @abstractmethod
    def make(self, which: Which) -> TableRun:
        """Make one run, and write it to its file."""

    @abstractmethod
    def write(self) -> Path:
        """Write the table of all finished runs as Markdown and CSV, and return the path of the former."""

    @property
    def runs(self) -> Path:
        """The folder of finished runs."""
        return self.out / f"{self.name}-runs"

    def path(self, key: str, seed: int, fold: int) -> Path:
        """Return the file of a run."""
        return self.runs / f"{key}-seed{seed}-fold{fold}.json"

    def read(self, kind: type[Made]) -> list[Made]:
        """Return all finished runs, in the order of the rows."""
        order = [method.key for method in self.methods]
        runs = [load(kind, path) for path in self.runs.glob("*-seed*-fold*.json")]
        return sorted(runs, key=lambda run: (order.index(run.key), run.fold, run.seed))


def run_table(experiment: Experiment, jobs: int | None = None, progress: Progress | None = None) -> Path:
    """Make all missing runs, and write the table after each; return the table's path."""
    progress = progress or Silent()
    make_folder(experiment.runs)
    missing = [which for which in experiment.list_runs() if not experiment.path(*which).exists()]
    # Spawned, because forked torch may hang. One thread each, because two small processes beat one with two threads.
    with ProcessPoolExecutor(jobs or os.cpu_count(), get_context("spawn"), initializer=_use_one_thread) as pool:
        finished = as_completed([pool.submit(experiment.make, which) for which in missing])
        for task in progress.track(finished, "runs", len(missing)):
            run = task.result()
            progress.event("run", key=run.key, seed=run.seed, fold=run.fold, **to_values(run.headline))
            experiment.write()
    return experiment.write()


def pick_scores(kind: type[Document], scores: Mapping[str, float]) -> Document:
    """Return those scores that a table shows."""
    return kind(**{metric.name: scores[metric.name] for metric in fields(kind)})  # type: ignore[arg-type]


def _use_one_thread() -> None:
    torch.set_num_threads(1)
    # Otherwise, weights that have died out would slow the computation down tenfold.
    torch.set_flush_denormal(True)
