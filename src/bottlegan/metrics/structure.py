"""Whether a color map keeps light areas light and dark areas dark. Pathologists rely on this more than on any score.

A map that exchanges hematoxylin and eosin can have a fair MSE and still turn nuclei into holes. Darkness here is the
mean optical density (OD) of a pixel over its channels. Two measures:

- `nuclei_swapped`: the share of pixel pairs, clearly different in the truth, whose order the output reverses.
- `monotonicity`: whether tissue with more hematoxylin and the same eosin never gets lighter.
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
"""One of two pixels is clearly darker if their mean OD differs by more than this."""
PAIRS = 16_384
"""Number of pixel pairs drawn from each image."""
SWAPPED = 0.01
"""An image counts as swapped if more than this share of its pairs is reversed. Scanner noise stays far below."""

BANDS = 8
"""Number of bands of pixels with similar amounts of eosin."""
BINS = 12
"""Number of bins of pixels with similar amounts of hematoxylin, in each band."""
FILLED = 64
"""Smallest number of pixels for a bin to count."""
STILL = 0.01
"""A decrease in mean OD between bins up to this size is ignored as noise."""
QUANTILE_STRIDE = 7
"""Stride of the pixels that place the bands; it does not skip any row of an image."""


def nuclei_swapped(output: Tensor, truth: Tensor) -> Tensor:
    """Return the share (N,) of pixel pairs with a clear order of darkness in `truth` whose order `output` reverses.

    Args:
        output: Images (N, 3, H, W) in [0, 1].
        truth: Their ground truth, of the same shape.

    Returns:
        Shares in [0, 1], float64; 0 where no pair differs by more than CLEAR. An image above SWAPPED is swapped.
    """
    check_same(truth, output)
    darkness = _darkness(truth).flatten(1)
    positions = torch.randint(darkness.shape[1], (2, PAIRS), generator=torch_stream(0, "pairs of pixels"))
    one, other = positions.to(darkness.device)
    before = darkness[:, one] - darkness[:, other]
    mapped = _darkness(output).flatten(1)
    after = mapped[:, one] - mapped[:, other]
    clear = before.abs() > CLEAR
    turned = clear & (after * before.sign() < 0)
    return turned.sum(1).double() / clear.sum(1).clamp(min=1)


def monotonicity(output: Tensor, truth: Tensor) -> Tensor:
    """Return the share (N,) of steps toward more hematoxylin, at similar eosin, where `output` does not get lighter.

    Args:
        output: Images (N, 3, H, W) in [0, 1].
        truth: The same tissue in the reference stain, from which the amount of each stain is computed.

    Returns:
        Shares in [0, 1], float64; 1 where there is no step. Pixels are sorted into bands of eosin and, within each
        band, bins of hematoxylin. A step goes from one bin to the next and compares their mean darkness.
    """
    check_same(truth, output)
    concentrations = unmix(truth, REFERENCE).flatten(2).double()
    return torch.stack([_rising(*pair) for pair in zip(concentrations, _darkness(output).flatten(1), strict=True)])


def _rising(concentration: Tensor, darkness: Tensor) -> Tensor:
    """Return the share () of steps at which darkness (P,) does not fall, from the concentrations (2, P)."""
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
    """Refuse anything but images of the same shape."""
    check_images(images)
    check_images(others)
    if images.shape != others.shape:
        raise InputError(f"images are {tuple(images.shape)} and {tuple(others.shape)}; give the same tissue in both")


def _darkness(images: Tensor) -> Tensor:
    """Return the mean optical density (N, H, W) of images (N, 3, H, W)."""
    return to_density(images).mean(dim=1)
