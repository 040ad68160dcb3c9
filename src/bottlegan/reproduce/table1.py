"""Table 1: a segmentation network, trained by 20 labs that stain differently, in every way to be compared.

A run is one row with one seed, which draws styles, labels and initial weights, and one fold. An interrupted run is
resumed after its last round.
"""

import shutil
import time
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from bottlegan.core.config import to_json
from bottlegan.core.errors import InputError
from bottlegan.core.files import write_text
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
    arrange,
    count_bytes,
    federate,
    obtain_styles,
)
from bottlegan.reproduce.paired import Scale
from bottlegan.reproduce.pseudo_labels import read_points
from bottlegan.reproduce.runs import Experiment, Which, pick_scores
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

FOLDS = 3


@dataclass(frozen=True, kw_only=True)
class Table1(Experiment):
    """Table 1, or the sweep over settings of its baselines."""

    styles: StyleSet
    folds: int = FOLDS
    """Number of folds of the paper's rows; all other rows have only the first."""
    sweep: bool = False
    """Whether to compare settings of the baselines instead, on labs that are drawn only for that."""

    def __post_init__(self) -> None:
        """Check rows and folds."""
        super().__post_init__()
        if not 1 <= self.folds <= FOLDS:
            raise InputError(f"table1 has 1 to {FOLDS} folds, not {self.folds}")

    @property
    def methods(self) -> tuple[TrainingMethod, ...]:
        """All rows of the table."""
        return SWEEP if self.sweep else METHODS

    @property
    def name(self) -> str:
        """Name of the table's files."""
        return f"{'sweep' if self.sweep else 'table1'}-{self.styles}"

    def list_runs(self) -> list[Which]:
        """Return all runs: every row with each seed, and the paper's rows with each fold, too."""
        draws, folds = (1, 1) if self.scale == "smoke" else (self.draws, self.folds)
        seeds = range(FIRST_VALIDATION, FIRST_VALIDATION + draws) if self.sweep else range(draws)
        paper = [method.key for method in self.methods if method.paper]
        other = [method.key for method in self.methods if not method.paper]
        first = [(key, seed, 0) for keys in (paper, other) for seed in seeds for key in keys]
        more = [(key, seed, fold) for fold in range(1, folds) for seed in seeds for key in paper]
        return [which for which in first + more if not self.rows or which[0] in self.rows]

    def make(self, which: Which) -> Table1Run:
        """Make one run, and write it to its file."""
        return make_run(which, self)

    def write(self) -> Path:
        """Write the table of all finished runs as Markdown and CSV, and return the path of the former."""
        runs, path = self.read(Table1Run), self.out / f"{self.name}.md"
        command = f"bottlegan reproduce table1 --styles {self.styles}{' --sweep' * self.sweep} --scale {self.scale}"
        write_text(path.with_suffix(".csv"), to_csv(runs))
        write_text(path, to_markdown(runs, self.methods, command))
        return path


def make_run(which: Which, experiment: Table1) -> Table1Run:
    """Train one row with one seed and fold, score it, and write its file."""
    key, seed, fold = which
    method = next(method for method in experiment.methods if method.key == key)
    world = recall_world(experiment.scale, experiment.styles, experiment.data, seed, fold)
    phase1 = plan_phase1(method, experiment.scale)
    kept = experiment.runs / f"styles-{phase1.method}-seed{seed}-fold{fold}.safetensors"
    styles = obtain_styles(world.labs("own"), seed, kept, phase1, world.reference_set())
    path = experiment.path(*which)
    folder = path.with_suffix("")
    started = time.process_time()
    labs = world.labs(method.stained)
    stain = find_stain(method, labs, world.reference_set())
    federations = arrange(method, plan_training(method, experiment.scale), labs, stain, seed=seed, folder=folder)
    truths = {client.name: [world.contents[patch].mask for patch in client.train] for client in world.partition.clients}
    watched = [replace(federation, truths=truths) for federation in federations]
    finished = [(federation, federate(federation, styles)) for federation in watched]
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
    """Return the labs of a seed and fold, cached because consecutive runs often share them."""
    return draw_world(scale, styles, data, seed, fold)


def summarize(which: Which, world: World, finished: list[tuple[Federation, State]]) -> Table1Run:
    """Score a run: after its last round, on the labs without labels, and over the rounds."""
    tallies: dict[str, Tensor] = {}
    for federation, state in finished:
        asked = dict.fromkeys(federation.clients, 0)
        members = read_members(federation.folder)
        tallies |= score_clients(
            federation.exchange, asked, federation.config, state.weights, state.finished, members=members
        )[0]
    labeled = {client.name for client in world.partition.clients if client.labeled}
    unlabeled = [total for name, total in tallies.items() if name not in labeled]
    rounds = finished[0][1].history.rounds if len(finished) == 1 else ()
    return Table1Run(
        key=which[0],
        seed=which[1],
        fold=which[2],
        scores=to_scores(list(tallies.values())),
        unlabeled=to_scores(unlabeled) if unlabeled else None,
        curve=tuple(Point(round=own.number, scores=pick_scores(Scores, own.scores)) for own in rounds if own.scores),
        pseudo_labels=tuple(read_points(finished[0][0].folder / PSEUDO_LABELS)),
        rounds=finished[0][1].finished,
    )


def scale_temperature(run: Table1Run, world: World, federation: Federation, state: State) -> Table1Run:
    """Add the scores after the server has calibrated the network on its validation patches.

    The server has these only in the reference stain. They get the same color changes as the labs' training crops.
    """
    config = federation.config.phase2
    labs = [client.open_lab(config) for client in federation.clients.values()]
    random, vary = numpy_stream(run.seed, "validation"), labs[0].staining.vary
    shown = [Labeled(vary(sample.image[None], random)[0], sample.truth) for sample in world.validation()]
    counted = score(load_network(state.weights, config), shown, config.task)
    temperature = compute_temperature(counted, lay_out(config.task))
    tallies = [score_lab(lab, state.weights, config, temperature) for lab in labs]
    return replace(run, temperature=temperature, calibrated=to_scores(tallies))


def to_scores(tallies: list[Tensor]) -> Scores:
    """Return the scores of several tallies together."""
    task = Task()
    return pick_scores(Scores, compute_scores(torch.stack(tallies).sum(0), lay_out(task), task.classes))
