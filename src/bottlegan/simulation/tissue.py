"""Procedural H&E prostate tissue: for demos, tests and training without any patient data.

A patch is drawn as CONCENTRATIONS of hematoxylin and eosin, so the same tissue exists in every staining style. It
shows glands with lumen and epithelium, fibrous stroma, vessels, fat and lymphocytes at about 10x magnification (1 um a
pixel). Drawing goes from large to small: plan -> objects and distances -> fiber directions -> texture -> nuclei ->
optics.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray
from scipy import ndimage
from torch import Tensor

from bottlegan.core.errors import InputError
from bottlegan.core.seeding import numpy_stream
from bottlegan.simulation.tissue_parts import (
    Field,
    Labels,
    Mask,
    Nuclei,
    Shapes,
    at,
    direction,
    noise,
    outlines,
    points,
    rasterize,
    smear,
    stamp,
)

SMALLEST = 64
"""Side of the smallest patch, in pixels: a smaller one has no room for a gland."""

SOLID = 1000.0
"""A thickness of epithelium that fills any gland."""


@dataclass(frozen=True)
class Tissue:
    """A drawn patch."""

    concentration: Tensor
    """(2, H, W) float32 >= 0: hematoxylin, eosin; 1 is the reference set's strong stain (99th percentile of tissue)."""
    epithelium: Tensor
    """(H, W) bool: true on epithelium, false on its lumen and everywhere else."""
    nuclear: Tensor
    """(H, W) float32 in [0, 1]: how much of each pixel is nucleus."""


@dataclass(frozen=True)
class Habit:
    """How one kind of hollow object grows; pairs are ranges."""

    spacing: tuple[float, float]
    """Distance between neighbors."""
    radius: tuple[float, float]
    """Radius relative to that distance."""
    aspect: float
    """Largest ratio of length to width."""
    wobble: float
    """Irregularity of the outline."""
    folds: int
    """Number of infoldings of the outline."""
    gap: tuple[float, float]
    """Width of the stroma between two objects that touch."""
    thickness: tuple[float, float]
    """Thickness of the wall; for a gland, of the epithelium."""
    cover: tuple[float, float]
    """Share of the patch where this kind grows."""


HABITS = {
    "benign": Habit((100, 230), (0.3, 0.65), 2.5, 0.3, 7, (5, 14), (9, 18), (0.15, 0.9)),
    "cystic": Habit((110, 220), (0.15, 0.5), 2.5, 0.2, 1, (5, 14), (4, 9), (0.1, 0.7)),
    "acinar": Habit((30, 65), (0.4, 0.8), 3.0, 0.15, 0, (2, 6), (8, 15), (0.15, 1.0)),
    "solid": Habit((60, 150), (0.4, 0.75), 2.0, 0.3, 1, (3, 10), (SOLID, SOLID), (0.2, 1.0)),
    "vessel": Habit((70, 130), (0.06, 0.25), 3.5, 0.3, 0, (4, 8), (1, 9), (0.1, 0.5)),
    "tear": Habit((90, 180), (0.05, 0.25), 14.0, 0.3, 0, (4, 8), (0.5, 1), (0.1, 0.6)),
    "fat": Habit((36, 50), (0.6, 0.8), 1.2, 0.1, 0, (1.5, 3), (0.5, 1), (0.1, 0.4)),
}
KINDS = tuple(HABITS)
GLANDS = 4
"""The first kinds are glands, which have epithelium."""


@dataclass(frozen=True)
class Objects:
    """Everything hollow in a patch; entry 0 of each array stands for the stroma between, entry i for label i."""

    shapes: Shapes
    kind: Labels
    thickness: Field
    rows: Field
    """Rows of nuclei in the epithelium."""
    cytoplasm: Field
    """(N + 1, 2) concentrations."""
    darkness: Field
    """Hematoxylin of the nuclei."""


@dataclass(frozen=True)
class Layout:
    """Where everything is: fields of shape (size, size)."""

    label: Labels
    kind: Labels
    """Index into KINDS, or -1 in stroma."""
    depth: Field
    """Distance inward from the outline of the object that holds a pixel."""
    outside: Field
    """Distance outward from the nearest object."""
    epithelium: Mask
    hollow: Mask
    """Lumina, and the glass where there is no tissue."""
    angle: Field
    """Direction of the fibers."""
    inward: Field
    """Direction from the outline inward: the axis of an epithelial cell."""


def draw_tissue(seed: int, index: int, size: int = 448) -> Tissue:
    """Return patch number `index` of the endless set that `seed` names, (size, size) pixels at 1 um a pixel.

    The patch depends on the three arguments only: no global generator, no order of calls.

    Raises:
        InputError: `size` is below 64.
    """
    if size < SMALLEST:
        raise InputError(f"a tissue patch of {size} pixels is too small for a gland; ask for {SMALLEST} or more")
    rng = numpy_stream(seed, "tissue", index)
    heading = rng.uniform(0, np.pi)
    objects = plan_objects(rng, size, heading)
    layout = lay_out(rng, size, objects, heading)
    concentration = draw_stroma(rng, size, layout)
    draw_epithelium(rng, concentration, layout, objects)
    draw_hollows(rng, concentration, layout)
    nuclear = draw_nuclei(rng, concentration, layout, objects)
    scanned = scan(rng, concentration)
    return Tissue(*(torch.from_numpy(each) for each in (scanned, layout.epithelium, nuclear)))


def plan_objects(rng: Generator, size: int, heading: float) -> Objects:
    """Return the hollow objects of a patch, along `heading`: one kind of gland, sometimes a second, or none."""
    kinds = ["vessel"]
    kinds += rng.choice([*KINDS[:GLANDS], "none"], 1, p=[0.42, 0.12, 0.23, 0.07, 0.16]).tolist()
    extra = (("acinar", 0.15), ("benign", 0.2), ("tear", 0.3), ("fat", 0.08))
    kinds += [kind for kind, chance in extra if rng.random() < chance]
    grown = [(KINDS.index(kind), grow(rng, size, heading, HABITS[kind])) for kind in kinds if kind != "none"]
    shapes = Shapes(*(np.concatenate([getattr(some, name) for _, some in grown]) for name in Shapes.__annotations__))
    kind = np.concatenate([np.full(len(some), number, np.int32) for number, some in grown])
    count = len(kind)
    # Each patch has its own habit, around which its glands vary: labs see patients, not averages.
    thinnest, thickest = np.array([HABITS[name].thickness for name in KINDS])[kind].T
    thickness = thinnest + (thickest - thinnest) * np.clip(rng.uniform() + rng.normal(0, 0.2, count), 0, 1)
    rows = np.where(thickness == SOLID, SOLID, np.clip(rng.normal(1.9, 0.5) + rng.normal(0, 0.3, count), 1, 3.5))
    tumor = np.isin(kind, [KINDS.index("acinar"), KINDS.index("solid")])[:, None]
    cytoplasm = np.where(tumor, [0.16, 0.38], [0.075, 0.41]) * np.exp(
        rng.normal(0, [0.3, 0.1], 2) + rng.normal(0, 0.1, (count, 2))
    )
    return Objects(
        shapes,
        np.append(-1, kind).astype(np.int32),
        np.append(0, thickness).astype(np.float32),
        np.append(0, rows).astype(np.float32),
        np.concatenate([np.zeros((1, 2)), cytoplasm]).astype(np.float32),
        np.append(0, rng.normal(0.68, 0.03) + rng.normal(0, 0.03, count)).astype(np.float32),
    )


def grow(rng: Generator, size: int, heading: float, habit: Habit) -> Shapes:
    """Return the outlines of one kind of object, crowded in a part of the patch."""
    spacing = rng.uniform(*habit.spacing)
    center = points(rng, size, spacing)
    region = noise(rng, size, max(200.0, 2 * spacing))
    cover = np.quantile(region, 1 - rng.uniform(*habit.cover))
    center = center[at(region, center) > cover]
    count = len(center)
    return Shapes(
        center,
        (spacing * rng.uniform(*habit.radius, count)).astype(np.float32),
        rng.uniform(1, habit.aspect, count).astype(np.float32),
        (heading + rng.normal(0, 0.5, count)).astype(np.float32),
        outlines(rng, count, habit.wobble, habit.folds, rng.uniform(0.2, 0.8)),
        np.full(count, rng.uniform(*habit.gap), np.float32),
    )


def lay_out(rng: Generator, size: int, objects: Objects, heading: float) -> Layout:
    """Return where everything is, from the outlines of the objects."""
    warp = (5 * noise(rng, size, 35) + 0.7 * noise(rng, size, 9), 5 * noise(rng, size, 35) + 0.7 * noise(rng, size, 9))
    label = rasterize(objects.shapes, size, warp)
    glass = find_glass(rng, size)
    label[glass] = 0
    kind = objects.kind[label]
    depth = ndimage.distance_transform_edt(label > 0).astype(np.float32)
    outside = ndimage.distance_transform_edt(label == 0).astype(np.float32)
    ragged = 1 + 0.18 * noise(rng, size, 14) + 0.1 * noise(rng, size, 4)
    gland = (kind >= 0) & (kind < GLANDS)
    holes = gland & (depth > 5) & rasterize_disks(rng, size, rng.uniform(25, 50), rng.uniform(0.1, 0.9))
    hollow = (label > 0) & (depth > objects.thickness[label] * ragged) | (holes & (objects.thickness[label] == SOLID))
    down, right = direction(depth - outside)
    # Fibers follow a broad flow and bend around obstacles; angles average as doubled vectors.
    flow = heading + 0.4 * noise(rng, size, 250) + 0.15 * noise(rng, size, 60)
    bend = 3 * np.exp(-outside / 12)
    tangent = np.arctan2(right, -down)
    angle = np.arctan2(np.sin(2 * flow) + bend * np.sin(2 * tangent), np.cos(2 * flow) + bend * np.cos(2 * tangent)) / 2
    angle += 0.2 * noise(rng, size, 14)
    return Layout(
        label, kind, depth, outside, gland & ~hollow, hollow | glass, angle.astype(np.float32), np.arctan2(down, right)
    )


def find_glass(rng: Generator, size: int) -> Mask:
    """Return where the patch shows bare glass beyond the edge of the tissue: nowhere in most patches."""
    if rng.random() > 0.07:
        return np.zeros((size, size), np.bool_)
    slope = np.linspace(-1, 1, size)
    ramp = np.cos(turn := rng.uniform(0, 2 * np.pi)) * slope + np.sin(turn) * slope[:, None]
    return np.asarray(ramp + 0.25 * noise(rng, size, 120) + 0.02 * noise(rng, size, 8) > rng.uniform(0.4, 0.9))


def rasterize_disks(rng: Generator, size: int, spacing: float, share: float) -> Mask:
    """Return round shapes of many sizes, `spacing` apart: the lumina of cribriform epithelium, or concretions."""
    center = points(rng, size, spacing)
    center = center[rng.random(len(center)) < share]
    count = len(center)
    one = np.ones(count, np.float32)
    radius = spacing * rng.uniform(0.05, 0.35, count).astype(np.float32)
    aspect, outline = 1 + 0.5 * rng.random(count, np.float32), outlines(rng, count, 0.25, 0, 0)
    flat = np.zeros((size, size), np.float32)
    return rasterize(Shapes(center, radius, aspect, one, outline, 3 * one), size, (flat, flat)) > 0


def draw_stroma(rng: Generator, size: int, layout: Layout) -> Field:
    """Return (2, size, size) concentrations of wavy fiber bundles, from dense muscle to loose, pale collagen."""
    hair = smear(rng.standard_normal((size, size), np.float32), layout.angle, (1, 1.5))
    fiber = smear(noise(rng, size, 1.5), layout.angle, (2, 4, 8))
    bundle = smear(noise(rng, size, 5), layout.angle, (4, 8, 16))
    # The walls of vessels are dense; the tissue around them is anything from dense to loose.
    loose = np.clip(rng.beta(0.9, 2.7) + 0.15 * noise(rng, size, 90), 0, 1) * (layout.label == 0)
    level = np.clip(rng.normal(0.745, 0.03), 0.5, 0.95) * (1 - 0.25 * loose + 0.06 * noise(rng, size, 60))
    # Dense fibers saturate, the gaps between them do not.
    weave = 0.11 * hair + 0.17 * fiber + 0.12 * bundle
    eosin = level * (1 + np.where(weave > 0, 0.7, 1.3) * weave)
    cleft = np.clip(0.6 * (0.3 * hair + 0.9 * fiber + 0.6 * bundle - 1.8 + 3.4 * loose), 0, 1)
    # Glands often shrink away from their stroma and leave a pale rim.
    rim = (layout.outside < 1.5) * np.clip(noise(rng, size, 25) - 0.3, 0, 1)
    eosin *= 1 - 0.92 * np.maximum(cleft, rim)
    grain = 0.4 * rng.standard_normal((size, size), np.float32) + 0.35 * noise(rng, size, 3)
    hematoxylin = rng.normal(0.057, 0.01) * (1 + grain - 0.15 * hair - 0.15 * fiber + 0.2 * noise(rng, size, 40))
    return np.maximum(np.stack([hematoxylin, eosin]), 0).astype(np.float32)


def draw_epithelium(rng: Generator, concentration: Field, layout: Layout, objects: Objects) -> None:
    """Draw cytoplasm into the epithelium: mixed stain, granular, paler toward the lumen."""
    size = concentration.shape[-1]
    apical = np.clip(layout.depth / np.minimum(objects.thickness[layout.label] + 1, 25), 0, 1)
    speckle = 0.15 * rng.standard_normal((size, size), np.float32)
    grain = 0.2 * noise(rng, size, 2) + 0.15 * noise(rng, size, 10) + speckle
    body = objects.cytoplasm[layout.label].transpose(2, 0, 1) * (1.2 - 0.4 * apical) * np.exp(grain)
    vacuole = np.clip(noise(rng, size, 4) - 0.75, 0, 1)
    concentration[:, layout.epithelium] = (body * (1 - 0.85 * vacuole))[:, layout.epithelium]


def draw_hollows(rng: Generator, concentration: Field, layout: Layout) -> None:
    """Empty the lumina to bare glass, then fill some: glands with secretion and concretions, vessels with blood."""
    size = concentration.shape[-1]
    count = int(layout.label.max()) + 1

    def each(values: NDArray[np.generic]) -> NDArray[Any]:
        return values[layout.label]

    # Glass is not white, and most lumina hold a little mucus, which takes hematoxylin only.
    mucus = each(np.maximum(rng.normal(0.03, 0.006) + rng.exponential(0.008, count), 0.01))
    concentration[:, layout.hollow] = np.stack([mucus, 0 * mucus])[:, layout.hollow]
    gland = layout.hollow & (layout.kind >= 0) & (layout.kind < GLANDS)
    # Secretion is a few flakes in one gland, a lacy or smooth filling in another.
    amount = each(np.where(rng.random(count) < 0.4, rng.uniform(0, 1.2, count), 0))
    clump = noise(rng, size, 8) + 0.8 * noise(rng, size, 30) + 0.8 * noise(rng, size, 2)
    filled = 1 - np.exp(-0.5 * np.maximum(clump - 2 + 3 * amount, 0))
    secretion = gland * (amount > 0) * filled * each(rng.uniform(0.5, 1.3, count))
    concentration += np.stack([0.06 * secretion, 0.35 * secretion]).astype(np.float32)
    # Concretions are dense, round and cracked.
    stone = gland & each(rng.random(count) < 0.12) & rasterize_disks(rng, size, 45, 0.5)
    crack = np.exp(-2 * np.clip(smear(noise(rng, size, 3), layout.angle, (2, 4, 8)) - 1, 0, 1))
    concentration[:, stone] = np.array([[0.2], [0.82]], np.float32) * crack[stone]
    # Packed red blood cells take up the most eosin of all.
    blood = layout.hollow & (layout.kind == KINDS.index("vessel")) & each(rng.random(count) < 0.3)
    cells = np.exp(0.2 * noise(rng, size, 2.5) + 0.1 * rng.standard_normal((size, size), np.float32))
    concentration[:, blood] = np.array([[0.08], [0.95]], np.float32) * cells[blood]


def draw_nuclei(rng: Generator, concentration: Field, layout: Layout, objects: Objects) -> Field:
    """Draw all nuclei over the tissue: epithelial, stromal, inflammatory. Return their share of each pixel."""
    size = concentration.shape[-1]
    groups = [
        epithelial_nuclei(rng, size, layout, objects),
        stromal_nuclei(rng, size, layout),
        lymphocytes(rng, size, layout),
    ]
    nuclei = Nuclei(*(np.concatenate([getattr(some, name) for some in groups]) for name in Nuclei.__annotations__))
    opacity, hematoxylin = stamp(nuclei, size)
    hematoxylin *= np.exp(0.15 * noise(rng, size, 1.6) + 0.15 * rng.standard_normal((size, size), np.float32))
    # The darker a nucleus, the less room for eosin.
    nuclear = np.stack([hematoxylin, np.maximum(0.36 - 0.32 * hematoxylin + 0.1 * noise(rng, size, 3), 0)])
    concentration += opacity * (nuclear - concentration)
    # The cell around a nucleus also takes up some hematoxylin.
    concentration[0] += 0.1 * ndimage.gaussian_filter(opacity, 1.5) * ~layout.hollow
    return opacity


def epithelial_nuclei(rng: Generator, size: int, layout: Layout, objects: Objects) -> Nuclei:
    """Return round nuclei, crowded in rows along the basement membrane."""
    center = points(rng, size, spacing := rng.uniform(4.3, 5.5), 0.25)
    label, depth = at(layout.label, center), at(layout.depth, center)
    reach = np.minimum(5 * objects.rows, 0.6 * objects.thickness)[label]
    # Crowded up to the last row, then cytoplasm; solid epithelium has no rows and is less crowded.
    chance = 0.03 + np.where(reach > SOLID / 2, 0.7, 0.95 * np.clip(0.8 + (reach - depth) / 4, 0, 1))
    center = center[at(layout.epithelium, center) & (depth > 1.5) & (rng.random(len(center)) < chance)]
    count = len(center)
    # Open chromatin swells a nucleus and pales it.
    pale = rng.uniform(0, 0.7)
    width = spacing * (0.32 + 0.06 * pale) * np.exp(rng.normal(0, 0.12, count))
    return Nuclei(
        center,
        (width * rng.uniform(1, 1.4, count)).astype(np.float32),
        width.astype(np.float32),
        (at(layout.inward, center) + rng.normal(0, 0.4, count)).astype(np.float32),
        (objects.darkness[at(layout.label, center)] * np.exp(rng.normal(0, 0.2, count))).astype(np.float32),
        np.full(count, pale, np.float32),
    )


def stromal_nuclei(rng: Generator, size: int, layout: Layout) -> Nuclei:
    """Return thin nuclei that lie along the fibers, and along the walls of vessels."""
    center = points(rng, size, 5, 0.5)
    crowd = 0.19 * np.exp(rng.normal(0, 0.35) + 0.5 * noise(rng, size, 40))
    chance = at(crowd, center) * np.where(at(layout.outside, center) < 3, 2, 1)
    center = center[~at(layout.hollow | layout.epithelium, center) & (rng.random(len(center)) < chance)]
    count = len(center)
    return Nuclei(
        center,
        rng.uniform(1.2, 3.3, count).astype(np.float32),
        rng.uniform(0.55, 1.15, count).astype(np.float32),
        (at(layout.angle, center) + rng.normal(0, 0.2, count)).astype(np.float32),
        np.exp(rng.normal(-0.5, 0.3, count)).astype(np.float32),
        np.zeros(count, np.float32),
    )


def lymphocytes(rng: Generator, size: int, layout: Layout) -> Nuclei:
    """Return small, dark, round nuclei: a few everywhere in the stroma, many in a cluster."""
    center = points(rng, size, 4.6, 0.35)
    cluster = np.clip(noise(rng, size, 70) - rng.uniform(1.2, 3.5), 0, 0.8) + rng.exponential(0.01)
    center = center[~at(layout.hollow | layout.epithelium, center) & (rng.random(len(center)) < at(cluster, center))]
    count = len(center)
    width = rng.uniform(1.6, 2.1, count).astype(np.float32)
    none = np.zeros(count, np.float32)
    return Nuclei(center, width * 1.1, width, none, rng.normal(0.9, 0.1, count).astype(np.float32), none)


def scan(rng: Generator, concentration: Field) -> Field:
    """Return concentrations as a scanner sees them: slightly blurred, with noise that grows with density."""
    blurred = ndimage.gaussian_filter(concentration, (0, 0.35, 0.35))
    grain = rng.standard_normal(concentration.shape, np.float32)
    # Enough noise in eosin that its strongest pixels stand out as far as in real tissue: estimates of a stain's
    # strength depend on them.
    floor, share = np.array([[0.005, 0.002], [0.04, 0.13]], np.float32)[..., None, None]
    sigma = floor + share * blurred
    return np.asarray(np.maximum(blurred + sigma * grain, 0), np.float32)
