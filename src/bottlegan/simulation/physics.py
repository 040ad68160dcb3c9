"""Labs as physics: how dyes, light, sensor, electronics and file format turn tissue into images.

A dye is an absorption spectrum. Light from the lamp passes through the section. A sensor with three broad bands
measures what is left. A color matrix, a tone curve and a white point turn that into levels. Noise, sharpening and JPEG
spoil them:

    signal_c = sum over wavelengths of band_c(w) exp(-sum over dyes of amount_k epsilon_k(w)).

Nothing here is fitted to any image. Ranges come from textbooks and data sheets, and are wide.
"""

import io
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from PIL import Image
from scipy import ndimage

from bottlegan.imaging.files import Pixels
from bottlegan.simulation.organs import COLORANTS
from bottlegan.stain.style import REFERENCE

Floats = NDArray[np.float32]

WAVELENGTHS = np.arange(400, 701, 20, dtype=np.float64)
STRENGTH = (0.8, 4.8)
"""Density of a strong stain in the channel that it darkens most: from pale to nearly black, a factor of six."""
REFERENCE_DENSITIES = np.array(
    [
        REFERENCE.hematoxylin,
        REFERENCE.eosin,
        (0.10, 0.55, 0.60),
        (0.75, 1.05, 1.30),
        (1.33, 1.95, 1.01),
        (0.10, 0.96, 0.57),
    ],
    np.float32,
)
"""(COLORANTS, 3) density of each colorant in the reference stain. Blood and pigment take up eosin besides."""


@dataclass(frozen=True)
class Jpeg:
    """How images are stored."""

    quality: int
    halved_chroma: bool


@dataclass(frozen=True)
class PhysicalLab:
    """One lab: its dyes, its scanner, and its files."""

    absorption: NDArray[np.float64]
    """(COLORANTS, W) absorption of each colorant where there is much of it."""
    bands: NDArray[np.float64]
    """(W, 3) sensitivity of each channel to the lamp's light; each sums to 1, so that clear glass is 1."""
    matrix: NDArray[np.float64]
    """(3, 3) color matrix, whose rows sum to 1."""
    gamma: float
    """The stored value is the intensity to the power of 1 / gamma."""
    contrast: float
    """How strongly the tone curve bends like an S, from -1 to 1."""
    flare: float
    """Stray light, as a share of white."""
    white: NDArray[np.float64]
    """(3,) the stored value of glass; above 1, it is clipped."""
    black: float
    """The value that becomes black, like all darker ones: some cameras stretch the contrast."""
    noise: float
    """Standard deviation of each channel, in levels."""
    sharpening: float
    aberration: NDArray[np.float64]
    """(3, 2) displacement of each channel, in pixels."""
    shading: float
    """Share of the light that is missing in the corners of an image."""
    jpeg: Jpeg | None


DIM = 0.1
"""Share of the light that is missing in a photograph, above which stray light and noise are visible, too."""
MILD = 0.4
"""Share of the labs that stay near the middle of all ranges, as most real labs do."""
MIDDLE = 0.4
"""Share of each range that these labs use."""


class Draw:
    """Draws a lab's properties: from whole ranges or, for a mild lab, from the middle of each."""

    def __init__(self, rng: Generator) -> None:
        """Draw whether the lab is mild."""
        self.rng, self.width = rng, MIDDLE if rng.random() < MILD else 1.0

    def uniform(self, low: float, high: float) -> float:
        """Draw from a range."""
        middle, half = (low + high) / 2, (high - low) / 2 * self.width
        return float(self.rng.uniform(middle - half, middle + half))

    def normal(self, mean: float, spread: float) -> float:
        """Draw from around a mean."""
        return float(self.rng.normal(mean, spread * self.width))

    def upto(self, most: float) -> float:
        """Draw from zero to a largest value."""
        return float(self.rng.uniform(0, most * self.width))

    def happens(self, chance: float) -> bool:
        """Return whether something happens that has this chance."""
        return bool(self.rng.random() < chance)


def draw_physical_lab(rng: Generator) -> PhysicalLab:
    """Draw a lab, each part of it independently."""
    draw = Draw(rng)
    gamma = 1.0 if draw.happens(0.15 * draw.width) else draw.uniform(1.0, 2.5)
    bands = draw_bands(draw)
    matrix = draw_color_matrix(draw)
    absorption = draw_dyes(draw)
    # How strong a stain looks depends on sensor and gamma, so its strength is set by how half of it looks.
    strong = np.exp(draw.uniform(*np.log(STRENGTH)))
    ratio = np.clip(np.exp(draw.normal(-0.75, 0.35)), 0.2, 1.1)
    pale = strong * ratio
    for number, density in enumerate((strong, pale, 0.25 * strong, 0.5 * strong, strong, pale)):
        absorption[number] *= find_strength(absorption[number], bands @ matrix.T, density * gamma)
    # Scans of slides are bright. Photographs through a microscope are often dim, whatever the stain.
    loss = rng.choice([0.0, 0.06, 0.25, 0.5], p=[0.3, 0.4, 0.15, 0.15]) * rng.random()
    tint = np.exp(rng.normal(0, draw.width * rng.choice([0.0, 0.012, 0.04, 0.12], p=[0.28, 0.42, 0.22, 0.08]), 3))
    exposure = 1.0 if draw.happens(0.7) else 1 + draw.upto(0.08)
    quality = 97 - int(draw.upto(32))
    return PhysicalLab(
        absorption=absorption,
        bands=bands,
        matrix=matrix,
        gamma=gamma,
        contrast=float(np.clip(draw.normal(0, 0.25), -0.6, 0.6)),
        flare=draw.upto(0.12 if loss > DIM else 0.04) if draw.happens(0.5) else 0.0,
        white=(1 - loss) * exposure * tint / max(1.0, tint.max()),
        black=draw.upto(0.2) if draw.happens(0.12) else 0.0,
        # The less light, the more noise.
        noise=draw.upto(3.5 / (1 - loss)) if draw.happens(0.6 if loss > DIM else 0.25) else draw.upto(1.0),
        sharpening=draw.upto(0.8) if draw.happens(0.35) else 0.0,
        aberration=draw.upto(0.7) * rng.standard_normal((3, 2)) * [[1], [0], [1]] * draw.happens(0.4),
        shading=draw.upto(0.3 if loss > DIM else 0.1) if draw.happens(0.3) else 0.0,
        jpeg=Jpeg(quality, draw.happens(0.5)) if draw.happens(0.75) else None,
    )


def find_strength(absorption: NDArray[np.float64], bands: NDArray[np.float64], density: float) -> float:
    """Return twice the amount of a dye (W,) that has half of `density` in the channel that it darkens most."""
    strengths = np.geomspace(0.02, 50, 400)
    light = (np.exp(-0.5 * strengths[:, None] * absorption) @ bands).min(axis=1)
    seen = np.maximum.accumulate(-np.log(np.clip(light, 1e-6, 1)))
    return float(np.interp(density / 2, seen, strengths))


def bump(center: float, width: float) -> NDArray[np.float64]:
    """Return a bell over the wavelengths, 1 at its center."""
    return np.asarray(np.exp(-0.5 * ((WAVELENGTHS - center) / width) ** 2))


def draw_dyes(draw: Draw) -> NDArray[np.float64]:
    """Return (COLORANTS, W) absorption spectra, each with a largest value of 1."""
    # Lakes of hematein absorb broadly. Iron or aluminum, pH and age move the peak and raise the blue end.
    middle, width = draw.uniform(550, 612), draw.uniform(38, 70)
    ends = draw.uniform(0.05, 0.45) * bump(430, draw.uniform(40, 80)) + draw.uniform(0, 0.1)
    hematoxylin = bump(middle, width) + ends
    hematoxylin += draw.uniform(0, 0.5) * bump(draw.uniform(540, 625), draw.uniform(25, 45))
    # Eosin Y and B, erythrosin, phloxine: narrow, with a shoulder on the blue side.
    peak = draw.uniform(515, 545)
    eosin = bump(peak, draw.uniform(14, 30))
    eosin += draw.uniform(0.15, 0.5) * bump(peak - draw.uniform(28, 45), draw.uniform(15, 30))
    eosin += draw.uniform(0, 0.15) * bump(430, 40) + draw.uniform(0, 0.05)
    if draw.happens(0.25):  # some labs add orange G, or saffron
        eosin += draw.upto(0.35) * bump(draw.uniform(470, 490), 25)
    blood = 1.6 * bump(415, 18) + 0.45 * bump(542, 14) + 0.5 * bump(577, 12) + 0.1
    pigment = np.exp(-(WAVELENGTHS - 400) / draw.uniform(120, 260))
    # Bound to other molecules, hematein absorbs at shorter wavelengths and eosin at longer ones.
    violet = bump(middle - draw.uniform(0, 20), width) + ends
    further = draw.uniform(0, 10)
    salmon = bump(peak + further, draw.uniform(18, 36)) + draw.uniform(0.1, 0.4) * bump(peak - 35 + further, 25)
    dyes = np.stack([hematoxylin, eosin, blood, pigment, violet, salmon])
    return np.asarray(dyes / dyes.max(axis=1, keepdims=True))


def draw_bands(draw: Draw) -> NDArray[np.float64]:
    """Return (W, 3) sensor bands under a lamp, each with a sum of 1."""
    lamp = np.exp(draw.normal(0, 0.25) * (WAVELENGTHS - 550) / 100)
    if draw.happens(0.5):  # white LED: a blue peak and a broad yellow one
        peaks = draw.uniform(0.3, 1) * bump(draw.uniform(445, 460), 14) + bump(draw.uniform(545, 590), 55)
        lamp = lamp * (0.25 + peaks)
    red = bump(draw.uniform(590, 635), draw.uniform(18, 45))
    green = bump(draw.uniform(525, 555), draw.uniform(18, 42))
    blue = bump(draw.uniform(440, 470), draw.uniform(16, 38))
    bands = np.stack([red, green, blue], axis=1) * lamp[:, None]
    return np.asarray(bands / bands.sum(axis=0))


def draw_color_matrix(draw: Draw) -> NDArray[np.float64]:
    """Return a (3, 3) matrix: crosstalk between channels, or its correction; white stays white."""
    matrix = draw.rng.normal(0, draw.upto(0.12), (3, 3))
    np.fill_diagonal(matrix, 0)
    np.fill_diagonal(matrix, 1 - matrix.sum(axis=1))
    return np.asarray(matrix)


def expose(amounts: Floats, lab: PhysicalLab) -> Floats:
    """Return the scanner's images (N, 3, H, W) in [0, 1] of amounts (N, COLORANTS, H, W), without noise."""
    count, _, height, width = amounts.shape
    flat = amounts.transpose(0, 2, 3, 1).reshape(-1, COLORANTS)
    passed = np.exp(-(flat @ lab.absorption.astype(np.float32)))
    signal = passed @ (lab.bands @ lab.matrix.T).astype(np.float32)
    signal = signal * (1 - lab.flare) + lab.flare
    stored = np.clip(signal, 1e-4, 1) ** np.float32(1 / lab.gamma)
    # An S through 0 and 1, steepest or flattest in the middle.
    stored = stored - lab.contrast * np.float32(0.5 / np.pi) * np.sin(2 * np.pi * stored)
    stored = np.clip(stored * lab.white.astype(np.float32), 0, 1)
    stored = np.maximum((stored - lab.black) / (1 - lab.black), 0)
    return np.asarray(stored.reshape(count, height, width, 3).transpose(0, 3, 1, 2), np.float32)


def scan(images: Floats, lab: PhysicalLab, rng: Generator) -> list[Pixels]:
    """Return images (N, 3, H, W) in [0, 1] as the lab's files hold them: RGB levels (H, W, 3), one array each."""
    if lab.aberration.any():
        channels = [ndimage.shift(images[:, c], (0, *lab.aberration[c]), order=1, mode="nearest") for c in range(3)]
        images = np.stack(channels, axis=1)
    if lab.shading:
        rows, columns = (np.linspace(-1, 1, side, dtype=np.float32) for side in images.shape[2:])
        images = images * (1 - np.float32(lab.shading / 2) * (rows[:, None] ** 2 + columns**2))
    if lab.sharpening:
        blurred = ndimage.gaussian_filter(images, (0, 0, 1.2, 1.2))
        images = images + np.float32(lab.sharpening) * (images - blurred)
    noisy = 255 * images + np.float32(lab.noise) * rng.standard_normal(images.shape, np.float32)
    levels = np.clip(np.rint(noisy), 0, 255).astype(np.uint8).transpose(0, 2, 3, 1)
    return [compress(np.ascontiguousarray(image), lab.jpeg) for image in levels]


def compress(levels: Pixels, jpeg: Jpeg | None) -> Pixels:
    """Return an image as a JPEG file gives it back."""
    if jpeg is None:
        return levels
    with io.BytesIO() as file:
        subsampling = 2 if jpeg.halved_chroma else 0
        Image.fromarray(levels).save(file, "JPEG", quality=jpeg.quality, subsampling=subsampling)
        return np.asarray(Image.open(file).convert("RGB"))


def to_reference(amounts: Floats) -> Floats:
    """Return amounts (N, COLORANTS, H, W) in the reference stain, (N, 3, H, W) in [0, 1]."""
    density = np.einsum("nkhw,kc->nchw", amounts, REFERENCE_DENSITIES)
    return np.asarray(np.clip((256 * np.exp(-density) - 1) / 255, 0, 1), np.float32)
