"""Whether a color map keeps light light and dark dark: what a pathologist must be able to trust before any score.

A map that exchanges hematoxylin and eosin can have a fair MSE and still turn nuclei into holes. Darkness here is the
mean optical density (OD) of a pixel over its channels. Three measures:

- `swap_rate`: of pixels that differ clearly before a map, how many pairs it turns around. It needs no truth, but a
  map between two stains may turn some around rightly: where eosin is the darker stain in one of them.
- `nuclei_swapped`: the same against the truth, where there is one, so that nothing but errors counts.
- `monotonicity`: whether more hematoxylin is never lighter, on tissue that holds every mixture of both stains.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from bottlegan.errors import InputError
from bottlegan.metrics.image import check_images
from bottlegan.seeding import torch_stream
from bottlegan.stain.density import to_density
from bottlegan.stain.simulate import Style, render

CLEAR = 0.3
"""Difference in mean OD from which on one of two pixels is clearly darker."""
MARGIN = 0.05
"""Difference in mean OD below which two mapped pixels count as equally dark."""
PAIRS = 16_384
"""Pairs of pixels drawn from each image."""
SWAPPED = 0.01
"""Share of turned pairs above which an image counts as swapped: noise of the scanner stays far below."""

HEMATOXYLIN = torch.linspace(0, 1.2, 61)
EOSIN = torch.tensor([0.0, 0.25, 0.5, 0.75, 1.0])
_ROUNDING = 1e-4  # of densities that went through single-precision intensities


def swap_rate(images: Tensor, mapped: Tensor, seed: int = 0) -> Tensor:
    """Return the share (N,) of pixel pairs, clearly ordered by darkness in `images`, that `mapped` turns around.

    Args:
        images: Images (N, 3, H, W) in [0, 1].
        mapped: What a map made of them, of the same shape.
        seed: Of the positions, which are the same in all images.

    Returns:
        Shares in [0, 1], float64; 0 where no pair differs by more than CLEAR. A pair is turned if its order is
        reversed by more than MARGIN.
    """
    return _turned(images, mapped, MARGIN, seed)


def nuclei_swapped(output: Tensor, truth: Tensor, seed: int = 0) -> Tensor:
    """Return the share (N,) of pixel pairs, clearly ordered by darkness in `truth`, whose order `output` reverses.

    Args:
        output: Images (N, 3, H, W) in [0, 1].
        truth: What they should look like, of the same shape.
        seed: Of the positions, which are the same in all images.

    Returns:
        Shares in [0, 1], float64; 0 where no pair differs by more than CLEAR. An image above SWAPPED is swapped.
    """
    return _turned(truth, output, 0.0, seed)


def monotonicity(mapping: Callable[[Tensor], Tensor], style: Style) -> float:
    """Return the share in [0, 1] of steps toward more hematoxylin at which the mapped darkness does not fall.

    Ramps of hematoxylin from 0 to 1.2 times its strong concentration, one at each of five levels of eosin, are rendered
    in `style` and mapped as one image (1, 3, 5, 61). A good map into any stain that absorbs light reaches 1.
    """
    grid = torch.stack([HEMATOXYLIN.expand(len(EOSIN), -1), EOSIN[:, None].expand(-1, len(HEMATOXYLIN))])
    steps = _darkness(mapping(render(grid[None], style))).diff(dim=-1)
    return (steps >= -_ROUNDING).double().mean().item()


def _turned(ordered: Tensor, images: Tensor, margin: float, seed: int) -> Tensor:
    """Return the share (N,) of pairs clearly ordered in the first images that are reversed in the second ones."""
    check_images(ordered)
    check_images(images)
    if ordered.shape != images.shape:
        raise InputError(f"images are {tuple(ordered.shape)} and {tuple(images.shape)}; give the same tissue in both")
    darkness = _darkness(ordered).flatten(1)
    positions = torch.randint(darkness.shape[1], (2, PAIRS), generator=torch_stream(seed, "pairs of pixels"))
    one, other = positions.to(darkness.device)
    before = darkness[:, one] - darkness[:, other]
    mapped = _darkness(images).flatten(1)
    after = mapped[:, one] - mapped[:, other]
    clear = before.abs() > CLEAR
    turned = clear & (after * before.sign() < -margin)
    return turned.sum(1).double() / clear.sum(1).clamp(min=1)


def _darkness(images: Tensor) -> Tensor:
    """Return the mean optical density (N, H, W) of images (N, 3, H, W)."""
    return to_density(images).mean(dim=1)
