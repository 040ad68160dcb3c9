"""Tissue of many organs at any magnification, as amounts of what colors it: what onboarding is trained on.

A patch is a patchwork. Each kind of tissue is a ground (cytoplasm, fibers, mucin, ...) and a population of nuclei; one
to three kinds share a patch along smooth borders. Some patches hold blood or brown pigment. Glass shows where tissue
ends or opens. A patch need not deceive a pathologist. It must show the colors of every kind beside those of every
other, in every share, from all stroma to all nuclei.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.random import Generator
from scipy import ndimage

from bottlegan.core.seeding import numpy_stream
from bottlegan.simulation.tissue import draw_tissue
from bottlegan.simulation.tissue_parts import Field, Mask, Nuclei, at, noise, points, smear, stamp

HEMATOXYLIN, EOSIN, BLOOD, PIGMENT, VIOLET, SALMON, NUCLEAR = range(7)
"""The rows of a patch's amounts: what colors tissue, 1 where there is much of it. The last is the share of nucleus.

A dye's color depends on what it binds to. Violet is hematoxylin, and salmon eosin, where their spectra are shifted.
"""
COLORANTS = 6
PROSTATE = 0.4
"""Share of patches that show the prostate of `draw_tissue`, at its own scale or enlarged."""
MICRONS = (0.16, 2.0)
"""Size of a pixel, in micrometers: 60x to 5x."""


@dataclass(frozen=True)
class Kind:
    """One kind of tissue; pairs are ranges."""

    ground: tuple[float, float]
    """Typical hematoxylin and eosin between the nuclei."""
    spread: float
    """Standard deviation of the logarithm of that hematoxylin between patches; eosin varies half as much."""
    weave: float
    """How much the ground varies within a patch, from granules and fibers."""
    fibrous: bool
    spacing: tuple[float, float]
    """Distance between nuclei, in micrometers."""
    share: tuple[float, float]
    """Share of the places for nuclei that are occupied."""
    radius: tuple[float, float]
    """Radius of nuclei, in micrometers."""
    pale: tuple[float, float]
    """How much less chromatin nuclei hold in the middle than at the rim."""
    aspect: float = 1.4
    """Largest ratio of length to width of nuclei."""
    open: tuple[float, float] = (0.0, 0.0)
    """Share of the ground that is bare: clefts, vacuoles, fat cells."""
    hole: float = 4.0
    """Size of these openings, in micrometers."""


KINDS = {
    "epithelium": Kind((0.10, 0.40), 0.25, 0.2, False, (8, 13), (0.6, 1.0), (2.6, 4.5), (0.2, 0.7), 1.5, (0, 0.1), 6.0),
    "tumor": Kind((0.18, 0.40), 0.25, 0.25, False, (9, 16), (0.6, 1.0), (3.2, 6.5), (0.3, 0.8), 1.6, (0, 0.12), 5.0),
    "lymphocytes": Kind((0.12, 0.28), 0.15, 0.25, False, (6, 8), (0.7, 1.0), (2.3, 3.3), (0.0, 0.25), 1.2),
    "collagen": Kind((0.06, 0.66), 0.15, 0.3, True, (11, 20), (0.2, 0.7), (1.2, 2.4), (0.0, 0.3), 5.0, (0, 0.3), 3.0),
    "muscle": Kind((0.07, 0.76), 0.1, 0.18, True, (14, 24), (0.2, 0.7), (1.4, 2.6), (0.1, 0.5), 6.0, (0, 0.1), 3.0),
    "edema": Kind((0.04, 0.25), 0.25, 0.45, True, (12, 20), (0.2, 0.6), (1.5, 3.0), (0.0, 0.4), 2.5, (0.1, 0.6), 8.0),
    "clear cells": Kind(
        (0.05, 0.2), 0.2, 0.35, False, (11, 17), (0.6, 1.0), (2.5, 4.0), (0.0, 0.5), 1.3, (0.2, 0.6), 7.0
    ),
    "fat": Kind((0.05, 0.45), 0.15, 0.3, False, (30, 50), (0.1, 0.4), (1.5, 2.5), (0.0, 0.3), 4.0, (0.75, 0.92), 40.0),
    "keratin": Kind((0.06, 0.9), 0.12, 0.2, True, (18, 30), (0.0, 0.3), (1.8, 3.0), (0.0, 0.4), 3.0, (0, 0.15), 3.0),
    "mucin": Kind((0.14, 0.06), 0.25, 0.5, True, (20, 40), (0.0, 0.4), (2.0, 3.5), (0.0, 0.5), 1.5, (0.1, 0.6), 12.0),
    "necrosis": Kind((0.14, 0.58), 0.15, 0.3, False, (7, 16), (0.1, 0.5), (0.7, 2.2), (0.0, 0.1), 1.3, (0, 0.1), 4.0),
    "brain": Kind((0.07, 0.52), 0.12, 0.15, True, (12, 25), (0.2, 0.7), (2.0, 4.5), (0.2, 0.7), 1.4, (0, 0.1), 3.0),
}
COMMON = (0.18, 0.18, 0.08, 0.18, 0.1, 0.04, 0.05, 0.03, 0.02, 0.02, 0.05, 0.07)
"""How common each kind is."""


@dataclass(frozen=True)
class Patch:
    """A drawn patch."""

    amounts: Field
    """(COLORANTS, size, size), at least 0."""
    glass: Mask
    """(size, size): where there is only glass, or nearly so."""
    nuclear: Field
    """(size, size): how much of each pixel is nucleus, in [0, 1]."""
    nuclei: float
    """Share of the tissue that nuclei cover, in [0, 1]."""
    prostate: bool


def draw_patch(seed: int, index: int, size: int) -> Patch:
    """Return patch number `index` of the endless set that `seed` names, (size, size) pixels at 0.16 to 2 um each."""
    rng = numpy_stream(seed, "organ", index)
    prostate = rng.random() < PROSTATE
    layers = zoom_prostate(rng, seed, index, size) if prostate else draw_patchwork(rng, size)
    cross_section(rng, layers)
    layers *= ~find_background(rng, size)
    add_blood(rng, layers)
    add_pigment(rng, layers)
    shift_spectra(rng, layers)
    blur = rng.uniform(1.0, 3.0) if rng.random() < 0.1 else rng.uniform(0.2, 1.0)  # some patches are out of focus
    layers = ndimage.gaussian_filter(layers, (0, blur, blur)).astype(np.float32)
    amounts, nuclear = layers[:COLORANTS], layers[NUCLEAR]
    present = ndimage.uniform_filter(amounts.sum(0), 5, mode="nearest")
    glass = present < 0.06
    dark = amounts[HEMATOXYLIN] + amounts[VIOLET] > 0.5
    nuclei = float(dark[~glass].mean()) if (~glass).any() else 0.0
    return Patch(amounts, glass, nuclear, nuclei, prostate)


def zoom_prostate(rng: Generator, seed: int, index: int, size: int) -> Field:
    """Return (NUCLEAR + 1, size, size) of prostate, enlarged up to four times, with chromatin that shows only then."""
    factor = 1.0 if rng.random() < 0.6 else np.exp(rng.uniform(0, np.log(4)))
    side = max(64, int(np.ceil(size / factor)) + 8)
    tissue = draw_tissue(seed, index, side)
    drawn, nuclear = tissue.concentration.numpy(), tissue.nuclear.numpy()
    if factor > 1:
        drawn = ndimage.zoom(drawn, (1, factor, factor), order=1)
        nuclear = ndimage.zoom(nuclear, factor, order=1)
        texture = 0.12 * noise(rng, drawn.shape[1], 0.8 * factor) + 0.06 * noise(rng, drawn.shape[1], 1.2)
        drawn = drawn * np.exp(texture)
    layers = np.zeros((NUCLEAR + 1, size, size), np.float32)
    layers[:2], layers[NUCLEAR] = drawn[:, :size, :size], nuclear[:size, :size]
    return layers


def draw_patchwork(rng: Generator, size: int) -> Field:
    """Return (NUCLEAR + 1, size, size) of one to three kinds of tissue side by side."""
    micron = np.exp(rng.uniform(*np.log(MICRONS)))
    names = rng.choice(list(KINDS), rng.choice([1, 2, 3], p=[0.3, 0.4, 0.3]), replace=False, p=COMMON)
    owner, best = np.zeros((size, size), np.int32), np.full((size, size), -np.inf, np.float32)
    scale = rng.uniform(0.25, 1.0) * size
    for number in range(len(names)):
        claim = noise(rng, size, scale) + 0.25 * noise(rng, size, scale / 5) + rng.normal(0, 0.7)
        owner, best = np.where(claim > best, number, owner), np.maximum(claim, best)
    # Uptake is even within a patient: only the darkness of nuclei and the pink of the ground vary.
    uptake = np.exp(rng.normal(0, [0.03, 0.03]))
    drawn = np.zeros((3, size, size), np.float32)
    for number, name in enumerate(names):
        here = owner == number
        drawn += here * draw_kind(rng, size, KINDS[str(name)], micron)
    drawn[:2] *= uptake[:, None, None]
    if rng.random() < 0.7:  # nearly all tissue has a few small, dark cells
        drawn = scatter_lymphocytes(rng, drawn, micron)
    # No section has an even thickness.
    drawn[:2] *= np.exp(rng.uniform(0, 0.12) * noise(rng, size, rng.uniform(0.3, 1.0) * size))
    grain = rng.uniform(0.02, 0.12) * rng.standard_normal((2, size, size), np.float32)
    drawn[:2] *= np.maximum(1 + grain, 0)
    layers = np.zeros((NUCLEAR + 1, size, size), np.float32)
    layers[:2], layers[NUCLEAR] = drawn[:2], drawn[2]
    return layers


def draw_kind(rng: Generator, size: int, kind: Kind, micron: float) -> Field:
    """Return (3, size, size) of one kind of tissue: hematoxylin, eosin, and how much of each pixel is nucleus."""
    angle = rng.uniform(0, np.pi) + 0.5 * noise(rng, size, max(8.0, 60 / micron))
    texture = noise(rng, size, max(0.8, 1.2 / micron))
    if kind.fibrous:
        texture = 0.5 * texture + smear(noise(rng, size, max(1.0, 2 / micron)), angle, (2, 4, 8))
    broad = noise(rng, size, max(2.0, 12 / micron))
    level = np.array(kind.ground) * np.exp(kind.spread * rng.normal(0, [1.0, 0.5]))
    eosin = level[1] * np.exp(kind.weave * (0.8 * texture + 0.5 * broad))
    hematoxylin = level[0] * np.exp(kind.weave * (0.6 * noise(rng, size, max(1.0, 2 / micron)) + 0.5 * broad))
    share = rng.uniform(*kind.open)
    if share > 0:
        opening = noise(rng, size, max(1.5, kind.hole / micron)) + 0.2 * texture
        bare = np.clip(0.5 + 3 * (opening - np.quantile(opening, 1 - share)), 0, 1)
        eosin, hematoxylin = eosin * (1 - bare), hematoxylin * (1 - bare)
    ground = np.stack([hematoxylin, np.minimum(eosin, 1.5), np.zeros_like(eosin)]).astype(np.float32)
    return add_nuclei(rng, ground, kind, micron, angle)


def scatter_lymphocytes(rng: Generator, ground: Field, micron: float) -> Field:
    """Return tissue with a few lymphocytes scattered over it, except where it is bare."""
    kind = replace(KINDS["lymphocytes"], spacing=(9, 18), share=(0.02, 0.2))
    drawn = add_nuclei(rng, ground, kind, micron, np.zeros_like(ground[0]))
    return np.where(ndimage.uniform_filter(ground[:2].sum(0), 5) > 0.1, drawn, ground)


def add_nuclei(rng: Generator, ground: Field, kind: Kind, micron: float, angle: Field) -> Field:
    """Return the ground (3, size, size) of hematoxylin, eosin and nuclei, with more nuclei drawn over it."""
    size = ground.shape[-1]
    center = points(rng, size, max(2.0, rng.uniform(*kind.spacing) / micron))
    center = center[rng.random(len(center)) < rng.uniform(*kind.share)]
    count = len(center)
    if not count:
        return ground
    radius = rng.uniform(*kind.radius) / micron * np.exp(rng.normal(0, 0.18, count))
    stretch = np.sqrt(rng.uniform(1, kind.aspect, count))
    darkness = np.clip(rng.normal(0.72, 0.03), 0.4, 1.2) * np.exp(rng.normal(0, 0.18, count))
    pale = np.clip(rng.uniform(*kind.pale) + rng.normal(0, 0.12, count), 0, 0.9)
    nuclei = Nuclei(
        center,
        np.maximum(radius * stretch, 0.7).astype(np.float32),
        np.maximum(radius / stretch, 0.6).astype(np.float32),
        (at(angle, center) + rng.normal(0, 0.5, count)).astype(np.float32),
        darkness.astype(np.float32),
        pale.astype(np.float32),
    )
    opacity, hematoxylin = stamp(nuclei, size)
    # Open chromatin forms clumps: dark grains in a pale middle. At low magnification they merge.
    clumps = (0.15 + 0.3 * float(pale.mean())) * min(1.0, 0.5 / micron)
    chromatin = clumps * noise(rng, size, max(0.8, 0.8 / micron)) + 0.12 * noise(rng, size, max(1.0, 2 / micron))
    hematoxylin *= np.exp(chromatin)
    eosin = np.maximum(rng.uniform(0.3, 0.38) - 0.3 * hematoxylin, 0.02) + 0.15 * ground[EOSIN]
    nuclear = np.stack([hematoxylin, eosin, np.ones_like(eosin)])
    return np.asarray(ground + opacity * (nuclear - ground), np.float32)


def cross_section(rng: Generator, layers: Field) -> None:
    """Cut the tissue: what lies above and below a nucleus colors it, and dense tissue takes up more of both stains."""
    size = layers.shape[-1]
    covered = np.exp(rng.normal(0, 0.5) + 0.4 * noise(rng, size, rng.uniform(3, 40)))
    layers[EOSIN] *= 1 + layers[NUCLEAR] * (covered - 1)
    coarse, fine = (noise(rng, size, np.exp(rng.uniform(*np.log(scale)))) for scale in ((0.1 * size, size), (1.5, 25)))
    layers[:2] *= np.exp(rng.uniform(0, 0.3) * coarse + rng.uniform(0, 0.25) * fine)


def shift_spectra(rng: Generator, layers: Field) -> None:
    """Shift the spectrum of a share of each stain; the share varies from place to place."""
    size = layers.shape[-1]
    for stain, shifted in ((HEMATOXYLIN, VIOLET), (EOSIN, SALMON)):
        texture = noise(rng, size, np.exp(rng.uniform(*np.log((3, size)))))
        share = np.clip(rng.uniform(-0.4, 0.5) + rng.uniform(0, 0.4) * texture, 0, 1)
        layers[shifted] = share * layers[stain]
        layers[stain] -= layers[shifted]


def find_background(rng: Generator, size: int) -> Mask:
    """Return where the patch shows no tissue: nowhere in most patches, nearly everywhere in some."""
    if rng.random() < 0.6:
        return np.zeros((size, size), np.bool_)
    share = rng.uniform(0.03, 0.5) if rng.random() < 0.7 else rng.uniform(0.5, 0.95)
    scale = rng.uniform(0.2, 1.0) * size
    height = noise(rng, size, scale) + 0.12 * noise(rng, size, scale / 6) + 0.03 * noise(rng, size, 3)
    return np.asarray(height > np.quantile(height, 1 - share))


def add_blood(rng: Generator, layers: Field) -> None:
    """Add red blood cells to parts of some patches. They contain hemoglobin and take up much eosin."""
    if rng.random() > 0.3:
        return
    size = layers.shape[-1]
    region = noise(rng, size, rng.uniform(0.1, 0.5) * size)
    where = region > np.quantile(region, 1 - rng.uniform(0.02, 0.3))
    cells = noise(rng, size, rng.uniform(1.5, 8))
    dense = np.clip(rng.uniform(0.2, 1.4) + cells, 0, 1) * where
    strength = rng.uniform(0.4, 1.1)
    layers *= 1 - dense
    layers[BLOOD] += strength * dense
    layers[EOSIN] += rng.uniform(0.5, 1.1) * dense * np.exp(0.1 * cells)


def add_pigment(rng: Generator, layers: Field) -> None:
    """Scatter brown granules over parts of a few patches."""
    if rng.random() > 0.08:
        return
    size = layers.shape[-1]
    region = noise(rng, size, 0.2 * size) > rng.uniform(0.5, 1.5)
    grains = np.clip(noise(rng, size, rng.uniform(1, 4)) - rng.uniform(0, 1), 0, 1.5)
    layers[PIGMENT] += rng.uniform(0.3, 1.0) * grains * region
