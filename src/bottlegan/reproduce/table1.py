"""Table 1: a segmentation network, trained by 20 labs that stain differently, in every way that we compare.

A run is one row with one seed, which draws styles, labels and first weights, and one fold. Runs are independent: they
are made side by side, one thread each, and each is written to a file of its own when it is finished. A run that was
interrupted goes on after its last round.
"""

import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache, partial
from pathlib import Path

import torch
from torch import Tensor

from bottlegan.core.config import load, to_json, to_values
from bottlegan.core.errors import InputError
from bottlegan.core.files import make_folder, write_text
from bottlegan.core.progress import Progress, Silent
from bottlegan.core.seeding import numpy_stream
from bottlegan.core.task import Task
from bottlegan.data.labels import Labeled
from bottlegan.federated.client.training import score_lab
from bottlegan.federated.protocol.phase2 import load_network
from bottlegan.federated.server.members import read_members
from bottlegan.federated.server.rounds import State, score_clients
from bottlegan.metrics.tally import compute_scores, compute_temperature
from bottlegan.reproduce.federations import (
    PSEUDO_LABELS,
    Federation,
    Which,
    arrange,
    count_bytes,
    federate,
    make_runs,
    obtain_styles,
)
from bottlegan.reproduce.paired import Scale
from bottlegan.reproduce.pseudo_labels import read_points
from bottlegan.reproduce.table1_files import Point, Scores, Table1Run, to_csv, to_markdown
from bottlegan.reproduce.table1_methods import (
    FIRST_VALIDATION,
    METHODS,
    SWEEP,
    TrainingMethod,
    find_stain,
    plan_phase1,
    plan_training,
)
from bottlegan.reproduce.table2_files import find_commit
from bottlegan.reproduce.world import StyleSet, World, draw_world
from bottlegan.training.task import lay_out, score

SEEDS = 5
FOLDS = 3


@dataclass(frozen=True)
class Experiment:
    """A whole table: what it is made of, and where it is kept."""

    scale: Scale
    styles: StyleSet
    out: Path
    data: Path | None = None
    rows: tuple[str, ...] = ()
    """Keys of the rows to make; none for all."""
    draws: int = SEEDS
    """Seeds."""
    folds: int = FOLDS
    """Of the paper's rows; the others have the first alone."""
    sweep: bool = False
    """Whether to compare settings of the baselines instead, on labs that are drawn for that alone."""

    def __post_init__(self) -> None:
        """Check the rows."""
        known = [method.key for method in self.methods]
        unknown = [key for key in self.rows if key not in known]
        if unknown:
            raise InputError(f"table1 has no row {unknown[0]}; there are: {', '.join(known)}")
        if not 1 <= self.folds <= FOLDS:
            raise InputError(f"table1 has 1 to {FOLDS} folds, not {self.folds}")

    @property
    def methods(self) -> tuple[TrainingMethod, ...]:
        """All rows that there are."""
        return SWEEP if self.sweep else METHODS

    @property
    def name(self) -> str:
        """What the table's files are called."""
        return f"{'sweep' if self.sweep else 'table1'}-{self.styles}"

    @property
    def runs(self) -> Path:
        """The folder of finished runs."""
        return self.out / f"{self.name}-runs"

    def path(self, key: str, seed: int, fold: int) -> Path:
        """Return where a finished run is written."""
        return self.runs / f"{key}-seed{seed}-fold{fold}.json"

    def list_runs(self) -> list[Which]:
        """Return row, seed and fold of all runs: every row with each seed, the paper's with each fold, too."""
        draws, folds = (1, 1) if self.scale == "smoke" else (self.draws, self.folds)
        seeds = range(FIRST_VALIDATION, FIRST_VALIDATION + draws) if self.sweep else range(draws)
        paper, other = [[each.key for each in self.methods if each.paper is is_paper] for is_paper in (True, False)]
        first = [(key, seed, 0) for keys in (paper, other) for seed in seeds for key in keys]
        more = [(key, seed, fold) for fold in range(1, folds) for seed in seeds for key in paper]
        return [which for which in first + more if not self.rows or which[0] in self.rows]

    def read_runs(self) -> list[Table1Run]:
        """Return all finished runs, in the order of the rows."""
        found = [load(Table1Run, path) for path in self.runs.glob("*-seed*-fold*.json")]
        order = [method.key for method in self.methods]
        return sorted(found, key=lambda run: (order.index(run.key), run.fold, run.seed))

    def write(self) -> Path:
        """Write the table of all finished runs as Markdown and CSV, and return the path of the former."""
        runs, path = self.read_runs(), self.out / f"{self.name}.md"
        command = f"bottlegan reproduce table1 --styles {self.styles}{' --sweep' * self.sweep} --scale {self.scale}"
        write_text(path.with_suffix(".csv"), to_csv(runs))
        write_text(path, to_markdown(runs, self.methods, command))
        return path


def run_table1(experiment: Experiment, jobs: int | None = None, progress: Progress | None = None) -> Path:
    """Make all runs that are not there yet, and write the table after each; return the table's path."""
    progress = progress or Silent()
    make_folder(experiment.runs)
    missing = [each for each in experiment.list_runs() if not experiment.path(*each).exists()]
    runs = make_runs(partial(make_run, experiment=experiment), missing, jobs)
    for run in progress.track(runs, "runs", len(missing)):
        progress.event("run", key=run.key, seed=run.seed, fold=run.fold, **to_values(run.scores))
        experiment.write()
    return experiment.write()


def make_run(which: Which, experiment: Experiment) -> Table1Run:
    """Train one row with one seed and fold, score it, and write it down."""
    key, seed, fold = which
    method = next(each for each in experiment.methods if each.key == key)
    world = recall_world(experiment.scale, experiment.styles, experiment.data, seed, fold)
    phase1 = plan_phase1(method, experiment.scale)
    kept = experiment.runs / f"styles-{phase1.method}-seed{seed}-fold{fold}.safetensors"
    styles = obtain_styles(world.labs("own"), seed, kept, phase1, world.reference_set())
    path = experiment.path(*which)
    folder = path.with_suffix("")
    started = time.process_time()
    given = world.labs(method.stained)
    stain = find_stain(method, given, world.reference_set())
    federations = arrange(method, plan_training(method, experiment.scale), given, stain, seed=seed, folder=folder)
    truths = {client.name: [world.contents[patch].mask for patch in client.train] for client in world.partition.clients}
    watched = [replace(each, truths=truths) for each in federations]
    finished = [(each, federate(each, styles)) for each in watched]
    run = summarize(which, world, finished)
    if method.together == "federated" and not method.local_normalization:
        run = scale_temperature(run, world, *finished[0])
    uploads = run.rounds if method.together == "federated" else 0
    sent = uploads * count_bytes(finished[0][1].weights)
    run = replace(
        run,
        seconds=time.process_time() - started,
        phase1_seconds=float(styles.document.record["seconds"]) if method.mode != "plain" else 0.0,
        bytes_up=sent + (int(styles.document.record["bytes"]) if method.mode != "plain" else 0),
        commit=find_commit(),
    )
    write_text(path, to_json(run))
    shutil.rmtree(folder)
    return run


@lru_cache(maxsize=1)
def recall_world(scale: Scale, styles: StyleSet, data: Path | None, seed: int, fold: int) -> World:
    """Return the labs of a seed and fold, which several rows in a row have in common."""
    return draw_world(scale, styles, data, seed, fold)


def summarize(which: Which, world: World, finished: list[tuple[Federation, State]]) -> Table1Run:
    """Return the scores of a run: after its last round, on the labs without labels, and over the rounds."""
    tallies: dict[str, Tensor] = {}
    for each, state in finished:
        asked = dict.fromkeys(each.clients, 0)
        members = read_members(each.folder)
        tallies |= score_clients(each.exchange, asked, each.config, state.weights, state.finished, members=members)[0]
    labeled = {client.name for client in world.partition.clients if client.labeled}
    unlabeled = [total for name, total in tallies.items() if name not in labeled]
    rounds = finished[0][1].history.rounds if len(finished) == 1 else ()
    return Table1Run(
        key=which[0],
        seed=which[1],
        fold=which[2],
        scores=to_scores(list(tallies.values())),
        unlabeled=to_scores(unlabeled) if unlabeled else None,
        curve=tuple(Point(round=each.number, scores=pick_scores(each.scores)) for each in rounds if each.scores),
        pseudo_labels=tuple(read_points(finished[0][0].folder / PSEUDO_LABELS)),
        rounds=finished[0][1].finished,
    )


def scale_temperature(run: Table1Run, world: World, federation: Federation, state: State) -> Table1Run:
    """Return the run with what it scores once the server has calibrated the network on its validation patches.

    The server has them in the reference stain only; what labs do to the crops that they train on is done to them, too.
    """
    config = federation.config.phase2
    labs = [client.open_lab(config) for client in federation.clients.values()]
    random, vary = numpy_stream(run.seed, "validation"), labs[0].staining.vary
    shown = [Labeled(vary(each.image[None], random)[0], each.truth) for each in world.validation()]
    counted = score(load_network(state.weights, config), shown, config.task)
    temperature = compute_temperature(counted, lay_out(config.task))
    tallies = [score_lab(lab, state.weights, config, temperature) for lab in labs]
    return replace(run, temperature=temperature, calibrated=to_scores(tallies))


def to_scores(tallies: list[Tensor]) -> Scores:
    """Return what tallies come to together."""
    task = Task()
    return pick_scores(compute_scores(torch.stack(tallies).sum(0), lay_out(task), task.classes))


def pick_scores(scores: Mapping[str, float]) -> Scores:
    """Return those scores that are in the table."""
    return Scores(**{each.name: scores[each.name] for each in fields(Scores)})
