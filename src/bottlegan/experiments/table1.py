"""Table 1: a segmentation network, trained by 20 labs that stain differently, in every way that we compare.

A run is one row with one seed and one fold. Runs are independent: they are made side by side, one thread each, and
each is written to a file of its own when it is finished. A run that was interrupted goes on after its last round.
"""

import os
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from functools import lru_cache, partial
from multiprocessing import get_context
from pathlib import Path

import torch
from torch import Tensor

from bottlegan.config import load, to_json, to_values
from bottlegan.experiments.paired import Scale
from bottlegan.experiments.table1_files import Point, Run, Scores, write_table
from bottlegan.experiments.table1_methods import METHODS, ROUNDS, Method, build_labs, plan_training
from bottlegan.experiments.table2_files import find_commit
from bottlegan.experiments.world import World, draw_world
from bottlegan.federated.exchange import LocalExchange, Reply, Request
from bottlegan.federated.phase1 import Phase1Config, assemble, contribute
from bottlegan.federated.phase2 import Lab, Phase2Config, Weights, score_lab, train_round
from bottlegan.federated.rounds import TALLY, Plan, State, run_rounds
from bottlegan.files import make_folder, write_text
from bottlegan.imaging.tensors import to_batch
from bottlegan.metrics.tally import compute_scores
from bottlegan.models.document import PRIOR
from bottlegan.models.files import save_model
from bottlegan.models.paradigms import BottleGAN
from bottlegan.models.segmenter import Segmenter
from bottlegan.models.weights import read_document
from bottlegan.progress import Progress, Silent
from bottlegan.seeding import numpy_stream
from bottlegan.stain.macenko import summarize_reference
from bottlegan.training.segmentation import Labeled, calibrate

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
    model, phase1_seconds = obtain_styles(world, out)
    config = plan_training(method, scale)
    reference = summarize_reference([torch.cat([to_batch(each) for each in world.reference_set()])])
    labs = build_labs(method, config, world.labs(method.stained), model, reference)
    checkpoint = run_path(out, *which).with_suffix(".safetensors")
    started = time.process_time()
    states = [
        run_rounds(LocalExchange(answers), examples, plan, path)
        for answers, examples, plan, path in arrange(method, config, labs, seed, checkpoint)
    ]
    run = summarize(method, which, labs, states, config)
    if method.together == "federated" and not method.local_normalization:
        run = scale_temperature(run, world, labs, states[0].weights, config)
    uploads = config.rounds if method.together == "federated" else 0
    run = replace(
        run,
        seconds=time.process_time() - started,
        phase1_seconds=phase1_seconds if method.mode != "plain" else 0.0,
        bytes_up=uploads * count_bytes(states[0].weights) + (4 * model.codes.size if method.mode != "plain" else 0),
        commit=find_commit(),
    )
    write_text(run_path(out, *which), to_json(run))
    for path in checkpoint.parent.glob(f"{checkpoint.stem}*.safetensors"):
        path.unlink()
    return run


@lru_cache(maxsize=1)
def recall_world(scale: Scale, data: Path | None, seed: int, fold: int) -> World:
    """Return the labs of a seed and fold, which several rows in a row have in common."""
    return draw_world(scale, data, seed, fold)


def obtain_styles(world: World, out: Path) -> tuple[BottleGAN, float]:
    """Return the global BottleGAN of phase 1 in mode `code`, and its seconds; it is kept for the other rows."""
    path = out / "runs" / f"styles-seed{world.partition.seed}-fold{world.partition.fold}.safetensors"
    if not path.exists():
        started = time.process_time()
        prior = BottleGAN.load(PRIOR)
        config, seed = Phase1Config(), world.partition.seed
        sent = {
            each.name: contribute(each.train, config, reference_set=None, prior=prior, seed=seed).arrays
            for each in world.labs("own")
        }
        model = assemble(sent, config, reference_set=None, prior=prior, seed=seed)
        save_model(model, path, {"seconds": time.process_time() - started})
    return BottleGAN.load(path), float(read_document(path).record["seconds"])


Examples = Mapping[str, int] | Callable[[int], Mapping[str, int]]
Setup = tuple[Mapping[str, Callable[[Request], Reply]], Examples, Plan, Path | None]


def arrange(method: Method, config: Phase2Config, labs: dict[str, Lab], seed: int, checkpoint: Path) -> list[Setup]:
    """Return who trains with whom: one federation or, where labs stay alone, one for each that has labels."""
    answers = {name: partial(answer, lab, config) for name, lab in labs.items()}
    labeled = {name: len(lab.labeled) for name, lab in labs.items()}

    def examples(number: int) -> dict[str, int]:
        return {name: lab.examples(config, number) for name, lab in labs.items()}

    # What FedBN keeps at the labs is not in a checkpoint of the server.
    saved = None if method.local_normalization else checkpoint
    plan = Plan(config, method.strategy, ROUNDS, seed)
    match method.together:
        case "federated":
            return [(answers, examples, plan, saved)]
        case "local":
            alone = [name for name, lab in labs.items() if lab.labeled]
            last = replace(plan, rounds=replace(ROUNDS, evaluate_every=config.rounds))
            path = checkpoint.with_suffix
            return [
                ({name: answers[name]}, {name: labeled[name]}, last, path(f".{name}.safetensors")) for name in alone
            ]
        case "pooled":
            return [(*pool(labs, config), Plan(spread_steps(config, labs), method.strategy, ROUNDS, seed), saved)]


def pool(labs: dict[str, Lab], config: Phase2Config) -> tuple[dict[str, Callable[[Request], Reply]], dict[str, int]]:
    """Return one trainer that holds all labeled images, and all labs to score."""
    labeled = [each for lab in labs.values() for each in lab.labeled]
    everything = Lab("pool", labeled, [], [])
    answers = {name: partial(answer, lab, config) for name, lab in labs.items()}
    trainer = partial(answer, everything, spread_steps(config, labs))
    return {**answers, "pool": trainer}, {**dict.fromkeys(labs, 0), "pool": len(labeled)}


def spread_steps(config: Phase2Config, labs: dict[str, Lab]) -> Phase2Config:
    """Return a configuration in which one trainer takes as many steps in a round as all labs with labels together."""
    steps = config.training.steps * sum(1 for lab in labs.values() if lab.labeled)
    return replace(config, training=replace(config.training, steps=steps))


def answer(lab: Lab, config: Phase2Config, request: Request) -> Reply:
    """Return what a lab answers, without any network between it and the server."""
    if request.kind == "train":
        number, seed = int(request.settings["round"]), int(request.settings["seed"])
        return Reply(train_round(lab, request.arrays, config, number, seed))
    return Reply({TALLY: score_lab(lab, request.arrays, config)})


def summarize(
    method: Method, which: tuple[str, int, int], labs: dict[str, Lab], states: list[State], config: Phase2Config
) -> Run:
    """Return the scores of a run: after its last round, on the labs without labels, and over the rounds."""
    tallies: dict[str, Tensor] = {}
    for state in states:
        tallies |= state.tallies
    unlabeled = [total for name, total in tallies.items() if not labs[name].labeled]
    last = states[0].history.rounds
    return Run(
        key=method.key,
        seed=which[1],
        fold=which[2],
        scores=to_scores(list(tallies.values())),
        unlabeled=to_scores(unlabeled) if unlabeled else None,
        curve=tuple(Point(round=each.number, scores=Scores(**each.scores)) for each in last if each.scores)
        if len(states) == 1
        else (),
        rounds=config.rounds,
    )


def scale_temperature(run: Run, world: World, labs: dict[str, Lab], weights: Weights, config: Phase2Config) -> Run:
    """Return the run with what it scores once the server has calibrated the network on its validation patches.

    The server has them in the reference stain only; what labs do to the crops that they train on is done to them, too.
    """
    random, vary = numpy_stream(run.seed, "validation"), next(iter(labs.values())).staining.vary
    shown = [Labeled(vary(each.image[None], random)[0], each.mask) for each in world.validation()]
    network = Segmenter(config.segmenter)
    network.load_state_dict(weights)
    temperature = calibrate(network, shown)
    tallies = [score_lab(lab, weights, config, temperature) for lab in labs.values()]
    return replace(run, temperature=temperature, calibrated=to_scores(tallies))


def to_scores(tallies: list[Tensor]) -> Scores:
    """Return what tallies come to together."""
    return Scores(**compute_scores(torch.stack(tallies).sum(0)))


def count_bytes(weights: Weights) -> int:
    """Return how many bytes weights take up in a message, without its envelope."""
    return sum(tensor.numel() * tensor.element_size() for tensor in weights.values())


def _use_one_thread() -> None:
    torch.set_num_threads(1)
    # Weights that have died out would else be computed with at a tenth of the speed.
    torch.set_flush_denormal(True)
