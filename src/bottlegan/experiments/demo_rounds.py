"""Phase 2 of the demo: the same labs train the same network, with and without BottleGAN."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from bottlegan.experiments.table1 import answer
from bottlegan.federated.exchange import LocalExchange
from bottlegan.federated.phase2 import Lab, Mode, Phase2Config, stain_with
from bottlegan.federated.rounds import Plan, RoundsConfig, run_rounds
from bottlegan.federated.strategies import StrategyConfig
from bottlegan.imaging.tensors import from_batch
from bottlegan.models.paradigms import BottleGAN
from bottlegan.models.segmenter import SegmenterConfig
from bottlegan.progress import Progress
from bottlegan.training.segmentation import Labeled, SegmentationConfig

if TYPE_CHECKING:
    from bottlegan.experiments.demo import DemoLab


@dataclass(frozen=True)
class Way:
    """A way to train."""

    key: str
    name: str
    mode: Mode
    oracle: bool = False
    """Whether all labs stain alike to begin with."""


WAYS = (
    Way("fedavgm", "FedAvgM alone", "plain"),
    Way("bottlegan-normalize", "with BottleGAN, normalized", "normalize"),
    Way("bottlegan-restain", "with BottleGAN, restained", "restain"),
    Way("oracle", "oracle: all in the reference stain", "plain", oracle=True),
)


@dataclass(frozen=True)
class Outcome:
    """What came of one way to train."""

    key: str
    name: str
    scores: dict[str, float]
    """IOU, ECE and NLL after the last round."""
    curve: list[tuple[int, dict[str, float]]]


def train_together(
    labs: Sequence["DemoLab"], model: BottleGAN, rounds: int, seed: int, progress: Progress
) -> list[Outcome]:
    """Train in every way; every other lab has labels, all are tested."""
    outcomes = []
    for way in WAYS:
        config = Phase2Config(
            mode=way.mode,
            rounds=rounds,
            segmenter=SegmenterConfig(width=8),
            training=SegmentationConfig(steps=4, batch=4, crop=96, learning_rate=0.005),
        )
        members = {each.style.name: hold(each, way, config, model, k % 2 == 0) for k, each in enumerate(labs)}
        exchange = LocalExchange({name: partial(answer, lab, config) for name, lab in members.items()})
        examples = {name: len(lab.labeled) for name, lab in members.items()}
        server = RoundsConfig(least=1, evaluate_every=max(1, rounds // 8))
        plan = Plan(config, StrategyConfig(), server, seed)
        label = f"phase 2: {way.name}"
        history = run_rounds(exchange, examples, plan, progress=progress, label=label).history
        curve = [(each.number, each.scores) for each in history.rounds if each.scores]
        outcomes.append(Outcome(way.key, way.name, curve[-1][1], curve))
    return outcomes


def hold(given: "DemoLab", way: Way, config: Phase2Config, model: BottleGAN, labeled: bool) -> Lab:
    """Return what a lab brings to phase 2: its last patch is tested on, the others are trained on."""
    images = from_batch(given.truth if way.oracle else given.images)
    held = [Labeled(image, mask.numpy()) for image, mask in zip(images, given.epithelium, strict=True)]
    name = given.style.name
    return Lab(name, held[:-1] if labeled else [], images[:-1], held[-1:], stain_with(config, model, name))
