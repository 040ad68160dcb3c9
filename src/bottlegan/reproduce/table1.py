"""Table 1: a segmentation network, trained by 20 labs that stain differently, in every way that we compare.

A run is one row with one seed and one fold. Runs are independent: they are made side by side, one thread each, and
each is written to a file of its own when it is finished. A run that was interrupted goes on after its last round.
"""

import os
import shutil
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path

import torch
from torch import Tensor

from bottlegan.core.config import load, to_json, to_values
from bottlegan.core.files import make_folder, write_text
from bottlegan.core.progress import Progress, Silent
from bottlegan.core.seeding import numpy_stream
from bottlegan.core.task import Task
from bottlegan.data.labels import Labeled
from bottlegan.federated.client.client import Client
from bottlegan.federated.client.holdings import hold
from bottlegan.federated.client.training import score_lab
from bottlegan.federated.protocol.exchange import LocalExchange
from bottlegan.federated.protocol.phase1 import CODE
from bottlegan.federated.protocol.phase2 import Phase2Config, Weights, load_network
from bottlegan.federated.server.config import FederationConfig
from bottlegan.federated.server.federation import run_federation
from bottlegan.federated.server.folder import STYLES, UPLOADS
from bottlegan.federated.server.members import read_members
from bottlegan.federated.server.phase1 import run_phase1
from bottlegan.federated.server.rounds import State, score_clients
from bottlegan.federated.server.uploads import UploadStore
from bottlegan.imaging.tensors import to_batch
from bottlegan.metrics.tally import compute_scores, compute_temperature
from bottlegan.models.weights import ModelWeights, read_weights, write_weights
from bottlegan.reproduce.paired import Scale
from bottlegan.reproduce.table1_files import Point, Run, Scores, write_table
from bottlegan.reproduce.table1_methods import METHODS, ROUNDS, Method, find_stain, plan_training
from bottlegan.reproduce.table2_files import find_commit
from bottlegan.reproduce.world import LabData, World, draw_world
from bottlegan.stain.macenko import summarize_reference
from bottlegan.training.task import lay_out, score

SEEDS = 2
FOLDS = 3


def run_table1(
    scale: Scale, out: Path, data: Path | None = None, jobs: int | None = None, progress: Progress | None = None
) -> Path:
    """Make all runs that `out` does not hold yet, and write the table there after each; return the table's path."""
    progress = progress or Silent()
    make_folder(out / "runs")
    wanted = list_runs(scale)
    missing = [each for each in wanted if not run_path(out, *each).exists()]
    # Spawned, because forked torch may hang; one thread each, as two small processes beat one of two threads.
    with ProcessPoolExecutor(jobs or os.cpu_count(), get_context("spawn"), initializer=_use_one_thread) as pool:
        tasks = [pool.submit(make_run, each, scale, data, out) for each in missing]
        for task in progress.track(as_completed(tasks), "runs", len(tasks)):
            run = task.result()
            progress.event("run", key=run.key, seed=run.seed, fold=run.fold, **to_values(run.scores))
            write_table(read_runs(out, scale), scale, out)
    return write_table(read_runs(out, scale), scale, out)


def list_runs(scale: Scale) -> list[tuple[str, int, int]]:
    """Return row, seed and fold of all runs: every row with each seed, the paper's with each fold, too."""
    seeds, folds = (1, 1) if scale == "smoke" else (SEEDS, FOLDS)
    first = [(method.key, seed, 0) for seed in range(seeds) for method in METHODS]
    more = [
        (method.key, seed, fold)
        for fold in range(1, folds)
        for seed in range(seeds)
        for method in METHODS
        if method.paper
    ]
    return first + more


def run_path(out: Path, key: str, seed: int, fold: int) -> Path:
    """Return where a finished run is written."""
    return out / "runs" / f"{key}-seed{seed}-fold{fold}.json"


def read_runs(out: Path, scale: Scale) -> list[Run]:
    """Return all finished runs, in the order of the rows."""
    return [load(Run, path) for each in list_runs(scale) if (path := run_path(out, *each)).exists()]


def make_run(which: tuple[str, int, int], scale: Scale, data: Path | None, out: Path) -> Run:
    """Train one row with one seed and fold, score it, and write it down."""
    key, seed, fold = which
    method = next(each for each in METHODS if each.key == key)
    world = recall_world(scale, data, seed, fold)
    styles, phase1_seconds = obtain_styles(world, out)
    folder = run_path(out, *which).with_suffix("")
    started = time.process_time()
    federations = arrange(method, plan_training(method, scale), world, seed, folder)
    finished = [(each, federate(each, styles)) for each in federations]
    run = summarize(which, world, finished)
    if method.together == "federated" and not method.local_normalization:
        run = scale_temperature(run, world, *finished[0])
    uploads = run.rounds if method.together == "federated" else 0
    sent = uploads * count_bytes(finished[0][1].weights)
    run = replace(
        run,
        seconds=time.process_time() - started,
        phase1_seconds=phase1_seconds if method.mode != "plain" else 0.0,
        bytes_up=sent + (4 * styles.document.model.code_size if method.mode != "plain" else 0),
        commit=find_commit(),
    )
    write_text(run_path(out, *which), to_json(run))
    shutil.rmtree(folder)
    return run


@lru_cache(maxsize=1)
def recall_world(scale: Scale, data: Path | None, seed: int, fold: int) -> World:
    """Return the labs of a seed and fold, which several rows in a row have in common."""
    return draw_world(scale, data, seed, fold)


def obtain_styles(world: World, out: Path) -> tuple[ModelWeights, float]:
    """Return the global BottleGAN of phase 1 in mode `code`, and its seconds; it is kept for the other rows."""
    path = out / "runs" / f"styles-seed{world.partition.seed}-fold{world.partition.fold}.safetensors"
    if not path.exists():
        config = FederationConfig(seed=world.partition.seed, rounds=ROUNDS)
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            clients = {each.name: Client(hold(each.train, [], []), folder / each.name) for each in world.labs("own")}
            started = time.process_time()
            run_phase1(LocalExchange({name: each.answer for name, each in clients.items()}), config, folder)
            record: dict[str, str | int | float] = {"seconds": time.process_time() - started}
            model = read_weights(folder / STYLES)
        write_weights(replace(model, document=replace(model.document, record=record)), path)
    model = read_weights(path)
    return model, float(model.document.record["seconds"])


@dataclass(frozen=True)
class Federation:
    """Labs that train together, in memory."""

    clients: dict[str, Client]
    config: FederationConfig
    folder: Path

    @property
    def exchange(self) -> LocalExchange:
        """Reaches the labs."""
        return LocalExchange({name: client.answer for name, client in self.clients.items()})


def arrange(method: Method, config: Phase2Config, world: World, seed: int, folder: Path) -> list[Federation]:
    """Return who trains with whom: one federation or, where labs stay alone, one for each that has labels."""
    given = world.labs(method.stained)
    reference = summarize_reference([torch.cat([to_batch(each) for each in world.reference_set()])])
    stain = find_stain(method, given, reference)
    plan = FederationConfig(seed=seed, phase2=config, strategy=method.strategy, rounds=ROUNDS)

    def open_labs(labs: list[LabData], below: Path) -> dict[str, Client]:
        held = {each.name: hold(each.train, each.labeled, each.test) for each in labs}
        return {name: Client(each, below / "labs" / name, stain) for name, each in held.items()}

    match method.together:
        case "federated":
            return [Federation(open_labs(given, folder), plan, folder)]
        case "local":
            last = replace(plan, rounds=replace(ROUNDS, evaluate_every=config.rounds))
            alone = [each for each in given if each.labeled]
            return [Federation(open_labs([each], folder / each.name), last, folder / each.name) for each in alone]
        case "pooled":
            steps = replace(plan, phase2=spread_steps(config, given))
            return [Federation(open_labs(pool(given), folder), steps, folder)]


def federate(federation: Federation, styles: ModelWeights) -> State:
    """Run a federation whose labs have uploaded their styles already, or what is left of it."""
    uploads = UploadStore(federation.folder / UPLOADS)
    for name in federation.clients if federation.config.phase2.mode != "plain" else ():
        uploads.put(name, {CODE: torch.from_numpy(styles.code(name).copy())})
    return run_federation(federation.exchange, federation.config, federation.folder)


def pool(labs: list[LabData]) -> list[LabData]:
    """Return one trainer that holds all labeled images, and all labs to score."""
    everything = LabData("pool", [], [each for lab in labs for each in lab.labeled], [])
    return [*(replace(lab, labeled=[]) for lab in labs), everything]


def spread_steps(config: Phase2Config, labs: list[LabData]) -> Phase2Config:
    """Return a configuration in which one trainer takes as many steps in a round as all labs with labels together."""
    steps = config.training.steps * sum(1 for lab in labs if lab.labeled)
    return replace(config, training=replace(config.training, steps=steps))


def summarize(which: tuple[str, int, int], world: World, finished: list[tuple[Federation, State]]) -> Run:
    """Return the scores of a run: after its last round, on the labs without labels, and over the rounds."""
    tallies: dict[str, Tensor] = {}
    for each, state in finished:
        asked = dict.fromkeys(each.clients, 0)
        members = read_members(each.folder)
        tallies |= score_clients(each.exchange, asked, each.config, state.weights, state.finished, members=members)[0]
    labeled = {client.name for client in world.partition.clients if client.labeled}
    unlabeled = [total for name, total in tallies.items() if name not in labeled]
    rounds = finished[0][1].history.rounds if len(finished) == 1 else ()
    return Run(
        key=which[0],
        seed=which[1],
        fold=which[2],
        scores=to_scores(list(tallies.values())),
        unlabeled=to_scores(unlabeled) if unlabeled else None,
        curve=tuple(Point(round=each.number, scores=pick_scores(each.scores)) for each in rounds if each.scores),
        rounds=finished[0][1].finished,
    )


def scale_temperature(run: Run, world: World, federation: Federation, state: State) -> Run:
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


def count_bytes(weights: Weights) -> int:
    """Return how many bytes weights take up in a message, without its envelope."""
    return sum(tensor.numel() * tensor.element_size() for tensor in weights.values())


def _use_one_thread() -> None:
    torch.set_num_threads(1)
    # Weights that have died out would else be computed with at a tenth of the speed.
    torch.set_flush_denormal(True)
