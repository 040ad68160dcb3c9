"""The paper's phase 1: each lab trains a GAN between its images and the reference set; the server combines them.

There are two presets. `paper` is as published: 166 steps at a lab and 666 on the server, each with 36 crops of 114 px,
wide generators, and an adversarial loss that is a thousandth of the total. `cpu` trains in a minute on one core from a
cold start, with generators of the prior's form and an adversarial loss that weighs as much as the cycle. Its
generators have no hidden layers: those would let a lab swap colors until its mix of tissues looks like that of the
reference set (docs/results/training.md).
"""

from dataclasses import replace
from typing import Literal

from bottlegan.core.config import document
from bottlegan.core.errors import ConfigError
from bottlegan.models.config import GeneratorConfig, ModelConfig
from bottlegan.training.distill import DistillConfig
from bottlegan.training.gan import PRESETS, TrainConfig

Preset = Literal["cpu", "paper"]

_CPU = TrainConfig(
    model=ModelConfig(code_size=24, generator=GeneratorConfig(depth=0, mapping=0)),
    steps=600,
    warm_steps=0,
    rate=3e-3,
    critic_rate=1e-3,
    batch=16,
    pixels=512,
    crop=64,
    crops=8,
    adversarial="lsgan",
    adversarial_weight=1.0,
    cycle_weight=1.0,
    check_every=100,
    patience=10_000,
)
_PAPER = replace(PRESETS["paper"], rate=1e-3, critic_rate=1e-3, check_every=1)

LAB: dict[Preset, TrainConfig] = {"cpu": _CPU, "paper": replace(_PAPER, steps=166)}
"""What a lab trains."""
SERVER: dict[Preset, TrainConfig] = {
    "cpu": replace(_CPU, steps=800, batch=48, crops=16),
    "paper": replace(_PAPER, steps=666),
}
"""How the server trains on the reference set, restained by every lab's generator."""


@document
class AdversarialConfig:
    """Phase 1 with critics."""

    preset: Preset = "cpu"
    """`cpu`: minutes per lab on one core. `paper`: as published."""
    steps: int = 0
    """Number of steps of a lab; 0 to use the preset's."""
    server_steps: int = 0
    """Number of steps of the server; 0 to use the preset's."""
    paired: bool = False
    """Whether the server learns from pairs without critics. Restained images are aligned with the reference set."""

    def __post_init__(self) -> None:
        """Check the numbers."""
        if min(self.steps, self.server_steps) < 0:
            raise ConfigError("adversarial: steps and server_steps must be at least 0; 0 uses the preset's number")

    @property
    def lab(self) -> TrainConfig:
        """What a lab trains."""
        return _shorten(LAB[self.preset], self.steps)

    @property
    def server(self) -> DistillConfig:
        """How the server distills the labs' generators."""
        if self.paired:
            return DistillConfig()
        return DistillConfig(adversarial=True, train=_shorten(SERVER[self.preset], self.server_steps))


def _shorten(config: TrainConfig, steps: int) -> TrainConfig:
    return replace(config, steps=steps) if steps else config
