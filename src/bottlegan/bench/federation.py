"""The cost of federating: phase 1, restaining, Flower's rounds against a plain loop, many labs, a deployed message."""

import os
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np
import torch
from safetensors.torch import save

from bottlegan.bench.deployment import bench_deployment
from bottlegan.bench.many_labs import MANY, bench_many_labs
from bottlegan.bench.timing import time_rounds
from bottlegan.core.progress import Json, Progress, Silent
from bottlegan.data.labels import Labeled
from bottlegan.federated.client.client import open_client
from bottlegan.federated.client.holdings import find_labs
from bottlegan.federated.client.staining import Staining, Styles, restain_randomly
from bottlegan.federated.client.style import contribute
from bottlegan.federated.client.training import Lab, train_round
from bottlegan.federated.flower.simulation import run as run_flower
from bottlegan.federated.protocol.phase1 import Phase1Config, Phase1Method
from bottlegan.federated.protocol.phase2 import Phase2Config, initial_weights
from bottlegan.federated.server.config import FederationConfig, RoundsConfig
from bottlegan.federated.server.styles import assemble
from bottlegan.federated.simulation import LabsConfig, draw_labs, run_local
from bottlegan.imaging.files import Pixels
from bottlegan.models.document import PRIOR
from bottlegan.models.networks import Weights
from bottlegan.models.weights import ModelWeights, read_weights
from bottlegan.normalize.normalizer import Normalizer
from bottlegan.reproduce.paired import Scale
from bottlegan.reproduce.world import World, draw_world
from bottlegan.training.task import TrainingConfig

ROUNDS = 8
SEED = 0


def bench_federation(
    scale: Scale = "cpu", data: Path | None = None, clients: int = 20, progress: Progress | None = None
) -> dict[str, Json]:
    """Return seconds, bytes and ratios. Run it only on an idle machine.

    Args:
        scale: Labs of phase 1: `cpu` for those of Table 1, `smoke` for a few small ones.
        data: Folder of PESO patches.
        clients: Number of labs in the rounds, with procedural tissue.
        progress: Receives progress.
    """
    progress = progress or Silent()
    torch.set_num_threads(1)
    world = draw_world(scale, "wide", data, SEED, 0)
    methods: tuple[Phase1Method, ...] = ("code", "generators")
    measured = {method: bench_phase1(world, method, progress) for method in methods}
    figures: dict[str, Json] = {"clients": clients, "cores": os.cpu_count()}
    figures |= {f"phase1_{method}": figure for method, (figure, _) in measured.items()}
    figures["staining"] = bench_staining(world, measured["code"][1])
    figures["rounds"] = bench_rounds(clients, progress)
    figures["many_labs"] = bench_many_labs(clients, MANY if scale == "cpu" else 2 * clients, progress)
    figures["deployed_message"] = bench_deployment(progress)
    return figures


def bench_phase1(world: World, method: Phase1Method, progress: Progress) -> tuple[dict[str, Json], ModelWeights]:
    """Return the cost of phase 1, with one lab after the other, and the resulting model."""
    config, reference_set, prior = Phase1Config(method=method), world.reference_set(), read_weights(PRIOR)
    labs = world.labs("own")
    started = time.perf_counter()
    sent = {
        lab.name: contribute(lab.train, config, reference_set=reference_set, prior=prior, seed=SEED).arrays
        for lab in progress.track(labs, f"phase 1, {method}", len(labs))
    }
    clients = time.perf_counter() - started
    model = assemble(sent, config, reference_set=reference_set, prior=prior, seed=SEED)
    total = time.perf_counter() - started
    return {
        "labs": len(labs),
        "seconds_clients": clients,
        "seconds_server": total - clients,
        "minutes": total / 60,
        "bytes_up": max(len(save(arrays)) for arrays in sent.values()),
    }, model


def bench_staining(world: World, model: ModelWeights, rounds: int | None = None) -> dict[str, Json]:
    """Return the share of staining in a lab's training time: normalizing once, and restaining in every batch.

    All rounds are trained, because the network maps a color only the first time; later it is looked up. Normalizing
    includes importing the compiler of the kernel, once per process.
    """
    lab = next(lab for lab in world.labs("own") if lab.labeled)
    smallest = min(min(patch.image.shape[:2]) for patch in lab.labeled)
    config = Phase2Config(mode="restain", training=TrainingConfig(crop=min(TrainingConfig().crop, smallest)))
    normalizer = Normalizer.from_model(model, lab.name)
    started = time.perf_counter()
    labeled = [Labeled(normalizer(patch.image), patch.truth) for patch in lab.labeled]
    once = time.perf_counter() - started
    vary, restaining = restain_randomly(Styles(model).restainers, 1.0), 0.0

    def timed(crops: Pixels, random: np.random.Generator) -> Pixels:
        nonlocal restaining
        begun = time.perf_counter()
        varied = vary(crops, random)
        restaining += time.perf_counter() - begun
        return varied

    count = rounds or config.rounds
    total = time_training(Lab(lab.name, labeled, [], [], Staining(vary=timed)), config, count)
    steps = count * config.training.steps
    return {
        "step_ms": 1000 * total / steps,
        "restaining_step_ms": 1000 * restaining / steps,
        "normalizing_seconds": once,
        "share": (restaining + once) / (total + once),
    }


def time_training(lab: Lab, config: Phase2Config, rounds: int) -> float:
    """Return the seconds of a lab's steps in `rounds` rounds."""
    weights = initial_weights(config, SEED)
    # Torch prepares itself in the first round.
    train_round(replace(lab, staining=Staining()), weights, config, 1, SEED)
    started = time.perf_counter()
    for number in range(1, rounds + 1):
        train_round(lab, weights, config, number, SEED)
    return time.perf_counter() - started


def bench_rounds(clients: int, progress: Progress) -> dict[str, Json]:
    """Return the median seconds of a round in a plain loop, through our exchange, and in Flower's simulation engine.

    The plain loop averages by hand, without messages, checks or checkpoints. It uses one core, so it compares with one
    worker of Flower's.
    """
    drawn = LabsConfig(count=clients, train=1, test=1, labeled=clients, windows=2 * clients, size=320, window_size=300)
    rounds = RoundsConfig(evaluate_every=ROUNDS)
    config = FederationConfig(seed=SEED, phase2=Phase2Config(mode="plain", rounds=ROUNDS), rounds=rounds)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        draw_labs(drawn, SEED, out, progress)
        labs = find_labs(out / "labs")
        before = time_plain_loop(labs, config)
        run_local(labs, config, out / "local")
        run_flower(labs, config, out / "one", workers=1)
        run_flower(labs, config, out / "all")
        # Before and after, because other load on the machine varies.
        plain = (before + time_plain_loop(labs, config)) / 2
        local, one, every = (time_rounds(out / name) for name in ("local", "one", "all"))
    return {
        "plain_loop": plain,
        "local": local,
        "flower_one_worker": one,
        "flower_all_cores": every,
        "local_ratio": local / plain,
        "flower_ratio": one / plain,
        "flower_all_cores_ratio": every / plain,
    }


def time_plain_loop(labs: Mapping[str, Path], config: FederationConfig) -> float:
    """Return the median seconds of a round in which each lab trains, and their weights are averaged."""
    clients = {name: open_client(path) for name, path in labs.items()}
    members = {name: Lab(name, client.holdings.labeled(config.phase2.task), [], []) for name, client in clients.items()}
    shares = {name: float(len(lab.labeled)) for name, lab in members.items()}
    weights, seconds = initial_weights(config.phase2, SEED), []
    for number in range(1, ROUNDS):
        started = time.perf_counter()
        replies = {
            name: train_round(lab, weights, config.phase2, number, SEED).weights for name, lab in members.items()
        }
        weights = average(replies, shares)
        seconds.append(time.perf_counter() - started)
    return median(seconds)


def average(replies: Mapping[str, Weights], shares: Mapping[str, float]) -> Weights:
    """Return the plain average of weights, which any aggregation without a server optimizer amounts to."""
    total = sum(shares[name] for name in replies)
    first = next(iter(replies.values()))
    return {key: sum(shares[n] / total * replies[n][key] for n in sorted(replies)) for key in first}  # type: ignore[misc]
