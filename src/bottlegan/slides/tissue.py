"""Where the tissue of a slide is, and some tiles of it, as fitting a style needs them."""

import math

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from bottlegan.colormap.levels import DENSITY
from bottlegan.core.errors import InputError
from bottlegan.core.seeding import numpy_stream
from bottlegan.imaging.files import Pixels
from bottlegan.slides.grid import Grid, Region, Size
from bottlegan.slides.reader import Broken, Slide, measure_downsample, read_all_but_broken

MICROMETERS = 1.0  # of a pixel that a style is fitted to: 10x magnification
PLAUSIBLE = (0.02, 20.0)  # micrometers a pixel that a microscope can give; else the file's resolution means nothing
COARSER = 2.8  # downsampling that is aimed at where that is unknown, halfway from 2 to 4
SPOT = 16.0  # pixels that a style is fitted to along one of the overview, about a cell, ...
MOST_SPOTS = 2**18  # ... or more, so that memory does not grow with the slide
BLOCK = 2048  # pixels a side that are read at once for the overview, which bounds memory
BRIGHTEST = 0.05  # share of a slide that is glass, at least
DARKEST_GLASS = 0.2  # optical density that glass may have; where there is none, pale tissue is not taken for it
TISSUE_FLOOR, TISSUE_SHARE = 0.05, 0.5  # density from which on a pixel is tissue, and its share of what is typical
INK_DENSITY = 0.25  # optical density above glass that ink has
INK_GREEN = 0.75  # share of the strongest channel's density below which green is not H&E's [0.93 of blue hematoxylin]
INK_SHARE = 0.5  # of what is dark, from which on that is how the slide is stained
MOSTLY, BARELY = 0.5, 0.1  # share of tissue that a tile should have, and that it must have where tissue is scarce


def sample_tissue(
    slide: Slide, count: int = 16, size: int = 256, seed: int = 0, downsample: float | None = None
) -> list[Pixels]:
    """Return tiles of tissue (size, size, 3), uint8 RGB, that do not overlap and are spread over all tissue.

    A pixel is about 1 micrometer, if the slide says how large its pixels are; else tiles are from the level that is
    about 2 to 4 times coarser than the finest. Transparency is flattened on white, and what cannot be read is white.

    Args:
        slide: Opened.
        count: How many tiles; there are fewer if there is less tissue.
        size: Of a tile in pixels.
        seed: Decides which; the same seed gives the same tiles.
        downsample: By how much to reduce the finest level instead.
    """
    downsample = downsample or choose_downsample(slide)
    extent = size * downsample
    overview, pixel, broken = read_overview(slide)
    corners = choose_tiles(mask_tissue(overview), mask_ink(overview), extent / pixel, count, seed)
    if not corners:
        nothing = InputError(f"{slide.path}: no tissue was found on this slide; give one with tissue")
        raise broken[0].error if broken else nothing
    return [_read_tile(slide, x * extent, y * extent, downsample, size) for x, y in corners]


def choose_downsample(slide: Slide) -> float:
    """Return by how much to reduce the finest level, at least 1, for pixels of about 1 micrometer."""
    mean = math.nan if slide.mpp is None else sum(slide.mpp) / 2
    # Written so that NaN fails it.
    if PLAUSIBLE[0] <= mean <= PLAUSIBLE[1]:
        return max(1.0, MICROMETERS / mean)
    steps = [measure_downsample(slide, level) for level in range(len(slide.levels))]
    return min(steps, key=lambda each: abs(math.log(each / COARSER)))


def choose_level(slide: Slide, downsample: float) -> int:
    """Return the coarsest level that is not reduced by more than `downsample`."""
    fine = [level for level in range(len(slide.levels)) if measure_downsample(slide, level) <= downsample]
    return max(fine, default=0)


def read_overview(slide: Slide) -> tuple[Pixels, float, list[Broken]]:
    """Return the whole slide (H, W, 3), much reduced, by how much exactly, and what was broken.

    It is read in blocks: a slide without coarse levels would not fit into memory.
    """
    width, height = slide.levels[0]
    downsample = max(SPOT * choose_downsample(slide), math.sqrt(width * height / MOST_SPOTS))
    level = choose_level(slide, downsample)
    step = measure_downsample(slide, level)
    factor = max(1, round(downsample / step))
    width, height = slide.levels[level]
    side = max(1, BLOCK // factor) * factor
    overview = np.full((math.ceil(height / factor), math.ceil(width / factor), 3), 255, np.uint8)
    broken: list[Broken] = []
    for block in Grid(Region(level, 0, 0, width, height), Size(side, side)):
        levels, lost = read_all_but_broken(slide, block)
        reduced = np.asarray(Image.fromarray(levels).reduce(factor))
        y, x = block.y // factor, block.x // factor
        overview[y : y + reduced.shape[0], x : x + reduced.shape[1]] = reduced
        broken += lost
    return overview, factor * step, broken


def measure_above_glass(overview: Pixels) -> NDArray[np.float32]:
    """Return the densities (H, W, 3) of an overview above those of bare glass."""
    density = DENSITY[overview]
    # Scanners make glass light gray; that there is more of it than of tissue must not make it tissue.
    glass = np.quantile(density.reshape(-1, 3), BRIGHTEST, axis=0).clip(max=DARKEST_GLASS).astype(np.float32)
    return np.maximum(density - glass, 0)


def mask_tissue(overview: Pixels) -> NDArray[np.bool_]:
    """Return where (H, W) tissue is: pixels that are dark, by the vote of their neighbors, so that no dust is."""
    darkness = measure_above_glass(overview).mean(axis=2)
    stained = darkness[darkness > TISSUE_FLOOR]
    typical = float(np.median(stained)) if len(stained) else 0.0
    dark = np.pad(darkness > max(TISSUE_SHARE * typical, TISSUE_FLOOR), 1, mode="edge")
    height, width = darkness.shape
    votes = sum(dark[y : y + height, x : x + width].astype(np.uint8) for y in range(3) for x in range(3))
    return np.asarray(votes >= 5)


def mask_ink(overview: Pixels) -> NDArray[np.bool_]:
    """Return where (H, W) pen may be: both stains of H&E take green light more than any other, and ink does not.

    Where most of the tissue is like that, it is the stain, and nothing is ink.
    """
    above = measure_above_glass(overview)
    strongest = above.max(axis=2)
    dark = strongest > INK_DENSITY
    ink = dark & (above[..., 1] < INK_GREEN * strongest)
    return ink if ink.sum() < INK_SHARE * dark.sum() else np.zeros_like(ink)


def choose_tiles(
    mask: NDArray[np.bool_], ink: NDArray[np.bool_], side: float, count: int, seed: int
) -> list[tuple[int, int]]:
    """Return the columns and rows of at most `count` cells of a grid, all on tissue and spread over it.

    Args:
        mask: Where tissue is, (H, W).
        ink: Where pen is, (H, W); a cell with any is not taken unless all have some, for it would pass as a stain.
        side: Of a cell in pixels of the mask; the last cells, which would reach beyond it, are left out.
        count: How many.
        seed: Decides which.
    """
    height, width = mask.shape
    across, down = max(1, int(width / side + 0.01)), max(1, int(height / side + 0.01))
    box = (0.0, 0.0, min(across * side, width), min(down * side, height))
    everywhere, inked = (
        np.asarray(Image.fromarray(each.astype(np.float32)).resize((across, down), Image.Resampling.BOX, box))
        for each in (mask, ink)
    )
    clean = np.where(inked > 0, 0, everywhere)
    shares = clean if (clean >= BARELY).any() else everywhere
    enough = MOSTLY if (shares >= MOSTLY).sum() >= count else BARELY
    found = sorted(zip(*np.nonzero(shares >= enough), strict=True), key=lambda cell: _along_curve(*map(int, cell)))
    if not found:
        return []
    random = numpy_stream(seed, "tiles")
    # Equal parts of a curve that fills the plane are compact regions: one tile of each covers the tissue evenly.
    parts = np.array_split(np.array(found), min(count, len(found)))
    return [(int(column), int(row)) for row, column in (part[random.integers(len(part))] for part in parts)]


def _along_curve(row: int, column: int) -> int:
    """Return the place of a cell on Morton's curve, which fills the plane quarter by quarter: its bits interleaved."""
    return sum((row >> bit & 1) << 2 * bit + 1 | (column >> bit & 1) << 2 * bit for bit in range(24))


def _read_tile(slide: Slide, x: float, y: float, downsample: float, size: int) -> Pixels:
    """Return a tile (size, size, 3) whose corner is at (x, y) of the finest level, reduced by `downsample`."""
    # A level that is a hair too coarse is meant: downsamplings of levels are rounded.
    level = choose_level(slide, downsample * 1.01)
    step = measure_downsample(slide, level)
    side = max(1, round(size * downsample / step))
    levels, _ = read_all_but_broken(slide, Region(level, round(x / step), round(y / step), side, side))
    if side == size:
        return levels
    return np.asarray(Image.fromarray(levels).resize((size, size), Image.Resampling.BOX))
