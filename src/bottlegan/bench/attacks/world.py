"""The attacked federation: labs with procedural tissue in the reference stain, as after normalization.

Stain does not matter for these attacks, so it is not simulated. All labs have labels and test images.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bottlegan.core.progress import Progress
from bottlegan.data.labels import Labeled
from bottlegan.federated.client.client import Client
from bottlegan.federated.client.holdings import hold
from bottlegan.federated.protocol.exchange import Answer, LocalExchange
from bottlegan.federated.protocol.phase2 import Phase2Config
from bottlegan.federated.server.config import FederationConfig, RoundsConfig, StrategyConfig
from bottlegan.federated.server.federation import run_federation
from bottlegan.federated.server.rounds import State
from bottlegan.federated.simulation import stain
from bottlegan.models.networks import NetworkConfig
from bottlegan.simulation.tissue import draw_tissue
from bottlegan.stain.style import REFERENCE
from bottlegan.training.task import TrainingConfig

PATCH = 320
"""Side of a patch in pixels."""
MOST_PATCHES = 4
"""Most training patches of a lab; each has at least one."""
PLAIN = StrategyConfig(robust="none")
"""The plain mean, without robust rules."""
LOOSE = RoundsConfig(least=2, evaluate_every=1000, length_bound=10.0, weight_bound=10.0)
"""Wide bounds, which hardly ever apply."""
STRICT = RoundsConfig(least=2, evaluate_every=1000)

Wrap = Callable[["Lab", Path], Answer]
"""Makes a lab's hostile client, given the folder for its state."""


@dataclass(frozen=True)
class Lab:
    """One lab's data."""

    name: str
    labeled: Sequence[Labeled]
    test: Sequence[Labeled]

    def open(self, state: Path) -> Client:
        """Return its client."""
        return Client(hold([sample.image for sample in self.labeled], self.labeled, self.test), state)


@dataclass(frozen=True)
class World:
    """All labs, and their training."""

    labs: Sequence[Lab]
    phase2: Phase2Config
    seed: int = 0

    def federate(self, folder: Path, hostile: Mapping[str, Wrap], *, robust: bool) -> State:
        """Run a federation with some hostile labs, with our defaults or with the plain mean; or read its result."""
        config = FederationConfig(
            seed=self.seed,
            phase2=self.phase2,
            strategy=StrategyConfig() if robust else PLAIN,
            rounds=STRICT if robust else LOOSE,
        )
        answers = {
            lab.name: hostile[lab.name](lab, folder / "labs" / lab.name)
            if lab.name in hostile
            else lab.open(folder / "labs" / lab.name).answer
            for lab in self.labs
        }
        return run_federation(LocalExchange(answers), config, folder)


def draw_world(labs: int, rounds: int, progress: Progress, seed: int = 0) -> World:
    """Return labs with one to four training patches and one test patch each."""
    random = np.random.default_rng(seed)
    counts = random.integers(1, MOST_PATCHES + 1, labs)
    indices = iter(range(int(counts.sum()) + labs))
    drawn = []
    for row, count in enumerate(progress.track(counts.tolist(), "drawing labs", labs)):
        patches = [draw_patch(seed, next(indices)) for _ in range(count + 1)]
        drawn.append(Lab(f"lab-{row + 1:02d}", patches[:-1], patches[-1:]))
    # A learning rate with which the network settles in few rounds.
    training = TrainingConfig(learning_rate=0.01)
    return World(drawn, Phase2Config(mode="plain", rounds=rounds, training=training), seed)


def draw_small_world(rounds: int = 4) -> World:
    """Return three labs whose rounds take milliseconds, for attacks on files and replies."""
    patches = [draw_patch(1, index, 64) for index in range(6)]
    labs = [Lab(f"lab-{row + 1:02d}", [patches[2 * row]], [patches[2 * row + 1]]) for row in range(3)]
    network = NetworkConfig(arguments={"width": 4, "depth": 2})
    return World(labs, Phase2Config(mode="plain", rounds=rounds, network=network, training=TrainingConfig(crop=32)))


def draw_patch(seed: int, index: int, size: int = PATCH) -> Labeled:
    """Return a patch of tissue in the reference stain, with its mask."""
    tissue = draw_tissue(seed, index, size)
    return Labeled(stain(tissue, REFERENCE, seed, f"{index}"), tissue.epithelium.byte().numpy())
