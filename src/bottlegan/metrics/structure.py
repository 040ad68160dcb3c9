"""Whether a color map keeps light light and dark dark: what a pathologist must be able to trust before any score.

A map that exchanges hematoxylin and eosin can have a fair MSE and still turn nuclei into holes. Darkness here is the
mean optical density (OD) of a pixel over its channels. Three measures:

- `swap_rate`: of pixels that differ clearly before a map, how many pairs it turns around. It needs no truth, but a
  map between two stains may turn some around rightly: where eosin is the darker stain in one of them.
- `nuclei_swapped`: the same against the truth, where there is one, so that nothing but errors counts.
- `monotonicity`: whether tissue with more hematoxylin, and as much eosin, never gets lighter.
"""

import torch
from torch import Tensor

from bottlegan.core.errors import InputError
from bottlegan.core.seeding import torch_stream
from bottlegan.metrics.image import check_images
from bottlegan.simulation.styles import unmix
from bottlegan.stain.density import to_density
from bottlegan.stain.style import REFERENCE

CLEAR = 0.3
"""Difference in mean OD from which on one of two pixels is clearly darker."""
MARGIN = 0.05
"""Difference in mean OD below which two mapped pixels count as equally dark."""
PAIRS = 16_384
"""Pairs of pixels drawn from each image."""
SWAPPED = 0.01
"""Share of turned pairs above which an image counts as swapped: noise of the scanner stays far below."""

BANDS = 8
"""Of pixels with about as much eosin."""
BINS = 12
"""Of pixels with about as much hematoxylin, in each band."""
FILLED = 64
"""Pixels that a bin needs to count."""
STILL = 0.01
"""Fall in mean OD, from one bin to the next, that counts as none: what noise leaves of a mean."""
QUANTILE_STRIDE = 7
"""Every so many pixels are enough to place bands, and no row of an image is left out."""


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


def monotonicity(output: Tensor, truth: Tensor) -> Tensor:
    """Return the share (N,) of steps toward more hematoxylin, at about as much eosin, where `output` gets no lighter.

    Args:
        output: Images (N, 3, H, W) in [0, 1].
        truth: The same tissue in the reference stain, which tells how much of each stain a pixel holds.

    Returns:
        Shares in [0, 1], float64; 1 where there is no step. Pixels are put into bands of eosin and, within each, bins
        of hematoxylin; a step goes from one bin to the next, and counts by their mean darkness.
    """
    check_same(truth, output)
    concentrations = unmix(truth, REFERENCE).flatten(2).double()
    return torch.stack([_rising(*pair) for pair in zip(concentrations, _darkness(output).flatten(1), strict=True)])


def _rising(concentration: Tensor, darkness: Tensor) -> Tensor:
    """Return the share () of steps at which darkness (P,) does not fall, given concentrations (2, P)."""
    hematoxylin, eosin = concentration
    band = torch.bucketize(eosin, torch.quantile(eosin[::QUANTILE_STRIDE], torch.arange(1, BANDS).to(eosin) / BANDS))
    low, high = torch.quantile(hematoxylin[::QUANTILE_STRIDE], torch.tensor([0.02, 0.98]).to(hematoxylin))
    column = ((hematoxylin - low) / (high - low).clamp(min=1e-6) * BINS).floor().long().clamp(0, BINS - 1)
    cell = band * BINS + column
    count = torch.bincount(cell, minlength=BANDS * BINS).reshape(BANDS, BINS)
    mean = torch.bincount(cell, darkness.double(), BANDS * BINS).reshape(BANDS, BINS) / count.clamp(min=1)
    filled = count >= FILLED
    steps = [mean[row, filled[row]].diff() for row in range(BANDS)]
    rising = torch.cat(steps) >= -STILL
    return rising.double().mean() if len(rising) else torch.ones((), dtype=torch.float64)


def check_same(images: Tensor, others: Tensor) -> None:
    """Refuse what are not images of the same shape."""
    check_images(images)
    check_images(others)
    if images.shape != others.shape:
        raise InputError(f"images are {tuple(images.shape)} and {tuple(others.shape)}; give the same tissue in both")


def _turned(ordered: Tensor, images: Tensor, margin: float, seed: int) -> Tensor:
    """Return the share (N,) of pairs clearly ordered in the first images that are reversed in the second ones."""
    check_same(ordered, images)
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
