"""The rows of Table 1: how each handles the labs' stains, and how the labs train together."""

from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import Literal

import torch

from bottlegan.federated.client.staining import Stain, Staining, stain_with
from bottlegan.federated.protocol.phase1 import Phase1Config, Phase1Method
from bottlegan.federated.protocol.phase2 import Phase2Config
from bottlegan.federated.server.config import RoundsConfig, StrategyConfig
from bottlegan.imaging.files import Pixels
from bottlegan.imaging.tensors import from_batch, to_batch
from bottlegan.models.network_file import Mode
from bottlegan.models.networks import NetworkConfig
from bottlegan.reproduce.classical import attempt, prepare_torchstain
from bottlegan.reproduce.paired import Scale
from bottlegan.reproduce.world import LabData, Stained
from bottlegan.stain.augment import JITTER, LabStatistics, draw_templates, jitter_hed
from bottlegan.stain.macenko import Reference, fit_density_map, sample_density, summarize_reference
from bottlegan.training.adversarial import AdversarialConfig, Preset
from bottlegan.training.fixmatch import FixMatchConfig
from bottlegan.training.task import TrainingConfig

Together = Literal["federated", "local", "pooled"]
Baseline = Literal["macenko", "torchstain", "reinhard", "hed", "randstainna"]

FEDAVGM = StrategyConfig(robust="none")
FEDAVG = StrategyConfig(name="fedavg", robust="none")
"""Plain means, as in the paper, because all labs are honest here."""
ALONE, FIXMATCH = FixMatchConfig(), FixMatchConfig(enabled=True)
PROXIMAL = 0.01


@dataclass(frozen=True)
class TrainingMethod:
    """A row of a table."""

    key: str
    name: str
    mode: Mode = "plain"
    phase1: Phase1Method = "code"
    restained: float | None = None
    baseline: Baseline | None = None
    """The method for stains that replaces BottleGAN."""
    stained: Stained = "own"
    jitter: float = JITTER
    """Strength of HED jitter, if that is the baseline."""
    fixmatch: FixMatchConfig = ALONE
    strategy: StrategyConfig = FEDAVGM
    proximal: float = 0.0
    local_normalization: bool = False
    together: Together = "federated"
    longer: int = 1
    """Number of steps per round, as a multiple of the other rows'."""
    paper: bool = False
    """Whether this row is made for every fold: the paper's rows, and the oracle."""


METHODS = (
    TrainingMethod("fedavgm", "FedAvgM", paper=True),
    TrainingMethod("fedavgm-fixmatch", "FedAvgM + FixMatch", fixmatch=FIXMATCH, paper=True),
    TrainingMethod("bottlegan-normalize", "BottleGAN, normalize", mode="normalize", paper=True),
    TrainingMethod(
        "bottlegan-adversarial", "BottleGAN, normalize, phase 1 adversarial", mode="normalize", phase1="adversarial"
    ),
    TrainingMethod("bottlegan-restain", "BottleGAN, restain", mode="restain", paper=True),
    TrainingMethod("bottlegan-restain-long", "BottleGAN, restain, four times the steps", mode="restain", longer=4),
    TrainingMethod("bottlegan-mixed", "BottleGAN, normalize, half restained", mode="normalize", restained=0.5),
    TrainingMethod(
        "bottlegan-fixmatch", "BottleGAN, normalize + FixMatch", mode="normalize", fixmatch=FIXMATCH, paper=True
    ),
    TrainingMethod("bottlegan-restain-fixmatch", "BottleGAN, restain + FixMatch", mode="restain", fixmatch=FIXMATCH),
    TrainingMethod("oracle", "oracle: all in the reference stain", stained="reference", paper=True),
    TrainingMethod("macenko", "FedAvgM + robust Macenko", baseline="macenko"),
    TrainingMethod("torchstain", "FedAvgM + torchstain Macenko, as people use it", baseline="torchstain"),
    TrainingMethod("hed", "FedAvgM + HED jitter", baseline="hed"),
    TrainingMethod("randstainna", "FedAvgM + RandStainNA", baseline="randstainna"),
    TrainingMethod("fedavg", "FedAvg", strategy=FEDAVG),
    TrainingMethod("fedprox", "FedProx", strategy=StrategyConfig(name="fedprox", robust="none"), proximal=PROXIMAL),
    TrainingMethod("fedbn", "FedBN", strategy=FEDAVG, local_normalization=True),
    TrainingMethod("pooled", "pooled: all images in one place", strategy=FEDAVG, together="pooled"),
    TrainingMethod("local", "local only (labs with labels)", strategy=FEDAVG, together="local"),
)

SWEEP = (
    *(
        TrainingMethod(
            f"momentum-{momentum:g}",
            f"FedAvgM, server momentum {momentum:g}",
            strategy=StrategyConfig(momentum=momentum, robust="none"),
        )
        for momentum in (0.0, 0.1, 0.3, 0.5, 0.7, 0.9)
    ),
    *(
        TrainingMethod(f"hed-{jitter:g}", f"FedAvgM + HED jitter of {jitter:g}", baseline="hed", jitter=jitter)
        for jitter in (0.05, 0.1, 0.2, 0.4)
    ),
    *(
        TrainingMethod(
            f"fixmatch-{threshold:g}-{surest:g}-{weight:g}",
            f"FedAvgM + FixMatch, threshold {threshold:g}, surest {surest:g}, weight {weight:g}",
            fixmatch=FixMatchConfig(enabled=True, threshold=threshold, surest=surest, weight=weight),
        )
        for threshold in (0.9, 0.95)
        for surest in (0.0, 0.5)
        for weight in (0.1, 0.3, 1.0)
    ),
)
"""Settings of the baselines, compared on other labs than the table's: see `FIRST_VALIDATION`."""
FIRST_VALIDATION = 1000
"""First seed of the labs for choosing settings; the table's seeds start at 0."""

SCALES: dict[Scale, Phase2Config] = {
    "smoke": Phase2Config(
        rounds=3, network=NetworkConfig(arguments={"width": 4}), training=TrainingConfig(steps=1, batch=2, crop=32)
    ),
    "cpu": Phase2Config(),
    "paper": Phase2Config(
        network=NetworkConfig(arguments={"width": 48, "depth": 4, "stride": 2}),
        training=TrainingConfig(steps=8, batch=16, crop=224),
    ),
}
ROUNDS = RoundsConfig(least=1, evaluate_every=25, length_bound=10.0, weight_bound=10.0)


def plan_training(method: TrainingMethod, scale: Scale) -> Phase2Config:
    """Return the settings of a row's training."""
    return plan_row(method, SCALES[scale])


def plan_phase1(method: TrainingMethod, scale: Scale) -> Phase1Config:
    """Return the settings of a row's phase 1. Phase 2 needs maps of colors, so published GANs are distilled."""
    few = 2 if scale == "smoke" else 0
    preset: Preset = "paper" if scale == "paper" else "cpu"
    critics = AdversarialConfig(preset=preset, paired=scale == "paper", steps=few, server_steps=few)
    return Phase1Config(method=method.phase1, adversarial=critics)


def plan_row(method: TrainingMethod, base: Phase2Config) -> Phase2Config:
    """Return the training `base` with the row's own settings."""
    return replace(
        base,
        training=replace(base.training, steps=method.longer * base.training.steps),
        mode=method.mode,
        restained=method.restained,
        proximal=method.proximal,
        local_normalization=method.local_normalization,
        fixmatch=method.fixmatch,
    )


def find_stain(method: TrainingMethod, labs: list[LabData], reference_set: list[Pixels]) -> Stain:
    """Return how the labs of a row handle stain."""
    match method.baseline:
        case None:
            return stain_with
        case "macenko":
            reference = summarize_reference([to_batch(image) for image in reference_set])
            fitted = {lab.name: normalize_closed_form(lab.train, reference) for lab in labs}
            return lambda config, styles, own: fitted[own]
        case "torchstain" | "reinhard":
            staining = normalize_each("Macenko" if method.baseline == "torchstain" else "Reinhard", reference_set)
            return lambda config, styles, own: staining
        case "hed":
            jitter = partial(jitter_hed, jitter=method.jitter)
            return lambda config, styles, own: Staining(vary=jitter)
        case "randstainna":
            statistics = reduce(LabStatistics.join, [LabStatistics.of(lab.train) for lab in labs])
            vary = partial(draw_templates, statistics=statistics)
            return lambda config, styles, own: Staining(vary=vary)


def normalize_closed_form(train: list[Pixels], reference: Reference) -> Staining:
    """Return robust Macenko, fitted to all training patches of a lab, as BottleGAN is."""
    density = torch.cat([sample_density(to_batch(levels)) for levels in train], dim=1)
    fitted = fit_density_map(density, reference)

    def normalize(levels: Pixels) -> Pixels:
        return from_batch(fitted(to_batch(levels)))[0]

    return Staining(prepare=normalize, present=normalize)


def normalize_each(kind: Literal["Macenko", "Reinhard"], reference_set: list[Pixels]) -> Staining:
    """Return torchstain as most people use it: fitted to one reference image, each image normalized on its own.

    Images on which it fails stay unchanged.
    """
    normalize = prepare_torchstain(kind)(to_batch(reference_set[0]))

    def apply(levels: Pixels) -> Pixels:
        output = attempt(normalize, to_batch(levels)[0])
        return levels if output is None else from_batch(output[None])[0]

    return Staining(prepare=apply, present=apply)
