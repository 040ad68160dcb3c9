"""Staining styles as numbers: those of the paper's nine laboratories, including the reference stain, and random ones.

The paper makes styles as random linear combinations of nine laboratories' styles, with noise on the entries of the
stain matrix and on the optical density of each pixel (`PAPER`). Its federation uses no noise (`MIXTURES`). Real labs
differ less in color, but they also differ in how strongly they stain, and in white point, illumination and gamma of
their scanners (`LABS`).
"""

import math

import numpy as np
from numpy.typing import NDArray

from bottlegan.core.config import document

Rgb = tuple[float, float, float]


@document
class Style:
    """One lab's staining style."""

    name: str
    hematoxylin: Rgb
    """Optical density where hematoxylin is strong: at concentration 1."""
    eosin: Rgb
    """Optical density where eosin is strong: at concentration 1."""
    pixel_noise: float = 0.0
    """Standard deviation of each pixel's concentrations, relative to them."""
    white: Rgb = (1.0, 1.0, 1.0)
    """The scanner's rendering of white: its white point times the tint of its lamp."""
    gamma: float = 1.0
    """Exponent of the scanner's intensities."""
    offset: tuple[float, float] = (0.0, 0.0)
    """Concentration of each stain that is present everywhere, including glass."""


@document
class Variety:
    """How widely simulated styles differ. Each field is a standard deviation unless it says otherwise."""

    matrix_noise: float
    """Of each entry of the unit stain matrix."""
    strength_spread: float
    """Of the logarithm of each stain's strength."""
    pixel_noise: float
    """Largest relative noise of a pixel's concentrations."""
    white_loss: float = 0.0
    """Largest share of the light that the white point lacks."""
    tint: float = 0.0
    """Of the logarithm of each channel's illumination."""
    gamma_spread: float = 0.0
    """Of the logarithm of gamma."""
    offset_spread: float = 0.0
    """Of the concentration of each stain that is present everywhere."""


MIXTURES = Variety(matrix_noise=0.0, strength_spread=0.0, pixel_noise=0.0)
"""Mixtures of the nine laboratories and nothing else, as in the paper's federated experiment."""
PAPER = Variety(matrix_noise=0.3, strength_spread=0.5, pixel_noise=0.03)
LABS = Variety(matrix_noise=0.06, strength_spread=0.3, pixel_noise=0.02, white_loss=0.1, tint=0.02, gamma_spread=0.12)

WIDE = Variety(
    matrix_noise=0.25,
    strength_spread=0.5,
    pixel_noise=0.03,
    white_loss=0.1,
    tint=0.02,
    gamma_spread=0.12,
    offset_spread=0.06,
)
"""Everything that either of them varies, for a network that should handle any style."""

# Unit densities and strengths of hematoxylin and eosin, estimated by stain/macenko.py from one image per laboratory
# (Schoemig-Markiefka et al. 2021). The first, the reference stain, was estimated from 240 patches.
_LABORATORIES = (
    ("S01", (0.544, 0.740, 0.395), 2.601, (0.044, 0.842, 0.538), 1.146),
    ("S02", (0.597, 0.722, 0.348), 2.747, (0.183, 0.884, 0.431), 1.470),
    ("S03", (0.484, 0.793, 0.371), 1.566, (0.001, 0.902, 0.431), 0.742),
    ("S04", (0.659, 0.663, 0.355), 2.695, (0.354, 0.838, 0.415), 1.505),
    ("S05", (0.484, 0.808, 0.336), 3.039, (0.077, 0.956, 0.282), 1.682),
    ("S06", (0.615, 0.690, 0.383), 2.697, (0.242, 0.814, 0.528), 1.451),
    ("S07", (0.620, 0.700, 0.355), 4.273, (0.213, 0.850, 0.482), 2.765),
    ("S08", (0.546, 0.746, 0.381), 1.085, (0.000, 0.932, 0.363), 0.698),
    ("S09", (0.477, 0.776, 0.412), 3.277, (0.121, 0.809, 0.576), 1.878),
)


def _scaled(unit: Rgb, strength: float) -> Rgb:
    return (unit[0] * strength, unit[1] * strength, unit[2] * strength)


LABORATORIES = tuple(
    Style(name=name, hematoxylin=_scaled(hematoxylin, h), eosin=_scaled(eosin, e))
    for name, hematoxylin, h, eosin, e in _LABORATORIES
)
"""Nine real laboratories' styles."""

REFERENCE = LABORATORIES[0]
"""The reference stain."""


def list_stains(style: Style) -> NDArray[np.float64]:
    """Return the optical densities (2, 3) of the style's hematoxylin and eosin where they are strong."""
    return np.array([style.hematoxylin, style.eosin])


def mix_stains(concentration: NDArray[np.float64], style: Style) -> NDArray[np.uint8]:
    """Return the levels (..., 3) that the style's scanner records for concentrations (..., 2) of both stains."""
    density = (concentration + np.array(style.offset)) @ list_stains(style)
    light = ((256 * np.exp(-density) - 1) / 255).clip(0, 1) ** style.gamma
    return np.rint(255 * (np.array(style.white) * light).clip(0, 1)).astype(np.uint8)


def draw_style(random: np.random.Generator, name: str, variety: Variety) -> Style:
    """Draw a random style: a mixture of the nine laboratories, varied as `variety` says."""
    share = random.dirichlet(np.ones(len(LABORATORIES)))
    stains = np.stack([list_stains(style) for style in LABORATORIES])
    strength = np.linalg.norm(stains, axis=-1)
    # Matrices mix linearly, as in the paper. Strengths mix geometrically, so that no dark laboratory dominates.
    matrix = np.tensordot(share, stains / strength[..., None], axes=1)
    matrix = np.clip(matrix + random.normal(0, variety.matrix_noise, matrix.shape), 0, None)
    matrix /= np.linalg.norm(matrix, axis=-1, keepdims=True).clip(min=1e-6)
    mixed = np.exp(share @ np.log(strength) + random.normal(0, variety.strength_spread, 2))
    lamp = np.exp(random.normal(0, variety.tint, 3))
    white = (1 - random.uniform(0, variety.white_loss)) * lamp / max(1.0, lamp.max())
    return Style(
        name=name,
        hematoxylin=_scaled(_rgb(matrix[0]), mixed[0].item()),
        eosin=_scaled(_rgb(matrix[1]), mixed[1].item()),
        pixel_noise=random.uniform(0, variety.pixel_noise),
        white=_rgb(white),
        gamma=math.exp(random.normal(0, variety.gamma_spread)),
        offset=(abs(random.normal(0, variety.offset_spread)), abs(random.normal(0, variety.offset_spread))),
    )


def _rgb(values: np.ndarray) -> Rgb:
    red, green, blue = values.tolist()
    return (red, green, blue)
