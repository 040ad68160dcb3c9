"""The paper's phase 1: each lab trains a GAN between its images and the reference set, the server one on all of them.

Two settings of it. `paper` is as published: 166 steps at a lab and 666 on the server, of 36 crops of 114 px each, wide
generators, and an adversary that is one part in a thousand of the losses. `cpu` trains in a minute on one core, from a
cold start: generators of the prior's form, and critics whose word counts as much as that of the cycle. Hidden layers
would let a lab's generator exchange colors until its mix of tissues is that of the reference set; see
docs/results/training.md.
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
"""What the server trains on the reference set, restained by every lab's generator."""


@document
class AdversarialConfig:
    """Phase 1 with critics."""

    preset: Preset = "cpu"
    """`cpu`: minutes per lab on one core. `paper`: as published."""
    steps: int = 0
    """Number of steps of a lab; 0 for that of the preset."""
    server_steps: int = 0
    """Number of steps of the server; 0 for that of the preset."""
    paired: bool = False
    """Whether the server learns from pairs without critics. Restained images are aligned with the reference set."""

    def __post_init__(self) -> None:
        """Check the numbers."""
        if min(self.steps, self.server_steps) < 0:
            raise ConfigError("adversarial: steps and server_steps must be at least 0, which is as the preset has it")

    @property
    def lab(self) -> TrainConfig:
        """What a lab trains."""
        return _shorten(LAB[self.preset], self.steps)

    @property
    def server(self) -> DistillConfig:
        """What the server makes of the labs' generators."""
        if self.paired:
            return DistillConfig()
        return DistillConfig(adversarial=True, train=_shorten(SERVER[self.preset], self.server_steps))


def _shorten(config: TrainConfig, steps: int) -> TrainConfig:
    return replace(config, steps=steps) if steps else config
