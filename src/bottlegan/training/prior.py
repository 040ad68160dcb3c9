"""The prior: one BottleGAN that any style fits into, and the encoders that onboard labs, trained on simulated ones.

Simulation gives the truth for free. The network's linear layers are laid out so that a code holds any pair of affine
maps. An encoder learns to find these maps: a step shows it a few patches of each of many labs, and lowers the error of
normalizing and restaining pixels of which half are of other patches. So it learns what a style is and what is only the
tissue that a lab happens to show. Each time a lab is shown its densities go through another random linear map, which
their surroundings go through as well: a lab is many labs.
"""

import math
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bottlegan.core.config import Count, Positive, document
from bottlegan.core.progress import Progress, Silent
from bottlegan.core.seeding import numpy_stream, torch_stream
from bottlegan.imaging.tensors import from_levels
from bottlegan.models.config import GeneratorConfig, ModelConfig
from bottlegan.models.encoder import Look, Sight, quantiles
from bottlegan.models.paradigms import BottleGAN, build_model, drawing_from
from bottlegan.models.reference_stain import ReferenceStain
from bottlegan.models.style_codes import StyleCodes
from bottlegan.models.style_encoder import StyleEncoder, soft_rgb
from bottlegan.onboarding.fit import LEAST_GLASS
from bottlegan.simulation.lab import PATCHES
from bottlegan.simulation.styles import stain_densities
from bottlegan.stain.affine import AffineMap, StyleMaps
from bottlegan.stain.density import to_density, to_rgb
from bottlegan.stain.macenko import plane_normal
from bottlegan.stain.style import REFERENCE, WIDE, Style, draw_style
from bottlegan.training.lab_samples import KEPT, LabPixels, draw_pixels
from bottlegan.training.warm import begin_at_maps

WORST_CONDITION = 40.0  # of a style's map, above which its two stains are so alike that no map brings it back
DARKEST = math.log(256)  # density of black
LEAST_TISSUE = 24  # pixels of tissue below which a lab is not shown
TILTED = 0.6  # share of the labs that are shown by patches of similar tissue
SHOWN_PATCHES = (1, 1, 2, 4, 6, 8)
LOOK_WEIGHTS = (0.5, 1.0)
READ_WEIGHT = 0.5  # of the amounts that the encoder reads in each pixel, beside what the maps do that follow from them
Step = Callable[[Tensor, dict[str, Tensor]], None]
"""Takes a step down a loss, and reports figures."""
NUCLEAR_WEIGHT = 0.05  # of telling nuclei from the rest
SIDE_WEIGHT = 0.04  # of what the encoder says of itself, beside what its maps do
VARIED = 0.75  # share of the labs shown that are varied
VARIED_STRENGTH, VARIED_CHANNEL, VARIED_CROSSTALK = 0.35, 0.2, 0.09
"""How far: of the logarithms of all densities and of each channel's, and of what a channel takes of another."""


@document
class PriorConfig:
    """How to train a prior."""

    model: ModelConfig = ModelConfig(code_size=24, generator=GeneratorConfig(depth=0, mapping=0))
    """The model. By default a style is an affine map: hidden layers were never worth their risk."""
    known: Count = 4000
    """Number of styles that define the unit of codes: their spread."""
    width: Count = 96
    """Width of the encoder's layers."""
    encoders: Count = 2
    """Number of encoders, each of which learns from labs of its own."""
    labs: Count = 6000
    """Number of simulated labs for each of them."""
    finder_steps: Count = 1000
    """Number of steps that teach the encoder to find glass."""
    steps: Count = 6000
    """Number of steps that teach it styles."""
    batch: Count = 32
    """Number of labs per step."""
    pixels: Count = 2048
    """Number of pixels of each lab that the encoder sees."""
    read: Count = 512
    """Number of these in which it reads amounts of stain."""
    scored: Count = 256
    """Number of pixels of each lab that score its maps."""
    finder_rate: Positive = 5e-3
    rate: Positive = 5e-3


def train_prior(config: PriorConfig, seed: int = 0, progress: Progress | None = None) -> BottleGAN:
    """Train a prior on simulated labs; the same seed gives the same bytes."""
    progress = progress or Silent()
    model = begin_prior(config, seed)
    model.encoders.extend(train_encoder(config, seed + number, progress) for number in range(config.encoders))
    return model.eval()


def begin_prior(config: PriorConfig, seed: int) -> BottleGAN:
    """Return a model whose codes hold the affine maps of any style, without an encoder."""
    names = [str(index) for index in range(config.known)]
    model = build_model(config.model, names, torch_stream(seed, "prior"))
    if not isinstance(model, BottleGAN):
        raise TypeError(f"a prior is a BottleGAN, not a {model.config.paradigm} model")
    known = true_maps([draw_known_style(seed, "known", index) for index in range(config.known)])
    # One direction of a style beside the other of another: found maps are not the exact inverses of each other, and
    # codes laid out as if they were would take the difference for something large.
    begin_at_maps(model, StyleMaps(known, known.choose(torch.arange(config.known).roll(1)).inverse()))
    # The styles were only there to measure codes with; labs add theirs.
    model.codes = StyleCodes([], config.model.code_size, torch_stream(seed, "codes"))
    model.reference = ReferenceStain.of(stain_densities(REFERENCE))
    return model


def train_encoder(config: PriorConfig, seed: int, progress: Progress) -> StyleEncoder:
    """Return an encoder that was trained on the labs of a seed."""
    labs = LabTensors(draw_pixels(seed, config.labs, progress))
    encoder = begin_encoder(config, seed)
    teach_glass(encoder, labs, config, seed, progress)
    teach_styles(encoder, labs, config, seed, progress)
    return encoder


def begin_encoder(config: PriorConfig, seed: int) -> StyleEncoder:
    """Return an encoder that knows nothing yet."""
    with drawing_from(torch_stream(seed, "encoder")):
        return StyleEncoder(stain_densities(REFERENCE), config.width)


def draw_known_style(seed: int, *name: str | int) -> Style:
    """Draw a style that can be told from its images: the first with two stains that are not too much alike."""
    random = numpy_stream(seed, "style", *name)
    while True:
        style = draw_style(random, "simulated", WIDE)
        maps = true_maps([style])
        if bool(maps.matrix.isfinite().all()) and float(torch.linalg.cond(maps.matrix)) < WORST_CONDITION:
            return style


def true_maps(styles: list[Style]) -> AffineMap:
    """Return the affine maps of densities from each artificial style to the reference stain, as far as there is one."""
    stains = torch.stack([style.gamma * stain_densities(style) for style in styles])
    target = stain_densities(REFERENCE)[None]
    source, wanted = (
        torch.cat([each, plane_normal(each / each.norm(dim=-1, keepdim=True).clamp(min=1e-6))], dim=1)
        for each in (stains, target)
    )
    matrix = torch.linalg.pinv(source) @ wanted
    offset = torch.tensor([style.offset for style in styles], dtype=torch.float64)[:, None]
    glass = offset @ stains - torch.tensor([style.white for style in styles], dtype=torch.float64)[:, None].log()
    return AffineMap(matrix, -(glass @ matrix)[:, 0])


class LabTensors:
    """The pixels of all labs, from which a step draws."""

    def __init__(self, pixels: LabPixels) -> None:
        """Take them over, without a copy."""
        self.density = torch.from_numpy(pixels.density)
        self.roughness = torch.from_numpy(pixels.roughness)
        self.truth = torch.from_numpy(pixels.truth)
        self.is_glass = torch.from_numpy(pixels.is_glass)
        self.is_nuclear = torch.from_numpy(pixels.is_nuclear)
        self.is_he = torch.from_numpy(pixels.is_he)

    def __len__(self) -> int:
        """Return the number of labs."""
        return len(self.is_he)

    def choose(self, count: int, random: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """Return which labs (B,) a step shows, by which of their patches (B, shown), and how these are varied."""
        rows = torch.randint(len(self), (count,), generator=random)
        shown = SHOWN_PATCHES[int(torch.randint(len(SHOWN_PATCHES), (), generator=random))]
        return rows, self.choose_patches(count, shown, random), draw_variation(count, random)

    def choose_patches(self, count: int, shown: int, random: torch.Generator) -> Tensor:
        """Return which patches (count, shown) of so many labs are shown; of some, only such of similar tissue."""
        order = torch.rand(count, PATCHES, generator=random)
        tilted = torch.rand(count, 1, generator=random) < TILTED
        return (order + 2.0 * (tilted & (torch.arange(PATCHES) >= PATCHES // 2))).argsort(1)[:, :shown]

    def draw_seen(self, rows: Tensor, patches: Tensor, count: int, random: torch.Generator) -> tuple[Tensor, ...]:
        """Return pixels of the labs `rows` (B,): densities, roughness, truth, which show glass, and which nuclei."""
        at = self._draw_places(rows, patches, count, random)
        density, roughness, truth = self.density[at].float(), self.roughness[at].float(), from_levels(self.truth[at])
        return density, roughness, truth, self.is_glass[at], self.is_nuclear[at]

    def draw_scored(self, rows: Tensor, patches: Tensor, count: int, random: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return densities (B, P, 3) and intensities in the reference stain, half of pixels of any patch of the lab."""
        everything = torch.arange(PATCHES).expand(len(rows), -1)
        ways = [self._draw_places(rows, chosen, count // 2, random) for chosen in (patches, everything)]
        density = torch.cat([self.density[at][:, :, 0] for at in ways], dim=1).float()
        return density, from_levels(torch.cat([self.truth[at] for at in ways], dim=1))

    def _draw_places(self, rows: Tensor, patches: Tensor, count: int, random: torch.Generator) -> tuple[Tensor, ...]:
        which = torch.randint(patches.shape[1], (len(rows), count), generator=random)
        pixels = torch.randint(KEPT, (len(rows), count), generator=random)
        return rows[:, None], patches.gather(1, which), pixels


def teach_glass(encoder: StyleEncoder, labs: LabTensors, config: PriorConfig, seed: int, progress: Progress) -> None:
    """Teach the encoder to tell glass from tissue; later steps do not change that."""
    parameters, name = list(encoder.finder.parameters()), "finding glass"
    steps = descend(parameters, config.finder_steps, config.finder_rate, seed=seed, name=name, progress=progress)
    for step, random in steps:
        rows, patches, variation = labs.choose(config.batch, random)
        density, roughness, _, is_glass, _ = labs.draw_seen(rows, patches, config.read, random)
        logits = encoder.find_glass(vary(density, variation), vary_roughness(roughness, variation))
        loss = F.binary_cross_entropy_with_logits(logits, is_glass.float())
        step(loss, {"glass": loss})
    encoder.finder.requires_grad_(False)


def teach_styles(encoder: StyleEncoder, labs: LabTensors, config: PriorConfig, seed: int, progress: Progress) -> None:
    """Teach the encoder to find the maps of a style, and how far off they are."""
    parameters, name = [*encoder.first.parameters(), *encoder.further.parameters()], "onboarding simulated labs"
    every = max(1, config.pixels // config.read)
    for step, random in descend(parameters, config.steps, config.rate, seed=seed, name=name, progress=progress):
        rows, patches, variation = labs.choose(config.batch, random)
        density, roughness, truth, _, is_nuclear = labs.draw_seen(rows, patches, config.pixels, random)
        sight = see_all(encoder, vary(density, variation), vary_roughness(roughness, variation))
        shown, is_he = sight.is_tissue.sum(1) >= LEAST_TISSUE, labs.is_he[rows]
        styled, content = labs.draw_scored(rows, patches, config.scored, random)
        looks = encoder(sight, every)
        losses = [judge(look, vary(styled, variation), content, shown, is_he) for look in looks]
        readable = sight.is_tissue[:, ::every], shown & is_he
        misread = [
            READ_WEIGHT * judge_amounts(look.amounts @ encoder.basis, truth[:, ::every], *readable)
            + NUCLEAR_WEIGHT * judge_nuclei(look.nuclear, is_nuclear[:, ::every], *readable)
            for look in looks
        ]
        total = sum(
            weight * (loss["total"] + wrong) for weight, loss, wrong in zip(LOOK_WEIGHTS, losses, misread, strict=True)
        )
        step(torch.as_tensor(total), losses[-1])


def draw_variation(count: int, random: torch.Generator) -> Tensor:
    """Draw linear maps (B, 3, 3) of densities: stronger or weaker stain, other channels, crosstalk; some are none."""

    def spread(scale: float, *shape: int) -> Tensor:
        return scale * torch.randn(count, *shape, generator=random)

    matrix = torch.exp(spread(VARIED_STRENGTH, 1, 1) + spread(VARIED_CHANNEL, 1, 3))
    matrix = matrix * (torch.eye(3) + spread(VARIED_CROSSTALK, 3, 3))
    varied = torch.rand(count, 1, 1, generator=random) < VARIED
    return torch.where(varied, matrix, torch.eye(3))


def vary(density: Tensor, variation: Tensor) -> Tensor:
    """Return densities (B, ..., 3) as labs with other stain would have them; means of densities map alike."""
    return (density.flatten(1, -2) @ variation).clamp(0, DARKEST).view(density.shape)


def vary_roughness(roughness: Tensor, variation: Tensor) -> Tensor:
    """Return how much densities (B, P) vary then, if all channels do together."""
    return roughness * variation.sum((1, 2))[:, None] / 3


@torch.no_grad()
def see_all(encoder: StyleEncoder, density: Tensor, roughness: Tensor) -> Sight:
    """Return what the encoder is given of B labs, of which pixels (B, P, VIEWS, 3) are seen."""
    is_glass = encoder.find_glass(density, roughness) > 0
    sees_glass = is_glass.sum(1) >= max(4, LEAST_GLASS * density.shape[1])
    glass = quantiles(density[:, :, 0], is_glass, (0.5,))[:, :, 0]
    return Sight(density, roughness, ~is_glass, torch.where(sees_glass[:, None], glass, 0), sees_glass)


def judge(look: Look, styled: Tensor, content: Tensor, shown: Tensor, is_he: Tensor) -> dict[str, Tensor]:
    """Return the losses of what the encoder says of B labs.

    Args:
        look: What it says.
        styled: (B, P, 3) densities of pixels of the labs.
        content: (B, P, 3) intensities of the same in the reference stain.
        shown: (B,) which labs show enough tissue.
        is_he: (B,) which labs are H&E: the maps of others do not matter.
    """
    normalized = (soft_rgb(look.maps.normalize(styled)) - content).square().mean((1, 2))
    restained = (soft_rgb(look.maps.restain(to_density(content))) - to_rgb(styled)).square().mean((1, 2))
    errors = torch.stack([normalized, restained], dim=1)
    weight = (shown & is_he).float() / (shown & is_he).sum().clamp(min=1)
    # The root lets a lab that is nearly right weigh as much as one that is far off; the square guards the worst.
    maps = (weight @ ((errors + 1e-5).sqrt() + 2 * errors)).sum()
    off = look.log_errors - 0.5 * errors.detach().clamp(min=1e-6).log()
    surprise = F.binary_cross_entropy_with_logits(look.is_he, is_he.float(), reduction="none")
    sides = (weight @ off.square()).sum() + (surprise * shown).sum() / shown.sum().clamp(min=1)
    mean = weight @ errors
    return {"total": maps + SIDE_WEIGHT * sides, "normalize": mean[0], "restain": mean[1], "sides": sides}


def judge_amounts(density: Tensor, truth: Tensor, is_tissue: Tensor, chosen: Tensor) -> Tensor:
    """Return how far densities (B, P, 3) that were read in tissue are off the true intensities, in chosen labs (B,)."""
    errors = (soft_rgb(density) - truth).square().mean(2) * is_tissue
    mean = errors.sum(1) / is_tissue.sum(1).clamp(min=1)
    return ((mean + 1e-5).sqrt() * chosen).sum() / chosen.sum().clamp(min=1)


def judge_nuclei(nuclear: Tensor, truth: Tensor, is_tissue: Tensor, chosen: Tensor) -> Tensor:
    """Return how badly nuclei are told from other tissue by logits (B, P), in chosen labs (B,)."""
    surprise = F.binary_cross_entropy_with_logits(nuclear, truth.float(), reduction="none")
    counted = (is_tissue & chosen[:, None]).float()
    return (surprise * counted).sum() / counted.sum().clamp(min=1)


def descend(
    parameters: list[nn.Parameter], steps: int, rate: float, *, seed: int, name: str, progress: Progress
) -> Iterator[tuple[Step, torch.Generator]]:
    """Yield, for each step, what takes it, given the loss and figures to report, and its random numbers."""
    # Muon needs a fraction of the steps that Adam does, and is for matrices only.
    matrices, vectors = ([each for each in parameters if (each.ndim == 2) is wanted] for wanted in (True, False))
    optimizers = [
        torch.optim.Muon(matrices, rate, weight_decay=0, adjust_lr_fn="match_rms_adamw"),
        torch.optim.Adam(vectors, rate, betas=(0.9, 0.98)),
    ]
    for number in progress.track(range(steps), name, steps):
        warm = min(1.0, 20 * (number + 1) / steps)
        for group in (group for optimizer in optimizers for group in optimizer.param_groups):
            group["lr"] = rate * warm * 0.5 * (1 + math.cos(math.pi * number / steps))

        def step(loss: Tensor, figures: dict[str, Tensor], number: int = number) -> None:
            for parameter in parameters:
                parameter.grad = None
            loss.backward()
            nn.utils.clip_grad_norm_(parameters, 1.0)
            for optimizer in optimizers:
                optimizer.step()
            if number % 100 == 99:
                progress.event("step", name=name, step=number + 1, **{key: v.item() for key, v in figures.items()})

        yield step, torch_stream(seed, name, number)
