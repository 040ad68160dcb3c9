"""Labs in memory that train together in one of the ways compared in Tables 1 and 3."""

import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

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

PSEUDO_LABELS = "pseudo_labels.json"
BY_CODE = Phase1Config()


@dataclass(frozen=True)
class Federation:
    """Labs that train together, in memory."""

    clients: dict[str, Client]
    config: FederationConfig
    folder: Path
    truths: Mapping[str, Sequence[Truth]] | None = None
    """The masks of the labs' training images, to score pseudo-labels."""

    @property
    def exchange(self) -> LocalExchange:
        """The exchange that reaches the labs."""
        config = self.config.phase2
        if self.truths is not None and config.fixmatch.enabled:
            return WatchingExchange(self.clients, config, self.truths, self.folder / PSEUDO_LABELS)
        return LocalExchange({name: client.answer for name, client in self.clients.items()})


def arrange(
    method: TrainingMethod, config: Phase2Config, labs: list[LabData], stain: Stain, *, seed: int, folder: Path
) -> list[Federation]:
    """Return the federations of a row: one or, if labs train alone, one per lab with labels."""
    plan = FederationConfig(seed=seed, phase2=config, strategy=method.strategy, rounds=ROUNDS)

    def open_labs(labs: list[LabData], below: Path) -> dict[str, Client]:
        held = {lab.name: hold(lab.train, lab.labeled, lab.test) for lab in labs}
        return {name: Client(holdings, below / "labs" / name, stain) for name, holdings in held.items()}

    match method.together:
        case "federated":
            return [Federation(open_labs(labs, folder), plan, folder)]
        case "local":
            last = replace(plan, rounds=replace(ROUNDS, evaluate_every=config.rounds))
            alone = [lab for lab in labs if lab.labeled]
            return [Federation(open_labs([lab], folder / lab.name), last, folder / lab.name) for lab in alone]
        case "pooled":
            steps = replace(plan, phase2=spread_steps(config, labs))
            return [Federation(open_labs(pool(labs), folder), steps, folder)]


def federate(federation: Federation, styles: ModelWeights) -> State:
    """Run or resume a federation whose phase 1 is finished, with these styles."""
    if federation.config.phase2.mode != "plain":
        uploads = UploadStore(federation.folder / UPLOADS)
        for name in federation.clients:
            uploads.put(name, {CODE: torch.from_numpy(styles.code(name).copy())})
        # The model matches the uploads, so it is not made again, whichever method of phase 1 made it.
        write_weights(styles, federation.folder / STYLES)
    return run_federation(federation.exchange, federation.config, federation.folder)


def pool(labs: list[LabData]) -> list[LabData]:
    """Return one lab that trains on all labeled images, and all labs without labels to score on."""
    everything = LabData("pool", [], [sample for lab in labs for sample in lab.labeled], [])
    return [*(replace(lab, labeled=[]) for lab in labs), everything]


def spread_steps(config: Phase2Config, labs: list[LabData]) -> Phase2Config:
    """Return a configuration with as many steps per round as all labs with labels take together."""
    steps = config.training.steps * sum(1 for lab in labs if lab.labeled)
    return replace(config, training=replace(config.training, steps=steps))


def obtain_styles(
    labs: Sequence[LabData], seed: int, path: Path, phase1: Phase1Config = BY_CODE, reference_set: Sequence[Pixels] = ()
) -> ModelWeights:
    """Return the global BottleGAN of phase 1, which is kept in `path` for the other rows, with its cost as its record.

    An interrupted phase 1 is resumed from a folder beside it. If rows are made in parallel, one makes the model and the
    others wait.
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
    held = {lab.name: hold(lab.train, [], [], reference_set) for lab in labs}
    answers = {name: Client(holdings, folder / "labs" / name).answer for name, holdings in held.items()}
    started = time.process_time()
    run_phase1(LocalExchange(answers), config, folder, reference_set=reference_set)
    sent = next(iter(UploadStore(folder / UPLOADS).read_all().values()))
    record: dict[str, str | int | float] = {"seconds": time.process_time() - started, "bytes": count_bytes(sent)}
    model = read_weights(folder / STYLES)
    write_weights(replace(model, document=replace(model.document, record=record)), path)
    shutil.rmtree(folder)


def count_bytes(weights: Weights) -> int:
    """Return the size of weights in a message, without its envelope, in bytes."""
    return sum(tensor.numel() * tensor.element_size() for tensor in weights.values())
