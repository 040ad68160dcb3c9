"""Closed-form maps, refined: what `stain.macenko` finds, moved until the colors are those of similar tissue.

Macenko's method looks at the ends of the color distribution. Where a scanner cuts those off, the middle still tells:
a normalized image should have the colors of the reference images with the most similar tissue. Only six numbers may
move, a 2x2 matrix and an offset of the two concentrations, and they are held near where they were: one image is not
enough to trust it with more.
"""

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor
from torch.optim.adam import adam

from bottlegan.losses import profile_distance
from bottlegan.models.reference_colors import ReferenceColors
from bottlegan.progress import Progress
from bottlegan.stain.density import BLACK, to_density
from bottlegan.stain.macenko import DensityMap
from bottlegan.training.samples import ColorProfile, match_content

STEPS = 60
GAIN = 0.001  # share by which the loss must fall for a step to count as progress
PATIENCE = 12  # steps without progress after which there are no more
RATE = 0.01
PULL = 0.3  # toward the closed-form map, per squared unit of the six numbers
SAMPLE = 1024  # pixels of each image
MATCHES = 8  # reference images of similar tissue that an image is compared with

Through = Callable[[Tensor, Tensor, Tensor], Tensor]
"""What densities (N, P, 3) become, given each image's matrix (N, 3, 3) and offset (N, 3)."""


def apply_affine(density: Tensor, matrix: Tensor, bias: Tensor) -> Tensor:
    """Return densities (N, P, 3), mapped by the matrices (N, 3, 3) and offsets (N, 3) themselves."""
    return density @ matrix + bias[:, None]


@torch.enable_grad()  # whatever the caller does without gradients, this needs them
def refine_maps(
    maps: DensityMap,
    pixels: Tensor,
    styles: Tensor,
    reference: ReferenceColors,
    progress: Progress,
    *,
    through: Through = apply_affine,
) -> tuple[DensityMap, Tensor]:
    """Return the maps, one a style, refined, and how far (N,) each image's colors then are from similar tissue's.

    Args:
        maps: The maps to begin with.
        pixels: Of the styled images, (N, 3, 1, P) in [0, 1].
        styles: (N,) row of each image's style.
        reference: Statistics of the reference set.
        progress: Where to say how far this is.
        through: How a map maps; of a network, it is what the network makes of it.
    """
    profile, colors = ColorProfile(reference.statistics()), reference.colors.cpu()
    stains = (reference.matrix * reference.strength[:, None]).cpu()
    unmix = torch.linalg.pinv(stains)
    started = maps.matrix.float(), maps.bias.float()
    density = to_density(pixels[..., :SAMPLE].cpu()).flatten(2).transpose(1, 2)
    moved = torch.zeros(len(maps.matrix), 6, requires_grad=True)

    def describe() -> Tensor:
        matrix, bias = compose(*started, moved, stains, unmix)
        return profile.of_density(through(density, matrix[styles], bias[styles]).clamp(0, BLACK))

    with torch.no_grad():
        matches = match_content(describe(), colors, MATCHES)
    descend = follow_gradient(moved)
    best, stale = math.inf, 0
    for _ in progress.track(range(STEPS), "refining the closed-form maps", STEPS):
        loss = profile_distance(describe(), colors, matches).sum() + PULL * moved.square().sum()
        best, stale = (loss.item(), 0) if loss.item() < (1 - GAIN) * best else (best, stale + 1)
        if stale >= PATIENCE:
            break
        descend(*torch.autograd.grad(loss, moved))
    with torch.no_grad():
        matrix, bias = compose(*started, moved, stains, unmix)
        return replace(maps, matrix=matrix, bias=bias), profile_distance(describe(), colors, matches)


def follow_gradient(numbers: Tensor) -> Callable[[Tensor], None]:
    """Return what takes one step of Adam, given the gradient of the numbers, which it changes in place.

    As a function, because making an optimizer imports torch's compiler: a second, and 80 MB, for six numbers.
    """
    mean, square, steps = torch.zeros_like(numbers), torch.zeros_like(numbers), torch.tensor(0.0)

    @torch.no_grad()
    def step(gradient: Tensor) -> None:
        adam(
            [numbers],
            [gradient],
            [mean],
            [square],
            [],
            [steps],
            foreach=False,
            amsgrad=False,
            beta1=0.9,
            beta2=0.999,
            lr=RATE,
            weight_decay=0.0,
            eps=1e-8,
            maximize=False,
        )

    return step


def compose(matrix: Tensor, bias: Tensor, moved: Tensor, stains: Tensor, unmix: Tensor) -> tuple[Tensor, Tensor]:
    """Return the maps (S, 3, 3) and (S, 3), followed by c -> c (1 + T) + b in concentrations; `moved` is T and b."""
    change = torch.eye(3) + unmix @ moved[:, :4].reshape(-1, 2, 2) @ stains
    return matrix @ change, (bias[:, None] @ change)[:, 0] + moved[:, 4:] @ stains
