"""Whole slides of procedural tissue of any size, drawn tile by tile: for benchmarks and tests.

A slide consists of a few charts of fixed size, which say where tissue and pen are, and of a few patches of tissue that
are turned and laid out over it. A tile depends only on these and on its place, so memory does not grow.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.random import Generator
from scipy import ndimage, special

from bottlegan.core.config import to_values
from bottlegan.core.errors import InputError
from bottlegan.core.progress import Json, Progress, Silent
from bottlegan.core.seeding import numpy_stream
from bottlegan.imaging.files import Pixels
from bottlegan.simulation.slide_kernels import DICE, FADE, MARGIN, PITCH, cover, develop, lay
from bottlegan.simulation.styles import stain_densities
from bottlegan.simulation.tissue import draw_tissue
from bottlegan.simulation.tissue_parts import Field, noise
from bottlegan.slides.grid import Grid, Region, Size
from bottlegan.slides.stream import stream_pyramid
from bottlegan.slides.writer import Form, check_target, choose_format, writing_pyramid
from bottlegan.stain.density import BLACK, to_rgb
from bottlegan.stain.style import Style

SMALLEST, LARGEST = 256, 200_000
TILE = Size(256, 256)
MPP = 0.5
QUALITY = 80
CHART = 1024
"""Side of the charts of a slide, in cells."""
SHARE = 0.5
"""Share of a slide that is tissue."""
PATCHES = 16
"""Number of patches of tissue."""
SIDE = PITCH + 2 * MARGIN
"""Side of a patch, in pixels of the slide."""
PERIOD = 1024
"""Pixels after which ripples repeat."""
ROUGH, LOUDEST = 10.0, 3.0
"""Roughness of an edge in pixels, one standard deviation, and the most standard deviations."""
SOFT = 24.0
"""Pixels from an edge to full thickness."""
CRISP = 5000
"""Side of the smallest slide with such edges. Smaller slides have narrower ones, or they would be all edge."""
GRAIN = 1.2
"""Levels of scanner noise, one standard deviation."""
STEP = 1 / 1024
"""Step of the scanner's curve, in optical density: the error is at most a sixth of a level."""
SPECKS = 0.03
"""Share of tiles with a speck of dirt."""
PENS = ((1.6, 0.55, 1.1), (1.7, 1.0, 0.25))
"""Optical densities of green and blue ink."""


@dataclass(frozen=True)
class Scene:
    """Everything that determines the tiles of a slide."""

    size: int
    seed: int
    tissue: Field
    """(CHART, CHART) distance from the edge of the tissue in cells, positive inside."""
    pen: Field
    """(CHART, CHART) distance from the edge of the pen's stroke in cells, positive inside."""
    kind: Field
    """(CHART, CHART) from 0 to 1: the kind of tissue."""
    patches: Field
    """(PATCHES * SIDE * SIDE, 2) concentrations of all pixels of all patches, from one kind to the other."""
    rough: Field
    """(PERIOD, PERIOD) unit noise that makes the edge of tissue rough."""
    bend: Field
    """(2, PERIOD, PERIOD) pixels by which borders of patches are bent."""
    densities: Field
    """(4, 3) optical densities of hematoxylin, eosin, ink and glass, in steps of the curve."""
    curve: Field
    """(3, K) level of each channel by optical density."""
    noise: Field
    """(2, 256) what a random byte multiplies a concentration by, and what it adds to a level."""


def write_slide(
    path: Path,
    size: int,
    seed: int,
    style: Style,
    *,
    quality: int = QUALITY,
    note: Mapping[str, Json] | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
) -> None:
    """Write a pyramid of procedural tissue on glass; the same arguments give the same bytes.

    Args:
        path: File to write, ending in .tif or .tiff.
        size: Side of the slide, in pixels of 0.5 um.
        seed: Determines the tissue.
        style: Style of staining and scanning.
        quality: Quality of the JPEG tiles.
        note: More for its description, beside what it is and how to draw it again.
        threads: Number of threads; by default one per core.
        progress: Receives progress.
    """
    check_target(path, choose_format(path))
    if not SMALLEST <= size <= LARGEST:
        raise InputError(f"{path}: a slide of {size} pixels a side cannot be drawn; ask for {SMALLEST} to {LARGEST}")
    form = Form(Size(size, size), TILE, (MPP, MPP), quality, choose_format(path))
    scene = draw_scene(size, seed, style, progress)
    grid = Grid(Region(0, 0, 0, size, size), TILE)
    what: dict[str, Json] = {"source": "synthetic: procedural tissue", "seed": seed, "style": to_values(style)}
    with writing_pyramid(path, form, {**what, **(note or {})}) as writer:

        def make(places: range) -> list[Pixels]:
            return [draw_tile(scene, grid[place]) for place in places]

        stream_pyramid(make, writer, threads=threads, progress=progress, label=path.name)


def draw_scene(size: int, seed: int, style: Style, progress: Progress | None = None) -> Scene:
    """Return the slide that `seed` names, `size` x `size` pixels, in a style."""
    rng = numpy_stream(seed, "slide")
    tissue = draw_pieces(rng)
    pen = draw_pen(rng, tissue)
    kind = special.ndtr(noise(rng, CHART, CHART / 5)).astype(np.float32)
    rough = np.clip(0.4 * ripple(rng, 3) + ripple(rng, 12), -LOUDEST, LOUDEST)
    bend = np.stack([70 * ripple(rng, 90) + 15 * ripple(rng, 20) for _ in range(2)])
    # In fractions of a pixel that add up exactly wherever a tile begins.
    bend = np.clip(np.round(16 * bend) / 16, FADE - MARGIN, MARGIN - FADE)
    stains = stain_densities(style).numpy()
    densities = np.stack([*stains, PENS[rng.integers(len(PENS))], np.array(style.offset) @ stains])
    bell = special.ndtri((np.arange(256) + 0.5) / 256)
    return Scene(
        size,
        seed,
        tissue,
        pen,
        kind,
        draw_patches(seed, progress or Silent()),
        rough,
        bend,
        (densities / STEP).astype(np.float32),
        draw_curve(style),
        np.stack([1 + style.pixel_noise * bell, GRAIN * bell]).astype(np.float32),
    )


def draw_pieces(rng: Generator) -> Field:
    """Return how deep in tissue each cell of the chart is: a few irregular pieces, torn here and there."""
    count = int(rng.integers(1, 5))
    turn = rng.uniform(0, 2 * np.pi) + 2 * np.pi * np.arange(count) / count
    out = 0.25 * (count > 1)
    axes = np.indices((CHART, CHART), np.float32) / CHART
    row, column = (
        axis + 0.04 * noise(rng, CHART, 250) + 0.012 * noise(rng, CHART, 60) + 0.003 * noise(rng, CHART, 15)
        for axis in axes
    )
    nearest, second = np.full((2, CHART, CHART), np.inf, np.float32)
    for angle in turn:
        heading, stretch = rng.uniform(0, np.pi), rng.uniform(1, 1.3)
        down, right = row - 0.5 - out * np.sin(angle), column - 0.5 - out * np.cos(angle)
        along = (right * np.cos(heading) + down * np.sin(heading)) / stretch
        across = (down * np.cos(heading) - right * np.sin(heading)) * stretch
        away = np.hypot(along, across) / rng.uniform(0.85, 1.15)
        second = np.minimum(second, np.maximum(nearest, away))
        nearest = np.minimum(nearest, away)
    # Wavy like the pieces, but less so: the slide has glass along all its edges.
    between = 0.6 * axes + 0.4 * np.stack([row, column])
    border = np.minimum(between, 1 - between).min(axis=0)
    tear = np.abs(noise(rng, CHART, 120)) < 0.03 * np.maximum(noise(rng, CHART, 150) - 0.5, 0)
    free = (second - nearest > 0.03) & (border > 0.06) & ~tear
    # The cells nearest to a center, as many as make up the share of tissue.
    tissue = free & (nearest < np.quantile(nearest[free], min(1, SHARE / free.mean())))
    distance = ndimage.distance_transform_edt(tissue) - ndimage.distance_transform_edt(~tissue)
    return np.asarray(ndimage.gaussian_filter(distance, 1.5), np.float32)


def draw_pen(rng: Generator, tissue: Field) -> Field:
    """Return how deep in the pen's stroke each cell of the chart is. It follows part of the tissue's outline."""
    row, column = np.indices(tissue.shape) - CHART / 2
    away = np.angle(np.exp(1j * (np.arctan2(row, column) - rng.uniform(-np.pi, np.pi))))
    # No hand follows every wiggle.
    outline = np.abs(ndimage.gaussian_filter(tissue, CHART / 60) + CHART / 100) < 1
    label, _ = ndimage.label(outline & (np.abs(away) < 0.6), np.ones((3, 3)))
    line = label == 1 + np.bincount(label.ravel())[1:].argmax()
    return np.asarray(CHART / 160 - ndimage.distance_transform_edt(~line), np.float32)


def draw_patches(seed: int, progress: Progress) -> Field:
    """Return the pixels of all patches, (PATCHES * SIDE * SIDE, 2) concentrations, by their share of epithelium."""
    numbers = progress.track(range(PATCHES), "drawing tissue", PATCHES)
    # Tissue is drawn at 1 um a pixel.
    drawn = [draw_tissue(seed, number, round(SIDE * MPP)) for number in numbers]
    drawn.sort(key=lambda tissue: tissue.epithelium.float().mean().item())
    patches = np.empty((PATCHES, SIDE, SIDE, 2), np.float32)
    for patch, tissue in zip(patches, drawn, strict=True):
        fine = torch.nn.functional.interpolate(tissue.concentration[None], (SIDE, SIDE), mode="bilinear")
        patch[:] = fine[0].permute(1, 2, 0).numpy()
    return patches.reshape(-1, 2)


def ripple(rng: Generator, scale: float) -> Field:
    """Return smooth noise (PERIOD, PERIOD) of zero mean and unit variance that repeats, with features of `scale`."""
    wave = np.fft.rfft2(rng.standard_normal((PERIOD, PERIOD)))
    smooth = np.fft.irfft2(ndimage.fourier_gaussian(wave, scale, PERIOD), (PERIOD, PERIOD))
    return np.asarray((smooth - smooth.mean()) / smooth.std(), np.float32)


def draw_curve(style: Style) -> Field:
    """Return the level (3, K) that a style's scanner gives each channel, by optical density in steps of STEP."""
    light = to_rgb(torch.arange(0, BLACK + STEP, STEP, dtype=torch.float64)) ** style.gamma
    return (255 * torch.tensor(style.white)[:, None] * light).float().numpy()


def draw_tile(scene: Scene, tile: Region) -> Pixels:
    """Return a tile (H, W, 3) of a slide."""
    rng = numpy_stream(scene.seed, "tile", tile.y, tile.x)
    layers = draw_layers(scene, tile)
    if rng.random() < SPECKS:
        drop_speck(rng, layers)
    shape = (tile.height, tile.width, DICE)
    dice = np.frombuffer(rng.bytes(math.prod(shape)), np.uint8).reshape(shape)
    return develop(layers, scene.densities, scene.curve, dice, scene.noise)


def drop_speck(rng: Generator, layers: Field) -> None:
    """Draw a speck of dried stain, round and dark, somewhere on a tile."""
    height, width = layers.shape[:2]
    row, column = np.arange(height) - rng.uniform(0.2, 0.8) * height, np.arange(width) - rng.uniform(0.2, 0.8) * width
    layers[..., 0] += np.clip(rng.uniform(2, 7) - np.hypot(row[:, None], column), 0, 1).astype(np.float32)


def draw_layers(scene: Scene, tile: Region) -> Field:
    """Return the layers of color on a tile, (H, W, 3) concentrations: hematoxylin, eosin, ink."""
    layers = np.zeros((tile.height, tile.width, 3), np.float32)
    thickness = find_cover(scene, scene.tissue, ROUGH, tile)
    if thickness is not None:
        # Bent borders bring in cells that the tile itself does not touch.
        top, left = (tile.y - MARGIN) // PITCH, (tile.x - MARGIN) // PITCH
        rows = range(top, (tile.y + tile.height + MARGIN) // PITCH + 1)
        columns = range(left, (tile.x + tile.width + MARGIN + PITCH // 2) // PITCH + 1)
        cells = np.array([[choose_patch(scene, row, column) for column in columns] for row in rows])
        lay(layers, scene.patches, cells, scene.bend, thickness, tile.y, tile.x, top, left)
    # A pen's line is smoother than tissue.
    ink = find_cover(scene, scene.pen, ROUGH / 4, tile)
    if ink is not None:
        layers[..., 2] = ink
    return layers


def find_cover(scene: Scene, chart: Field, rough: float, tile: Region) -> Field | None:
    """Return how much of each pixel (H, W) a chart's tissue or pen covers, or None if it covers none."""
    scale, narrow = scene.size / CHART, min(1.0, scene.size / CRISP)
    swing, soft = narrow * rough, narrow * SOFT
    rows = slice(max(0, int(tile.y / scale) - 1), int((tile.y + tile.height) / scale) + 2)
    columns = slice(max(0, int(tile.x / scale) - 1), int((tile.x + tile.width) / scale) + 2)
    # Most tiles are all glass or all tissue.
    if scale * chart[rows, columns].max() <= -LOUDEST * swing:
        return None
    if scale * chart[rows, columns].min() >= LOUDEST * swing + soft:
        return np.ones((tile.height, tile.width), np.float32)
    output = np.empty((tile.height, tile.width), np.float32)
    cover(output, chart, scene.rough, scale, swing, soft, tile.y, tile.x)
    return output


def choose_patch(scene: Scene, row: int, column: int) -> tuple[int, int, int]:
    """Return a cell's first pixel in the patches, and the distances to the next pixels below and beside it."""
    rng = numpy_stream(scene.seed, "cell", row, column)
    y, x = (min(max(int((each + 0.5) * PITCH / scene.size * CHART), 0), CHART - 1) for each in (row, column))
    # Neighbors show similar tissue, but seldom the same.
    patch = int(np.clip(PATCHES * scene.kind[y, x] + rng.normal(0, 2.5), 0, PATCHES - 1))
    upward, leftward, swapped = rng.random(3) < 0.5
    below, beside = -SIDE if upward else SIDE, -1 if leftward else 1
    first = patch * SIDE * SIDE + upward * (SIDE - 1) * SIDE + leftward * (SIDE - 1)
    return (first, beside, below) if swapped else (first, below, beside)
