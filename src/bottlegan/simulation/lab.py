"""Simulated labs: a few patches as each lab's files hold them, and the same patches in the reference stain.

Two thirds of the labs are physical. Nearly one third have an artificial style of the paper's kind. A few show something
other than H&E, which onboarding has to refuse.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray

from bottlegan.core.seeding import numpy_stream, torch_stream
from bottlegan.imaging.files import Pixels
from bottlegan.imaging.tensors import to_levels
from bottlegan.simulation.organs import BLOOD, EOSIN, HEMATOXYLIN, PIGMENT, SALMON, VIOLET, Patch, draw_patch
from bottlegan.simulation.physics import (
    Floats,
    Jpeg,
    PhysicalLab,
    bump,
    compress,
    draw_physical_lab,
    expose,
    scan,
    to_reference,
)
from bottlegan.simulation.restaining import restain_patches
from bottlegan.simulation.styles import render
from bottlegan.simulation.tissue_parts import noise
from bottlegan.stain.style import LABS, PAPER, WIDE, draw_style

PATCHES = 8
"""Number of patches of each lab. The first half may be rich or poor in nuclei; the other half is random."""
DRAWN = 240
"""Side of a drawn patch, in pixels."""
SHOWN = 192
"""Side of the part of a patch that a lab shows."""
PHYSICAL, ARTIFICIAL = 0.62, 0.31
"""Shares of physical and artificial labs; the others are not H&E."""
RESTAINED = 0.85
"""Share of the artificial labs whose patches are restained by Macenko's method, as the paper does."""
TISSUES = 64
"""Number of patches that a batch of labs draws from."""


@dataclass(frozen=True)
class SimulatedLab:
    """What a lab shows, and the truth."""

    images: list[Pixels]
    """PATCHES images (SHOWN, SHOWN, 3)."""
    truth: list[Pixels]
    """The same in the reference stain."""
    glass: NDArray[np.bool_]
    """(PATCHES, SHOWN, SHOWN): where there is only glass."""
    nuclear: NDArray[np.bool_]
    """(PATCHES, SHOWN, SHOWN): where there are nuclei."""
    is_he: bool
    is_physical: bool


def draw_labs(seed: int, batch: int, count: int) -> Iterator[SimulatedLab]:
    """Draw `count` labs of batch number `batch`. They depend on these three numbers only."""
    tissues = [draw_patch(seed, batch * TISSUES + index, DRAWN) for index in range(TISSUES)]
    for index in range(count):
        yield draw_lab(numpy_stream(seed, "lab", batch, index), tissues)


def draw_lab(rng: Generator, tissues: Sequence[Patch]) -> SimulatedLab:
    """Draw a lab that shows some of the given tissues."""
    amounts, glass, nuclear = choose_tissue(rng, tissues)
    world = rng.random()
    if world < PHYSICAL:
        images = show_physically(rng, amounts)
    elif world < PHYSICAL + ARTIFICIAL:
        amounts = fold_colorants(amounts)
        if rng.random() < RESTAINED:
            amounts[:, :BLOOD] = restain_patches(amounts[:, :BLOOD])
        images = show_artificially(rng, amounts)
    else:
        images, glass = show_something_else(rng, amounts, glass)
    truth = np.rint(255 * to_reference(amounts)).astype(np.uint8).transpose(0, 2, 3, 1)
    return SimulatedLab(images, list(truth), glass, nuclear, world < PHYSICAL + ARTIFICIAL, world < PHYSICAL)


def choose_tissue(rng: Generator, tissues: Sequence[Patch]) -> tuple[Floats, NDArray[np.bool_], NDArray[np.bool_]]:
    """Return PATCHES parts of tissues, turned and mirrored: amounts, masks of glass, and masks of nuclei."""
    order = np.argsort([patch.nuclei for patch in tissues])
    third = len(order) // 3
    prostate = np.flatnonzero([patch.prostate for patch in tissues])
    pools = {"any": order, "poor": order[:third], "rich": order[-third:], "prostate": prostate}
    name = str(rng.choice([name for name, pool in pools.items() if len(pool)]))
    others = prostate if name == "prostate" else order  # some labs see one organ only
    chosen = [*rng.choice(pools[name], PATCHES // 2), *rng.choice(others, PATCHES - PATCHES // 2)]
    parts = []
    for row in chosen:
        top, left = rng.integers(0, DRAWN - SHOWN + 1, 2)
        patch = np.concatenate([tissues[row].amounts, tissues[row].glass[None], tissues[row].nuclear[None]])
        part = np.rot90(patch[:, top : top + SHOWN, left : left + SHOWN], int(rng.integers(4)), (1, 2))
        parts.append(part[..., ::-1] if rng.random() < 0.5 else part)
    stacked = np.ascontiguousarray(np.stack(parts), np.float32)
    return stacked[:, :-2], stacked[:, -2] > 0.5, stacked[:, -1] > 0.5


def show_physically(rng: Generator, amounts: Floats) -> list[Pixels]:
    """Return amounts as a physical lab's files hold them."""
    lab = draw_physical_lab(rng)
    return scan(expose(amounts, lab), lab, rng)


def fold_colorants(amounts: Floats) -> Floats:
    """Return amounts as hematoxylin and eosin alone, the only colorants in the paper's styles."""
    folded = np.zeros_like(amounts)
    folded[:, HEMATOXYLIN] = amounts[:, HEMATOXYLIN] + amounts[:, VIOLET] + 0.5 * amounts[:, PIGMENT]
    folded[:, EOSIN] = amounts[:, EOSIN] + amounts[:, SALMON] + 0.3 * amounts[:, BLOOD] + 0.3 * amounts[:, PIGMENT]
    return folded


def show_artificially(rng: Generator, amounts: Floats) -> list[Pixels]:
    """Return amounts in an artificial style, with two stains that are not too much alike."""
    variety = (WIDE, PAPER, LABS)[rng.choice(3, p=[0.35, 0.5, 0.15])]
    while True:
        style = draw_style(rng, "simulated", variety)
        hematoxylin, eosin = (np.array(stain) / np.linalg.norm(stain) for stain in (style.hematoxylin, style.eosin))
        if np.degrees(np.arccos(np.clip(hematoxylin @ eosin, -1, 1))) > 6:
            break
    noises = torch_stream(int(rng.integers(2**62)), "noise")
    images = to_levels(render(torch.from_numpy(amounts[:, :2]), style, noises)).permute(0, 2, 3, 1).numpy()
    jpeg = Jpeg(int(rng.integers(70, 97)), bool(rng.random() < 0.5)) if rng.random() < 0.3 else None
    return [compress(np.ascontiguousarray(image), jpeg) for image in images]


def show_something_else(
    rng: Generator, amounts: Floats, glass: NDArray[np.bool_]
) -> tuple[list[Pixels], NDArray[np.bool_]]:
    """Return images that are not H&E: immunohistochemistry, one stain, fluorescence, pen, or a photograph."""
    nothing = np.zeros_like(glass)
    kind = rng.choice(
        ["brown", "one stain", "gray", "dark", "photograph", "pen"], p=[0.45, 0.08, 0.07, 0.1, 0.12, 0.18]
    )
    if kind == "photograph":
        return draw_photographs(rng), nothing
    if kind == "pen":
        return draw_pen(rng), nothing
    lab = draw_physical_lab(rng)
    if kind == "brown":
        return scan(expose(stain_brown(rng, fold_colorants(amounts)), brown_lab(rng)), lab, rng), glass
    if kind == "one stain":
        amounts = fold_colorants(amounts)
        amounts[:, EOSIN if rng.random() < 0.5 else HEMATOXYLIN] = 0
    images = scan(expose(amounts, lab), lab, rng)
    if kind == "gray":
        return [np.repeat(image.mean(2, keepdims=True).astype(np.uint8), 3, axis=2) for image in images], glass
    if kind == "dark":
        return [255 - image for image in images], nothing
    return images, glass


def brown_lab(rng: Generator) -> PhysicalLab:
    """Return a lab whose second stain is DAB."""
    lab = draw_physical_lab(rng)
    absorption = lab.absorption.copy()
    brown = bump(400, rng.uniform(90, 160)) + rng.uniform(0, 0.3)
    absorption[EOSIN] = brown / brown.max() * rng.uniform(0.7, 2.0) * absorption[HEMATOXYLIN].max()
    return replace(lab, absorption=absorption)


def stain_brown(rng: Generator, amounts: Floats) -> Floats:
    """Return amounts of hematoxylin, and of brown in some of the cells, or in none."""
    stained = np.zeros_like(amounts)
    stained[:, HEMATOXYLIN] = rng.uniform(0.4, 0.9) * amounts[:, HEMATOXYLIN]
    stained[:, HEMATOXYLIN] += rng.uniform(0, 0.15) * amounts[:, EOSIN]
    share, scale = rng.uniform(-0.5, 1.5), rng.uniform(4, 40)
    for index in range(len(amounts)):
        positive = np.clip(noise(rng, SHOWN, scale) + share, 0, 1)
        carrier = amounts[index, HEMATOXYLIN if rng.random() < 0.4 else EOSIN]
        stained[index, EOSIN] = (0.05 + positive) * carrier
    return stained


def draw_photographs(rng: Generator) -> list[Pixels]:
    """Return smooth random colors, as of everyday photographs."""
    images = []
    for _ in range(PATCHES):
        layers = [noise(rng, SHOWN, scale) for scale in (60, 60, 60, 12, 12, 12, 3, 3, 3)]
        mixed = np.stack([layers[c] + 0.6 * layers[3 + c] + 0.2 * layers[6 + c] for c in range(3)], axis=-1)
        images.append(np.clip(rng.uniform(60, 200) + rng.uniform(25, 60) * mixed, 0, 255).astype(np.uint8))
    return images


def draw_pen(rng: Generator) -> list[Pixels]:
    """Return strokes of even ink, or the edge of a cover slip, on glass of one or two tones."""
    white, ink = rng.uniform(215, 255), rng.uniform(0, 150, 3)
    ink[rng.integers(3)] *= 0.3
    if rng.random() < 0.4:
        ink[:] = rng.uniform(0, 150)
    width = rng.choice([0.04, 0.35])
    images = []
    for _ in range(PATCHES):
        field = noise(rng, SHOWN, rng.uniform(15, 80))
        stroke = np.clip(3 / width * (width - np.abs(field)), 0, 1)[..., None]
        glass = white - rng.choice([0, rng.uniform(0, 25)]) * (field > 0)[..., None]
        image = glass + stroke * (ink - glass) + rng.uniform(0, 3) * rng.standard_normal((SHOWN, SHOWN, 3))
        images.append(np.clip(image, 0, 255).astype(np.uint8))
    return images
