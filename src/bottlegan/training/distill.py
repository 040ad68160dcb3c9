"""Distillation: one BottleGAN for all clients, learned from the models that the clients trained on their own.

A client's model restains the public reference set. Each restained image is aligned with the original pixel by pixel,
so the global model learns both directions from pairs, by plain regression. Training starts near its goal: apart from
clipped pixels, a style is an affine map of densities, and the model holds the maps of all clients before step 0. The
paper ignores that the images are aligned and trains with critics; the option `adversarial` does the same.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from bottlegan.core.config import document
from bottlegan.core.errors import ConfigError, InputError
from bottlegan.core.progress import Progress, Silent
from bottlegan.core.seeding import torch_stream
from bottlegan.imaging.files import Pixels
from bottlegan.imaging.tensors import from_batch, from_levels, to_batch, to_levels
from bottlegan.models.paradigms import BottleGAN, StyleModel, build_model
from bottlegan.models.style_codes import StyleCodes, add_noise
from bottlegan.onboarding.labs import describe_reference
from bottlegan.stain.affine import AffineMap, StyleMaps, join_maps
from bottlegan.stain.density import BLACK, to_density
from bottlegan.stain.macenko import plane_normal
from bottlegan.training.gan import TrainConfig, sees_pixels_only, train
from bottlegan.training.prior import draw_known_style, true_maps
from bottlegan.training.samples import collect
from bottlegan.training.warm import begin_at_maps

SIMULATED = 64
"""Number of simulated styles that help to lay out the codes, so that there is room for newcomers, not only for mixes
of the clients' styles."""
WORST_CONDITION = 1000.0
"""Condition number above which a map of densities cannot be inverted."""

FLAT = 0.2
"""Initial contrast of a style whose map cannot be inverted."""


@document
class DistillConfig:
    """How to distill one model from many."""

    adversarial: bool = False
    """Whether to train with critics and ignore the pairs, as in the paper."""
    train: TrainConfig = TrainConfig(
        steps=100, warm_steps=50, rate=1e-3, batch=32, pixels=512, adversarial_weight=0.01, check_every=50
    )
    """The global model and its training. Without `adversarial`, critics, crops and warm start are not used."""

    def __post_init__(self) -> None:
        """Check that the model can be trained this way."""
        if self.train.model.paradigm != "many-one-many":
            raise ConfigError("distillation makes one BottleGAN; set `train.model.paradigm` to many-one-many")
        if self.train.model.generator.kind != "pixel" and not self.adversarial:
            raise ConfigError("only pixel generators learn from single pixels; set `adversarial`, or another `kind`")


def distill(
    teachers: Mapping[str, BottleGAN],
    reference_set: Sequence[Pixels],
    config: DistillConfig,
    seed: int = 0,
    *,
    progress: Progress | None = None,
    checkpoint: Path | None = None,
) -> BottleGAN:
    """Train one model that holds each teacher's style under its name; the same seed gives the same bytes.

    Args:
        teachers: Models with one style each.
        reference_set: RGB levels (H, W, 3), which the teachers restain.
        config: How to train.
        seed: Seed of all random choices.
        progress: Where to report progress.
        checkpoint: Where adversarial training is saved, and resumed from, because it takes long.
    """
    progress = progress or Silent()
    check_teachers(teachers, reference_set)
    tracked = progress.track(teachers.items(), "restaining the reference set", len(teachers))
    if config.adversarial:
        restained = {name: restain_images(teacher, reference_set) for name, teacher in tracked}
        trained = train(restained, reference_set, config.train, seed, progress=progress, checkpoint=checkpoint)
        return as_bottlegan(trained)
    content = collect({"the reference set": reference_set}, 1, seed, torch.device("cpu")).pool
    styled = torch.stack([restain_pixels(teacher, reference_set, content, seed) for _, teacher in tracked])
    model = begin(list(teachers), fit_maps(styled, content), config.train, seed)
    model.reference = describe_reference(reference_set)
    regress(model, styled, content, config.train, seed=seed, progress=progress)
    return model.eval()


def check_teachers(teachers: Mapping[str, BottleGAN], reference_set: Sequence[Pixels]) -> None:
    """Refuse input that nothing can be learned from."""
    if not teachers or not reference_set:
        missing = "client's model" if reference_set else "reference image"
        raise InputError(f"there is no {missing} to distill from; give at least one")
    for name, teacher in teachers.items():
        if len(teacher.codes) != 1:
            raise InputError(f"the model of {name} has {len(teacher.codes)} styles; give one with the client's only")


@torch.no_grad()
def restain_images(teacher: BottleGAN, reference_set: Sequence[Pixels]) -> list[Pixels]:
    """Return the reference set in the teacher's only style, as uint8 images."""
    code = teacher.codes.table[0]
    return [from_batch(teacher.restain(to_batch(levels), code))[0] for levels in reference_set]


@torch.no_grad()
def restain_pixels(teacher: BottleGAN, reference_set: Sequence[Pixels], content: Tensor, seed: int) -> Tensor:
    """Restain the pixels `content` (N, 3, 1, P), which were drawn from the reference set with `seed`.

    The result is rounded to 8 bits, like the images that the global model will see.
    """
    if sees_pixels_only(TrainConfig(model=teacher.config)):
        return from_levels(to_levels(teacher.restain(content, teacher.codes.table[0])))
    # This teacher looks at a pixel's surroundings, so it restains whole images. The same seed draws the same pixels.
    images = {"restained": restain_images(teacher, reference_set)}
    return collect(images, 1, seed, torch.device("cpu")).pool


def fit_maps(styled: Tensor, content: Tensor) -> AffineMap:
    """Return the affine maps of densities toward the reference stain, from pairs of pixels.

    The map that restains is fitted by least squares, then inverted. Stained tissue fills a plane of densities and says
    nothing about the direction across it; as everywhere, the normal of one plane goes to the normal of the other.

    Args:
        styled: (K, N, 3, 1, P) pixels in each of K styles.
        content: (N, 3, 1, P) the same in the reference stain.
    """
    content_densities = _list_densities(content)
    axes = torch.linalg.eigh(torch.cov(content_densities.T)).eigenvectors[:, 1:].T
    normal = plane_normal(axes[None])[0]
    frame = torch.cat([axes, normal])
    position = torch.cat(
        [content_densities @ axes.T, torch.ones(len(content_densities), 1).to(content_densities)], dim=1
    )
    across = (content_densities @ normal.T).mean()
    maps = []
    for pixels in styled:
        style_densities = _list_densities(pixels)
        # Black and white pixels may have been clipped, and then no affine map fits them.
        kept = ((style_densities > 0) & (style_densities < BLACK)).all(dim=1)
        solved = torch.linalg.lstsq(position[kept], style_densities[kept], driver="gelsd").solution
        image = plane_normal(solved[None, :2])[0]
        matrix = frame.T @ torch.cat([solved[:2], image])
        bias = solved[2:] - across * image
        if not torch.linalg.cond(matrix) < WORST_CONDITION:
            # A style with at most one color cannot be inverted. Its map begins near that color, because a client that
            # is far off would distort the layers that all clients share.
            matrix = FLAT * torch.eye(3).to(matrix)
            bias = (style_densities - FLAT * content_densities).mean(0, keepdim=True)
        maps.append(AffineMap(matrix[None], bias).inverse())
    return join_maps(maps)


def _list_densities(pixels: Tensor) -> Tensor:
    """Return the densities (N P, 3), float64, of pixels (N, 3, 1, P)."""
    return to_density(pixels.double()).transpose(0, 1).flatten(1).T


def begin(names: Sequence[str], maps: AffineMap, config: TrainConfig, seed: int) -> BottleGAN:
    """Return a model that holds the clients' maps before any training."""
    simulated = true_maps([draw_known_style(seed, "distill", index) for index in range(SIMULATED)])
    rows = [str(row) for row in range(SIMULATED + len(names))]
    model = as_bottlegan(build_model(config.model, rows, torch_stream(seed, "model")))
    partners = simulated.choose(torch.arange(SIMULATED).roll(1)).inverse()  # of other styles: see `begin_prior`
    begin_at_maps(model, StyleMaps(join_maps([simulated, maps]), join_maps([partners, maps.inverse()])))
    clients = StyleCodes(names, config.model.code_size, torch_stream(seed, "codes"))
    with torch.no_grad():
        clients.table.copy_(model.codes.table[SIMULATED:])
    model.codes = clients
    return model


def regress(
    model: BottleGAN, styled: Tensor, content: Tensor, config: TrainConfig, *, seed: int, progress: Progress
) -> None:
    """Lower |G_n(x) - c|^2 + |G_r(c) - x|^2 over pairs of pixels x (K, N, 3, 1, P) and c (N, 3, 1, P)."""
    optimizer = torch.optim.Adam(model.parameters(), config.rate, betas=(0.9, 0.99))
    for step in progress.track(range(config.steps), "distilling", config.steps):
        random = torch_stream(seed, "step", step)
        for group in optimizer.param_groups:
            group["lr"] = config.rate * 0.5 * (1 + math.cos(math.pi * step / config.steps))
        clients = torch.randint(len(styled), (config.batch,), generator=random)
        images = torch.randint(len(content), (config.batch,), generator=random)
        columns = torch.randint(content.shape[-1], (config.pixels,), generator=random)
        x, c = (pixels[..., columns] for pixels in (styled[clients, images], content[images]))
        code = add_noise(model.codes.table[clients], config.code_noise, random)
        losses = {
            "normalize": (model.normalize(x, code) - c).square().mean(),
            "restain": (model.restain(c, code) - x).square().mean(),
        }
        optimizer.zero_grad()
        torch.stack(list(losses.values())).sum().backward()
        optimizer.step()
        if (step + 1) % config.check_every == 0:
            progress.event("step", step=step + 1, **{name: loss.item() for name, loss in losses.items()})


def as_bottlegan(model: StyleModel) -> BottleGAN:
    """Return the model, which must be a BottleGAN."""
    if not isinstance(model, BottleGAN):
        raise TypeError(f"expected a BottleGAN, got a {model.config.paradigm} model")
    return model
