"""Training a BottleGAN: unpaired, between the images of many styles and a reference set.

There is one loop. It may begin with a warm start, in which the generators learn the maps that onboarding finds; after
that, each step lowers the paper's losses. The best model by a held-out criterion, which needs no pairs, is returned.
Each step draws its random numbers from a stream named after the step, so an interrupted run ends with the same bytes
as an uninterrupted one.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from bottlegan.core.config import Amount, Count, NotNegative, Positive, document
from bottlegan.core.progress import Progress, Silent
from bottlegan.core.seeding import torch_stream
from bottlegan.imaging.files import Pixels
from bottlegan.losses import (
    Adversarial,
    critic_loss,
    cycle_loss,
    deception_loss,
    gradient_penalty,
    identity_loss,
    profile_distance,
)
from bottlegan.models.config import GeneratorConfig, ModelConfig
from bottlegan.models.critics import Critic, CriticConfig
from bottlegan.models.paradigms import StyleModel, build_model, drawing_from
from bottlegan.models.reference_stain import ReferenceStain
from bottlegan.models.style_codes import add_noise
from bottlegan.onboarding.labs import describe_reference, onboard_all
from bottlegan.stain.affine import StyleMaps
from bottlegan.stain.density import map_images
from bottlegan.training.checkpoint import load_checkpoint, save_checkpoint
from bottlegan.training.samples import ColorProfile, Images, collect, match_content
from bottlegan.training.warm import begin_at_maps

MATCHES = 8
"""Number of reference images of similar tissue that a normalized image is compared with."""


@document
class TrainConfig:
    """How to train."""

    model: ModelConfig = ModelConfig()
    critic: CriticConfig = CriticConfig()
    steps: Count = 800
    warm_steps: Amount = 800
    """Number of initial steps that learn the maps found by onboarding; 0 for a cold start."""
    begin_at_maps: bool = True
    """Whether the generators contain these maps before the first step, if their form allows it."""
    rate: Positive = 3e-3
    """Learning rate of generators and codes."""
    falling: bool = True
    """Whether the rate falls to 0 along a cosine, or stays constant."""
    critic_rate: Positive = 2e-4
    batch: Count = 48
    """Number of images per step."""
    pixels: Count = 1024
    """Number of pixels per image, when no critic needs whole crops."""
    crop: Count = 64
    """Side of the crops that the critics see."""
    crops: Count = 8
    """Number of crops per step."""
    code_noise: NotNegative = 0.01
    adversarial: Adversarial = "lsgan"
    adversarial_weight: NotNegative = 0.0
    cycle_weight: NotNegative = 1.0
    identity_weight: NotNegative = 0.0
    penalty_weight: NotNegative = 10.0
    """Weight of the critics' gradient penalty, for the Wasserstein loss only."""
    check_every: Count = 100
    """Number of steps between checks of the held-out criterion."""
    patience: Count = 6
    """Number of checks without improvement after which training stops."""
    select: Literal["best", "last"] = "best"
    """Which model to return: the best by the held-out criterion, or the last."""


PRESETS = {
    # There are no steps after the warm start: in the few trials made, cycle and adversarial losses after it made real
    # styles worse (docs/results/training.md).
    "default": TrainConfig(),
    # As published, except that the critics see other crops than the other losses.
    "paper": TrainConfig(
        model=ModelConfig(
            code_size=128,
            generator=GeneratorConfig(
                kind="published", width=128, depth=4, statistics="instance", skip=False, mapping=128
            ),
        ),
        critic=CriticConfig(width=64, depth=4, published=True),
        steps=5000,
        warm_steps=0,
        rate=1e-4,
        falling=False,
        critic_rate=1e-4,
        batch=36,
        crop=114,
        crops=36,
        adversarial="linear",
        adversarial_weight=1.0,
        cycle_weight=1000.0,
        identity_weight=1000.0,
        patience=10_000,
        select="last",
    ),
}


@dataclass
class TrainingRun:
    """Everything that changes during training."""

    model: StyleModel
    critics: nn.ModuleDict
    generator_optimizer: torch.optim.Adam
    critic_optimizer: torch.optim.Adam
    kept: dict[str, Tensor]
    """The model's tensors at the best value of the held-out criterion."""
    step: int = 0
    best: float = math.inf
    stale: int = 0


@dataclass(frozen=True)
class TrainingInputs:
    """Everything that does not change during training."""

    config: TrainConfig
    seed: int
    styled: Images
    reference: Images
    teachers: StyleMaps | None
    """The maps of each style; only with a warm start."""
    reference_stain: ReferenceStain
    profile: ColorProfile
    reference_profiles: Tensor
    """The color profile of each reference image."""


@dataclass(frozen=True)
class View:
    """What one step sees: n styled images with their codes, and n reference images."""

    styled: Tensor
    reference: Tensor
    code: Tensor
    styles: Tensor
    """(n,) rows of the styled images' styles in the table of codes."""


def train(
    labs: Mapping[str, Sequence[Pixels]],
    reference: Sequence[Pixels],
    config: TrainConfig,
    seed: int = 0,
    *,
    progress: Progress | None = None,
    checkpoint: Path | None = None,
    device: str = "cpu",
) -> StyleModel:
    """Train a model between the images of each lab and the reference set, all uint8 (H, W, 3).

    With a `checkpoint` path, the run is saved there after every check of the held-out criterion, and resumed from
    there if the file exists.
    """
    progress = progress or Silent()
    setting = prepare(labs, reference, config, seed, device=torch.device(device), progress=progress)
    run = start(list(labs), setting)
    if checkpoint is not None and checkpoint.exists():
        load_checkpoint(checkpoint, run, config, seed)
    for step in progress.track(range(run.step, config.steps), "training", config.steps - run.step):
        losses = advance(run, setting, step)
        run.step = step + 1
        if run.step % config.check_every and run.step < config.steps:
            continue
        distance = measure(run.model, setting)
        progress.event("step", step=run.step, held_out=distance, **losses)
        if run.step >= config.warm_steps:
            remember(run, distance, config)
        if checkpoint is not None:
            save_checkpoint(checkpoint, run, config, seed)
        if run.stale >= config.patience:
            break
    run.model.load_state_dict(run.kept)
    return run.model.eval()


def remember(run: TrainingRun, distance: float, config: TrainConfig) -> None:
    """Keep the model if it is the best so far or the last is wanted; count the checks without improvement."""
    better = distance < run.best
    if better or config.select == "last":
        run.kept = copy_tensors(run.model)
    run.best, run.stale = min(distance, run.best), 0 if better else run.stale + 1


def copy_tensors(model: StyleModel) -> dict[str, Tensor]:
    """Return copies of the model's tensors."""
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def prepare(
    labs: Mapping[str, Sequence[Pixels]],
    reference: Sequence[Pixels],
    config: TrainConfig,
    seed: int,
    *,
    device: torch.device,
    progress: Progress,
) -> TrainingInputs:
    """Return everything that training needs from the images."""
    styled = collect(labs, config.crop, seed, device)
    public = collect({"the reference set": reference}, config.crop, seed + 1, device)
    stain = describe_reference(reference)
    profile = ColorProfile(stain.stains)
    teachers = onboard_all(labs, stain, progress) if config.warm_steps else None
    return TrainingInputs(config, seed, styled, public, teachers, stain.to(device), profile, profile(public.pool))


def start(names: Sequence[str], setting: TrainingInputs) -> TrainingRun:
    """Return a run at step 0."""
    config, device = setting.config, setting.styled.pool.device
    model = build_model(config.model, names, torch_stream(setting.seed, "model"))
    with drawing_from(torch_stream(setting.seed, "critics")):
        critics = nn.ModuleDict(
            {"content": Critic(config.critic), "style": Critic(config.critic, model.config.code_size)}
        ).to(device)
    if setting.teachers is not None:
        begin_at_maps(model, setting.teachers, config.begin_at_maps)
    model.reference = setting.reference_stain
    model.to(device)
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return TrainingRun(
        model,
        critics,
        torch.optim.Adam(trainable, config.rate, betas=(0.5, 0.99)),
        torch.optim.Adam(critics.parameters(), config.critic_rate, betas=(0.5, 0.99)),
        copy_tensors(model),
    )


def advance(run: TrainingRun, setting: TrainingInputs, step: int) -> dict[str, float]:
    """Take one step and return its losses."""
    config = setting.config
    random = torch_stream(setting.seed, "step", step)
    for group in run.generator_optimizer.param_groups:
        group["lr"] = config.rate * (0.5 * (1 + math.cos(math.pi * step / config.steps)) if config.falling else 1)
    if setting.teachers is not None and step < config.warm_steps:
        losses = warm_losses(run.model, draw(run.model, setting, random), setting.teachers)
    else:
        losses = unpaired_losses(run.model, draw(run.model, setting, random), config)
        if config.adversarial_weight:
            losses["adversarial"] = adversarial_step(run, setting, random)
    run.generator_optimizer.zero_grad()
    torch.stack(list(losses.values())).sum().backward()
    run.generator_optimizer.step()
    return {name: loss.item() for name, loss in losses.items()}


def draw(model: StyleModel, setting: TrainingInputs, random: torch.Generator, crops: bool = False) -> View:
    """Draw what a step sees: pixels, or crops if a critic needs them or a generator looks beyond the pixel."""
    config, styled, reference = setting.config, setting.styled, setting.reference
    crops = crops or not sees_pixels_only(config)
    count = config.crops if crops else config.batch
    images = torch.randint(len(styled), (count,), generator=random)
    others = torch.randint(len(reference), (count,), generator=random)
    styles = styled.styles[images]
    code = add_noise(model.codes.table[styles], config.code_noise, random)
    if crops:
        x, c = styled.crops(images, config.crop, random), reference.crops(others, config.crop, random)
    else:
        x, c = styled.pixels(images, config.pixels, random), reference.pixels(others, config.pixels, random)
    return View(x, c, code, styles)


def sees_pixels_only(config: TrainConfig) -> bool:
    """Return whether the generators map every pixel on its own."""
    return config.model.generator.kind == "pixel" and config.model.generator.statistics == "frozen"


def warm_losses(model: StyleModel, view: View, teachers: StyleMaps) -> dict[str, Tensor]:
    """Return |G_n(x) - T_n(x)|^2 and |G_r(c) - T_r(c)|^2, where T are the maps that onboarding found for the style."""
    there, back = teachers.choose(view.styles)
    return {
        "normalize": (model.normalize(view.styled, view.code) - map_images(there, view.styled)).square().mean(),
        "restain": (model.restain(view.reference, view.code) - map_images(back, view.reference)).square().mean(),
    }


def unpaired_losses(model: StyleModel, view: View, config: TrainConfig) -> dict[str, Tensor]:
    """Return the weighted losses that need no critic: cycle and identity."""
    x, c, code = view.styled, view.reference, view.code
    content, styled = model.normalize(x, code), model.restain(c, code)
    there_and_back = cycle_loss(model.restain(content, code), x) + cycle_loss(model.normalize(styled, code), c)
    losses = {"cycle": config.cycle_weight * there_and_back}
    if config.identity_weight:
        same = identity_loss(model.normalize(c, code), c) + identity_loss(model.restain(x, code), x)
        losses["identity"] = config.identity_weight * same
    return losses


def adversarial_step(run: TrainingRun, setting: TrainingInputs, random: torch.Generator) -> Tensor:
    """Train both critics on one view, then return the generators' weighted loss against them."""
    config, model, critics = setting.config, run.model, run.critics
    view = draw(model, setting, random, crops=True)
    content, styled = model.normalize(view.styled, view.code), model.restain(view.reference, view.code)
    code = view.code.detach()

    def judge_style(images: Tensor) -> Tensor:
        return critics["style"](images, code)

    duels = ((critics["content"], view.reference, content), (judge_style, view.styled, styled))
    # On a GPU, the critics run in half precision. The generators do not: colors would be rounded to 8 bits or fewer.
    with torch.autocast(content.device.type, torch.bfloat16, enabled=content.is_cuda):
        loss = torch.zeros(())
        for critic, real, fake in duels:
            loss = loss + critic_loss(config.adversarial, critic(real), critic(fake.detach()))
            if config.adversarial == "wasserstein":
                mix = torch.rand(len(real), 1, 1, 1, generator=random).to(real)
                loss = loss + config.penalty_weight * gradient_penalty(critic, real, fake, mix)
        run.critic_optimizer.zero_grad()
        loss.backward()
        run.critic_optimizer.step()
        deceived = [deception_loss(config.adversarial, critic(fake)) for critic, _, fake in duels]
    return config.adversarial_weight * torch.stack(deceived).sum()


@torch.no_grad()
def measure(model: StyleModel, setting: TrainingInputs) -> float:
    """Return the held-out criterion: the distance between normalized colors and those of similar tissue."""
    styled, config = setting.styled, setting.config
    if sees_pixels_only(config):
        images = styled.held_out()
    else:
        images = styled.crops(torch.arange(len(styled)), config.crop, torch_stream(setting.seed, "held out"))
    profiles = setting.profile(model.normalize(images, model.codes.table[styled.styles]))
    colors = setting.reference_profiles
    return profile_distance(profiles, colors, match_content(profiles, colors, MATCHES)).mean().item()
