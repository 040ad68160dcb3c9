"""Both phases of the demo: the same labs train the same network, with and without BottleGAN."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bottlegan.core.progress import Progress
from bottlegan.data.labels import Labeled
from bottlegan.federated.client.client import Client
from bottlegan.federated.client.holdings import Holdings, hold
from bottlegan.federated.protocol.exchange import LocalExchange
from bottlegan.federated.protocol.phase2 import Phase2Config
from bottlegan.federated.server.config import FederationConfig, RoundsConfig
from bottlegan.federated.server.federation import run_federation
from bottlegan.federated.server.folder import UPLOADS
from bottlegan.imaging.tensors import from_batch
from bottlegan.models.network_file import Mode
from bottlegan.models.networks import NetworkConfig
from bottlegan.training.task import TrainingConfig

if TYPE_CHECKING:
    from bottlegan.demo.run import StainedLab


@dataclass(frozen=True)
class Way:
    """A way to train."""

    key: str
    name: str
    mode: Mode
    oracle: bool = False
    """Whether all labs stain alike from the start."""


FIRST = Way("bottlegan-normalize", "with BottleGAN, normalized", "normalize")
"""The federation that runs first. The others use its styles."""
WAYS = (
    Way("fedavgm", "FedAvgM alone", "plain"),
    FIRST,
    Way("bottlegan-restain", "with BottleGAN, restained", "restain"),
    Way("oracle", "oracle: all in the reference stain", "plain", oracle=True),
)


@dataclass(frozen=True)
class Outcome:
    """The result of one way to train."""

    key: str
    name: str
    scores: dict[str, float]
    """IOU, ECE and NLL after the last round."""
    curve: list[tuple[int, dict[str, float]]]


def train_together(
    labs: Sequence["StainedLab"], rounds: int, seed: int, folder: Path, progress: Progress
) -> list[Outcome]:
    """Run a federation in every way. Every other lab has labels, and all are tested. Runs are kept below `folder`."""
    outcomes = {}
    for way in sorted(WAYS, key=lambda lab: lab != FIRST):
        config = FederationConfig(
            seed=seed,
            phase2=Phase2Config(
                mode=way.mode,
                rounds=rounds,
                network=NetworkConfig(arguments={"width": 8}),
                training=TrainingConfig(steps=4, batch=4, crop=96, learning_rate=0.005),
            ),
            rounds=RoundsConfig(least=1, evaluate_every=max(1, rounds // 8)),
        )
        own = folder / way.key
        if way != FIRST and way.mode != "plain":
            shutil.copytree(folder / FIRST.key / UPLOADS, own / UPLOADS)
        held = {lab.style.name: bring(lab, way, k % 2 == 0) for k, lab in enumerate(labs)}
        answers = {name: Client(lab, own / "labs" / name).answer for name, lab in held.items()}
        state = run_federation(LocalExchange(answers), config, own, progress=progress, label=f"phase 2: {way.name}")
        curve = [(lab.number, lab.scores) for lab in state.history.rounds if lab.scores]
        outcomes[way.key] = Outcome(way.key, way.name, curve[-1][1], curve)
    return [outcomes[way.key] for way in WAYS]


def bring(stained: "StainedLab", way: Way, labeled: bool) -> Holdings:
    """Return a lab's holdings in a federation: its last patch for testing, the others for training."""
    images = from_batch(stained.truth if way.oracle else stained.images)
    both = [Labeled(image, mask.byte().numpy()) for image, mask in zip(images, stained.epithelium, strict=True)]
    return hold(images, both[:-1] if labeled else [], both[-1:])
