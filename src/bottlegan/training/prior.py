"""The prior: one BottleGAN that knows any style, trained on simulated ones. A lab is then only a code.

Simulation gives the truth for free. Every step renders procedural tissue in styles it has never used before, and in the
reference stain; a style's code is not learned but computed, from the affine map of densities that the style is but for
what a scanner cuts off, rounds and bends. The generators' residual layers learn what that map leaves.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from bottlegan.config import document
from bottlegan.data.synthetic import draw_tissue
from bottlegan.models.paradigms import BottleGAN, ModelConfig, build_model
from bottlegan.models.pixel import GeneratorConfig
from bottlegan.models.style_codes import StyleCodes, add_noise
from bottlegan.progress import Progress, Silent
from bottlegan.seeding import numpy_stream, torch_stream
from bottlegan.slides.image import Levels, from_batch, to_batch
from bottlegan.stain.density import from_levels, to_levels
from bottlegan.stain.macenko import DensityMap, plane_normal
from bottlegan.stain.simulate import REFERENCE, WIDE, Style, draw_style, render, stain_densities, unmix
from bottlegan.training.samples import POOL, describe_reference
from bottlegan.training.warm import begin_at_maps, encode_maps, linear_layers

WORST_CONDITION = 40.0  # of a style's map, above which its two stains are so alike that no map brings it back


@document
class PriorConfig:
    """How to train a prior."""

    model: ModelConfig = ModelConfig(code_size=24, generator=GeneratorConfig(width=32, depth=2, mapping=64))
    tissues: int = 160
    """Images of procedural tissue, which are the reference set too."""
    size: int = 384
    """Of each, in pixels."""
    known: int = 4000
    """Styles whose spread the codes are measured in."""
    steps: int = 1500
    batch: int = 32
    """Styles a step."""
    pixels: int = 1024
    """Of each."""
    rate: float = 2e-3
    code_noise: float = 0.02
    """Little: with as much as fitted codes are off, the generators learned to hedge, and real styles came out pale."""


def train_prior(
    config: PriorConfig, seed: int = 0, real: Sequence[Levels] | None = None, progress: Progress | None = None
) -> BottleGAN:
    """Train a prior on simulated styles of procedural tissue; the same seed gives the same bytes.

    With `real` images in the reference stain, RGB levels (H, W, 3), their tissue is used instead.
    """
    progress = progress or Silent()
    if real is None:
        indices = progress.track(range(config.tissues), "drawing tissue", config.tissues)
        tissue = [draw_tissue(seed, index, config.size).concentration for index in indices]
        reference = [from_batch(render(concentration[None], REFERENCE))[0] for concentration in tissue]
    else:
        tissue = [unmix(to_batch(levels), REFERENCE)[0] for levels in real]
        reference = list(real)
    model = begin_prior(config, reference, seed)
    pool = torch.stack([_thin(concentration, seed, index) for index, concentration in enumerate(tissue)])
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], config.rate, betas=(0.9, 0.99))
    for step in progress.track(range(config.steps), "training the prior", config.steps):
        for group in optimizer.param_groups:
            group["lr"] = config.rate * 0.5 * (1 + math.cos(math.pi * step / config.steps))
        styled, content, code = draw_pairs(model, pool, config, seed, step)
        losses = {
            "normalize": (model.normalize(styled, code) - content).square().mean(),
            "restain": (model.restain(content, code) - styled).square().mean(),
        }
        optimizer.zero_grad()
        torch.stack(list(losses.values())).sum().backward()
        optimizer.step()
        if step % 100 == 99:
            progress.event("step", step=step + 1, **{name: loss.item() for name, loss in losses.items()})
    return model.eval()


def begin_prior(config: PriorConfig, reference: Sequence[Levels], seed: int) -> BottleGAN:
    """Return a model that holds the affine map of any style, and the statistics of the reference set."""
    names = [str(index) for index in range(config.known)]
    model = build_model(config.model, names, torch_stream(seed, "prior"))
    if not isinstance(model, BottleGAN):
        raise TypeError(f"a prior is a BottleGAN, not a {model.config.paradigm} model")
    begin_at_maps(model, true_maps([draw_known_style(seed, "known", index) for index in range(config.known)]))
    # The styles were only there to measure codes with; labs add theirs.
    model.codes = StyleCodes([], config.model.code_size, torch_stream(seed, "codes"))
    for layer in linear_layers(model):
        if layer is not None:
            layer.requires_grad_(False)  # else codes would no longer be what `encode_maps` says
    model.reference = describe_reference(reference, seed)
    return model


def draw_known_style(seed: int, *name: str | int) -> Style:
    """Draw a style that can be told from its images: the first with two stains that are not too much alike."""
    random = numpy_stream(seed, "style", *name)
    while True:
        style = draw_style(random, "simulated", WIDE)
        maps = true_maps([style])
        if bool(maps.matrix.isfinite().all()) and float(torch.linalg.cond(maps.matrix)) < WORST_CONDITION:
            return style


def true_maps(styles: list[Style]) -> DensityMap:
    """Return the affine maps of densities from each style to the reference stain, as far as there is one."""
    stains = torch.stack([style.gamma * stain_densities(style) for style in styles])
    target = stain_densities(REFERENCE)[None]
    source, wanted = (
        torch.cat([each, plane_normal(each / each.norm(dim=-1, keepdim=True).clamp(min=1e-6))], dim=1)
        for each in (stains, target)
    )
    matrix = torch.linalg.pinv(source) @ wanted
    offset = torch.tensor([style.offset for style in styles], dtype=torch.float64)[:, None]
    glass = offset @ stains - torch.tensor([style.white for style in styles], dtype=torch.float64)[:, None].log()
    return DensityMap(matrix, -(glass @ matrix)[:, 0], ())


def draw_pairs(
    model: BottleGAN, pool: Tensor, config: PriorConfig, seed: int, step: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return pixels (B, 3, 1, P) in new styles, the same in the reference stain, and the styles' codes."""
    random = torch_stream(seed, "pairs", step)
    styles = [draw_known_style(seed, "step", step, index) for index in range(config.batch)]
    rows = torch.randint(len(pool), (config.batch,), generator=random)
    columns = torch.randint(pool.shape[-1], (config.pixels,), generator=random)
    content = pool[rows][..., columns]
    rendered = [render(c[None], style, random) for c, style in zip(content, styles, strict=True)]
    # A scanner's levels: what it rounds and cuts off is what the generators have to cope with.
    styled = from_levels(to_levels(torch.cat(rendered)))
    code = add_noise(encode_maps(model, true_maps(styles)), config.code_noise, random)
    return styled, render(content, REFERENCE), code


def _thin(concentration: Tensor, seed: int, index: int) -> Tensor:
    """Return random pixels (2, 1, POOL) of concentrations (2, H, W)."""
    flat = concentration.flatten(1)
    chosen = torch.randint(flat.shape[1], (POOL,), generator=torch_stream(seed, "thin", index))
    return flat[:, chosen][:, None]
