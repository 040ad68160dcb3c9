"""Distillation: one BottleGAN for all clients, made from the one that each of them has trained alone.

A client's own model restains the public reference set. What it makes of an image is aligned with it pixel by pixel, so
the global model learns both directions from pairs, by plain regression. It begins near the end: a style is an affine
map of densities but for what is cut off, and the maps of all clients fit into codes and linear layers before step 0.
The paper trains on the restained images as if they were not aligned, with critics; that is the option `adversarial`.
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
"""Simulated styles that the codes are laid out with, so that they can hold a newcomer's map, too, and not only mixes of
the clients'."""
WORST_CONDITION = 1000.0
"""Of a map of densities, above which it cannot be turned around."""

FLAT = 0.2
"""Contrast that such a map begins with."""


@document
class DistillConfig:
    """How to make one model of many."""

    adversarial: bool = False
    """Whether to train with critics and ignore the pairs, as in the paper."""
    train: TrainConfig = TrainConfig(
        steps=100, warm_steps=50, rate=1e-3, batch=32, pixels=512, adversarial_weight=0.01, check_every=50
    )
    """The global model and its training. Regression uses no critics, crops or warm start."""

    def __post_init__(self) -> None:
        """Check that the model can be trained so."""
        if self.train.model.paradigm != "many-one-many":
            raise ConfigError("distillation ends in one BottleGAN; set `train.model.paradigm` to many-one-many")
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
    """Train one model that knows the style of each teacher under its name; the same seed gives the same bytes.

    Args:
        teachers: Models with one style each.
        reference_set: RGB levels (H, W, 3), which the teachers restain.
        config: How to train.
        seed: Of all random choices.
        progress: Where to report progress.
        checkpoint: Where adversarial training, which takes long, is saved and goes on from.
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
    """Refuse what nothing can be learned from."""
    if not teachers or not reference_set:
        missing = "client's model" if reference_set else "reference image"
        raise InputError(f"there is no {missing} to distill from; give at least one")
    for name, teacher in teachers.items():
        if len(teacher.codes) != 1:
            raise InputError(f"the model of {name} has {len(teacher.codes)} styles; give one with the client's only")


@torch.no_grad()
def restain_images(teacher: BottleGAN, reference_set: Sequence[Pixels]) -> list[Pixels]:
    """Return the reference set in the one style that a teacher knows, as a scanner's levels."""
    code = teacher.codes.table[0]
    return [from_batch(teacher.restain(to_batch(levels), code))[0] for levels in reference_set]


@torch.no_grad()
def restain_pixels(teacher: BottleGAN, reference_set: Sequence[Pixels], content: Tensor, seed: int) -> Tensor:
    """Return the pixels `content` (N, 3, 1, P), drawn from the reference set with `seed`, as the teacher restains them.

    They are rounded to levels, because that is how the images are that the global model will see.
    """
    if sees_pixels_only(TrainConfig(model=teacher.config)):
        return from_levels(to_levels(teacher.restain(content, teacher.codes.table[0])))
    # What surrounds a pixel counts for this teacher. The same seed draws the same pixels.
    images = {"restained": restain_images(teacher, reference_set)}
    return collect(images, 1, seed, torch.device("cpu")).pool


def fit_maps(styled: Tensor, content: Tensor) -> AffineMap:
    """Return the affine maps of densities toward the reference stain, from pairs of pixels.

    Restaining is fitted by least squares, and turned around. Stained tissue fills a plane of densities and says nothing
    of what lies across; as everywhere, the normal of one plane goes to that of the other.

    Args:
        styled: (K, N, 3, 1, P) pixels in each of K styles.
        content: (N, 3, 1, P) the same in the reference stain.
    """
    given = _list_densities(content)
    axes = torch.linalg.eigh(torch.cov(given.T)).eigenvectors[:, 1:].T
    normal = plane_normal(axes[None])[0]
    frame = torch.cat([axes, normal])
    position = torch.cat([given @ axes.T, torch.ones(len(given), 1).to(given)], dim=1)
    across = (given @ normal.T).mean()
    maps = []
    for pixels in styled:
        wanted = _list_densities(pixels)
        # What is black or white may have been cut off, and then lies on no affine map.
        kept = ((wanted > 0) & (wanted < BLACK)).all(dim=1)
        solved = torch.linalg.lstsq(position[kept], wanted[kept], driver="gelsd").solution
        image = plane_normal(solved[None, :2])[0]
        matrix = frame.T @ torch.cat([solved[:2], image])
        bias = solved[2:] - across * image
        if not torch.linalg.cond(matrix) < WORST_CONDITION:
            # A style of no or of one color has no way back. It begins near that color, because a client that is far
            # off pulls at the layers that all share.
            matrix = FLAT * torch.eye(3).to(matrix)
            bias = (wanted - FLAT * given).mean(0, keepdim=True)
        maps.append(AffineMap(matrix[None], bias).inverse())
    return join_maps(maps)


def _list_densities(pixels: Tensor) -> Tensor:
    """Return the densities (N P, 3), float64, of pixels (N, 3, 1, P)."""
    return to_density(pixels.double()).transpose(0, 1).flatten(1).T


def begin(names: Sequence[str], maps: AffineMap, config: TrainConfig, seed: int) -> BottleGAN:
    """Return a model that holds the clients' maps before it has learned anything."""
    known = true_maps([draw_known_style(seed, "distill", index) for index in range(SIMULATED)])
    rows = [str(row) for row in range(SIMULATED + len(names))]
    model = as_bottlegan(build_model(config.model, rows, torch_stream(seed, "model")))
    turned = known.choose(torch.arange(SIMULATED).roll(1)).inverse()  # of other styles: see `begin_prior`
    begin_at_maps(model, StyleMaps(join_maps([known, maps]), join_maps([turned, maps.inverse()])))
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
    """Return the model, which its configuration says is a BottleGAN."""
    if not isinstance(model, BottleGAN):
        raise TypeError(f"expected a BottleGAN, got a {model.config.paradigm} model")
    return model
