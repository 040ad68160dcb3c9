"""Labs in memory that train together in one of the ways that Tables 1 and 3 compare, through the one orchestration."""

import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import TypeVar

import torch

from bottlegan.core.files import locked
from bottlegan.data.labels import Truth
from bottlegan.federated.client.client import Client
from bottlegan.federated.client.holdings import hold
from bottlegan.federated.client.staining import Stain
from bottlegan.federated.protocol.exchange import LocalExchange
from bottlegan.federated.protocol.phase1 import CODE, Phase1Config
from bottlegan.federated.protocol.phase2 import Phase2Config
from bottlegan.federated.server.config import FederationConfig
from bottlegan.federated.server.federation import run_federation
from bottlegan.federated.server.folder import STYLES, UPLOADS
from bottlegan.federated.server.phase1 import run_phase1
from bottlegan.federated.server.rounds import State
from bottlegan.federated.server.uploads import UploadStore
from bottlegan.imaging.files import Pixels
from bottlegan.models.networks import Weights
from bottlegan.models.weights import ModelWeights, read_weights, write_weights
from bottlegan.reproduce.pseudo_labels import WatchingExchange
from bottlegan.reproduce.table1_methods import ROUNDS, TrainingMethod
from bottlegan.reproduce.world import LabData

Which = tuple[str, int, int]
"""Key of the row, seed and fold of a run."""
Made = TypeVar("Made")
PSEUDO_LABELS = "pseudo_labels.json"
BY_CODE = Phase1Config()


def make_runs(make: Callable[[Which], Made], wanted: Sequence[Which], jobs: int | None) -> Iterator[Made]:
    """Make runs side by side, and yield each once it is finished; `make` must be something that can be pickled."""
    # Spawned, because forked torch may hang; one thread each, as two small processes beat one of two threads.
    with ProcessPoolExecutor(jobs or os.cpu_count(), get_context("spawn"), initializer=_use_one_thread) as pool:
        for task in as_completed([pool.submit(make, each) for each in wanted]):
            yield task.result()


@dataclass(frozen=True)
class Federation:
    """Labs that train together, in memory."""

    clients: dict[str, Client]
    config: FederationConfig
    folder: Path
    truths: Mapping[str, Sequence[Truth]] | None = None
    """The masks of the labs' training images, to tell how good pseudo-labels are."""

    @property
    def exchange(self) -> LocalExchange:
        """Reaches the labs."""
        config = self.config.phase2
        if self.truths is not None and config.fixmatch.enabled:
            return WatchingExchange(self.clients, config, self.truths, self.folder / PSEUDO_LABELS)
        return LocalExchange({name: client.answer for name, client in self.clients.items()})


def arrange(
    method: TrainingMethod, config: Phase2Config, given: list[LabData], stain: Stain, *, seed: int, folder: Path
) -> list[Federation]:
    """Return who trains with whom: one federation or, where labs stay alone, one for each that has labels."""
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
    """Run a federation whose phase 1 is over already, with these styles, or what is left of it."""
    if federation.config.phase2.mode != "plain":
        uploads = UploadStore(federation.folder / UPLOADS)
        for name in federation.clients:
            uploads.put(name, {CODE: torch.from_numpy(styles.code(name).copy())})
        # Of these uploads, so nobody makes another, whatever method of phase 1 it came from.
        write_weights(styles, federation.folder / STYLES)
    return run_federation(federation.exchange, federation.config, federation.folder)


def pool(labs: list[LabData]) -> list[LabData]:
    """Return one trainer that holds all labeled images, and all labs to score."""
    everything = LabData("pool", [], [each for lab in labs for each in lab.labeled], [])
    return [*(replace(lab, labeled=[]) for lab in labs), everything]


def spread_steps(config: Phase2Config, labs: list[LabData]) -> Phase2Config:
    """Return a configuration in which one trainer takes as many steps in a round as all labs with labels together."""
    steps = config.training.steps * sum(1 for lab in labs if lab.labeled)
    return replace(config, training=replace(config.training, steps=steps))


def obtain_styles(
    labs: Sequence[LabData], seed: int, path: Path, phase1: Phase1Config = BY_CODE, reference_set: Sequence[Pixels] = ()
) -> ModelWeights:
    """Return the global BottleGAN of phase 1; it is kept in `path` for the other rows, with what it cost as its record.

    Phase 1 that was interrupted goes on from a folder beside it. Of rows that are made side by side one makes it, while
    the others wait.
    """
    with path.with_suffix(".lock").open("wb") as lock, locked(lock):
        if not path.exists():
            make_styles(labs, seed, path, phase1, reference_set)
    return read_weights(path)


def make_styles(
    labs: Sequence[LabData], seed: int, path: Path, phase1: Phase1Config, reference_set: Sequence[Pixels]
) -> None:
    """Run phase 1 and write its model to `path`."""
    config = FederationConfig(seed=seed, phase1=phase1, rounds=ROUNDS)
    folder = path.with_suffix("")
    held = {each.name: hold(each.train, [], [], reference_set) for each in labs}
    answers = {name: Client(each, folder / "labs" / name).answer for name, each in held.items()}
    started = time.process_time()
    run_phase1(LocalExchange(answers), config, folder, reference_set=reference_set)
    sent = next(iter(UploadStore(folder / UPLOADS).read_all().values()))
    record: dict[str, str | int | float] = {"seconds": time.process_time() - started, "bytes": count_bytes(sent)}
    model = read_weights(folder / STYLES)
    write_weights(replace(model, document=replace(model.document, record=record)), path)
    shutil.rmtree(folder)


def count_bytes(weights: Weights) -> int:
    """Return how many bytes weights take up in a message, without its envelope."""
    return sum(tensor.numel() * tensor.element_size() for tensor in weights.values())


def _use_one_thread() -> None:
    torch.set_num_threads(1)
    # Weights that have died out would else be computed with at a tenth of the speed.
    torch.set_flush_denormal(True)
