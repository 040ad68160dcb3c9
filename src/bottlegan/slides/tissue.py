"""Finding the tissue of a slide, and sampling tiles of it for fitting a style."""

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

MICROMETERS = 1.0  # micrometers per pixel for fitting a style: 10x magnification
PLAUSIBLE = (0.02, 20.0)  # micrometers per pixel that a microscope can have; beyond, the file's resolution is wrong
COARSER = 2.8  # downsampling to aim for if the resolution is unknown, halfway from 2 to 4
SPOT = 16.0  # pixels of the fitting resolution per pixel of the overview, about a cell, ...
MOST_SPOTS = 2**18  # ... or more, so that memory does not grow with the slide
BLOCK = 2048  # side, in pixels, of the blocks read for the overview, which bounds memory
BRIGHTEST = 0.05  # at least this share of a slide is glass
DARKEST_GLASS = 0.2  # largest optical density of glass, so that pale tissue is not mistaken for glass
TISSUE_FLOOR, TISSUE_SHARE = 0.05, 0.5  # least density of tissue: absolute, and as a share of the typical density
INK_DENSITY = 0.25  # least optical density of ink above glass
INK_GREEN = 0.75  # largest green density of ink, over that of the strongest channel; blue hematoxylin has 0.93
INK_SHARE = 0.5  # if more of the dark pixels than this look like ink, it is the stain
MOSTLY, BARELY = 0.5, 0.1  # share of tissue that a tile should have, and must have where tissue is scarce


def sample_tissue(
    slide: Slide, count: int = 16, size: int = 256, seed: int = 0, downsample: float | None = None
) -> list[Pixels]:
    """Return tiles of tissue (size, size, 3), uint8 RGB, that do not overlap and are spread over all tissue.

    A pixel is about 1 micrometer if the slide states the size of its pixels. Otherwise tiles come from a level that is
    about 2 to 4 times coarser than the finest. Transparency is flattened on white, and unreadable parts are white.

    Args:
        slide: An open slide.
        count: Number of tiles; fewer if there is little tissue.
        size: Side of a tile in pixels.
        seed: The same seed gives the same tiles.
        downsample: Downsampling of the finest level to use instead.
    """
    downsample = downsample or choose_downsample(slide)
    extent = size * downsample
    overview, pixel, broken = read_overview(slide)
    corners = choose_tiles(mask_tissue(overview), mask_ink(overview), extent / pixel, count, seed)
    if not corners:
        nothing = InputError(f"{slide.path}: no tissue was found on this slide; give a slide with tissue")
        raise broken[0].error if broken else nothing
    return [_read_tile(slide, x * extent, y * extent, downsample, size) for x, y in corners]


def choose_downsample(slide: Slide) -> float:
    """Return the downsampling of the finest level, at least 1, that gives pixels of about 1 micrometer."""
    mean = math.nan if slide.mpp is None else sum(slide.mpp) / 2
    # Written so that NaN fails too.
    if PLAUSIBLE[0] <= mean <= PLAUSIBLE[1]:
        return max(1.0, MICROMETERS / mean)
    steps = [measure_downsample(slide, level) for level in range(len(slide.levels))]
    return min(steps, key=lambda step: abs(math.log(step / COARSER)))


def choose_level(slide: Slide, downsample: float) -> int:
    """Return the coarsest level that is not coarser than `downsample`."""
    fine = [level for level in range(len(slide.levels)) if measure_downsample(slide, level) <= downsample]
    return max(fine, default=0)


def read_overview(slide: Slide) -> tuple[Pixels, float, list[Broken]]:
    """Return a small overview (H, W, 3) of the whole slide, its exact downsampling, and the unreadable parts.

    It is read in blocks, because a slide without coarse levels would not fit into memory.
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
    """Return the densities (H, W, 3) of an overview above the density of bare glass."""
    density = DENSITY[overview]
    # Scanners render glass light gray. It must not become tissue just because most of the slide is glass.
    glass = np.quantile(density.reshape(-1, 3), BRIGHTEST, axis=0).clip(max=DARKEST_GLASS).astype(np.float32)
    return np.maximum(density - glass, 0)


def mask_tissue(overview: Pixels) -> NDArray[np.bool_]:
    """Return a mask (H, W) of tissue: dark pixels, smoothed by a vote of their neighbors, which removes dust."""
    darkness = measure_above_glass(overview).mean(axis=2)
    stained = darkness[darkness > TISSUE_FLOOR]
    typical = float(np.median(stained)) if len(stained) else 0.0
    dark = np.pad(darkness > max(TISSUE_SHARE * typical, TISSUE_FLOOR), 1, mode="edge")
    height, width = darkness.shape
    votes = sum(dark[y : y + height, x : x + width].astype(np.uint8) for y in range(3) for x in range(3))
    return np.asarray(votes >= 5)


def mask_ink(overview: Pixels) -> NDArray[np.bool_]:
    """Return a mask (H, W) of possible pen: both stains of H&E absorb green light most, and ink does not.

    If most of the tissue looks like that, it is the stain, and nothing is ink.
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
        mask: Mask of tissue, (H, W).
        ink: Mask of pen, (H, W). Cells with pen, which would look like stain, are avoided unless all have some.
        side: Side of a cell in pixels of the mask. Cells that would reach beyond it are left out.
        count: Most cells to return.
        seed: The same seed gives the same cells.
    """
    height, width = mask.shape
    across, down = max(1, int(width / side + 0.01)), max(1, int(height / side + 0.01))
    box = (0.0, 0.0, min(across * side, width), min(down * side, height))
    everywhere, inked = (
        np.asarray(Image.fromarray(layer.astype(np.float32)).resize((across, down), Image.Resampling.BOX, box))
        for layer in (mask, ink)
    )
    clean = np.where(inked > 0, 0, everywhere)
    shares = clean if (clean >= BARELY).any() else everywhere
    enough = MOSTLY if (shares >= MOSTLY).sum() >= count else BARELY
    cells = sorted(zip(*np.nonzero(shares >= enough), strict=True), key=lambda cell: _along_curve(*map(int, cell)))
    if not cells:
        return []
    random = numpy_stream(seed, "tiles")
    # Equal parts of a space-filling curve are compact regions, so one tile of each covers the tissue evenly.
    parts = np.array_split(np.array(cells), min(count, len(cells)))
    return [(int(column), int(row)) for row, column in (part[random.integers(len(part))] for part in parts)]


def _along_curve(row: int, column: int) -> int:
    """Return the position of a cell on the Morton curve, which fills the plane quarter by quarter: interleaved bits."""
    return sum((row >> bit & 1) << 2 * bit + 1 | (column >> bit & 1) << 2 * bit for bit in range(24))


def _read_tile(slide: Slide, x: float, y: float, downsample: float, size: int) -> Pixels:
    """Return a tile (size, size, 3) whose corner is at (x, y) of the finest level, reduced by `downsample`."""
    # Downsamplings of levels are rounded, so a level may be a hair coarser than requested.
    level = choose_level(slide, downsample * 1.01)
    step = measure_downsample(slide, level)
    side = max(1, round(size * downsample / step))
    levels, _ = read_all_but_broken(slide, Region(level, round(x / step), round(y / step), side, side))
    if side == size:
        return levels
    return np.asarray(Image.fromarray(levels).resize((size, size), Image.Resampling.BOX))
