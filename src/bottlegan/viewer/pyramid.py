"""A slide in the form that the page requests: steps, each half the size of the one before, cut into square tiles.

The levels of a slide depend on its scanner. If a step equals a level, its tiles are read without scaling. Other steps
are reduced from the next finer level, and steps coarser than the overview are taken from the overview.
"""

import math
from contextlib import ExitStack
from functools import cached_property, lru_cache
from pathlib import Path
from threading import Lock
from weakref import finalize

import numpy as np
from PIL import Image

from bottlegan.imaging.files import Pixels
from bottlegan.slides.grid import Grid, Region, Size, halve_sizes
from bottlegan.slides.reader import Slide, measure_downsample, open_slide, read_all_but_broken
from bottlegan.slides.tissue import choose_level, read_overview

LEAST, MOST = 128, 512  # range of the side, in pixels, of tiles that keep their size from the file
TILE = 256  # side of tiles, in pixels, if the file's are outside that range
NEARLY = 1.001  # tolerance, because downsamplings of levels are rounded
FAR = 4.0  # largest reduction of a level for a tile; beyond, the overview is used if it is fine enough
QUICK = 2**24  # most pixels of a level that is read at once for a picture of the whole slide
OPEN = 8  # number of slides to keep open


class Pyramid:
    """Tiles of an open slide. Several threads may read at once."""

    def __init__(self, slide: Slide) -> None:
        """Lay out the steps, from the finest to the first that fits into one tile."""
        self.slide = slide
        width, height = slide.tile(0)
        side = width if width == height and LEAST <= width <= MOST and slide.kind != "image" else TILE
        self.tile = Size(side, side)
        self.sizes = halve_sizes(slide.levels[0], self.tile)
        self._lock = Lock()

    def grid(self, step: int) -> Grid:
        """Return the grid of tiles of a step, in pixels of that step."""
        return Grid(Region(0, 0, 0, *self.sizes[step]), self.tile)

    def locate(self, step: int, column: int, row: int) -> Region:
        """Return the region of a tile, in pixels of its step."""
        if not 0 <= step < len(self.sizes):
            raise IndexError(f"there is no step {step}")
        grid = self.grid(step)
        if not (0 <= column < grid.columns and 0 <= row < grid.rows):
            raise IndexError(f"step {step} has no tile {column}, {row}")
        return grid[row * grid.columns + column]

    def read(self, step: int, column: int, row: int) -> Pixels:
        """Return a tile (H, W, 3), uint8. Tiles at the right and lower edge are smaller. Broken parts are white."""
        tile, downsample = self.locate(step, column, row), float(2**step)
        level = choose_level(self.slide, downsample * NEARLY)
        if self._is_step(level, step):
            region = Region(level, tile.x, tile.y, tile.width, tile.height)
            return read_all_but_broken(self.slide, region)[0]
        factor = downsample / measure_downsample(self.slide, level)
        if factor > FAR and self.overview[1] <= downsample:
            overview, pixel = self.overview
            return _reduce(overview, tile, downsample / pixel, (0, 0))
        return self._reduce_level(level, tile, factor)

    def _is_step(self, level: int, step: int) -> bool:
        """Return whether a level has the pixels of a step. Sizes of levels may be rounded down."""
        (width, height), (wanted, high) = self.slide.levels[level], self.sizes[step]
        return 0 <= wanted - width <= 1 and 0 <= high - height <= 1

    def _reduce_level(self, level: int, tile: Region, factor: float) -> Pixels:
        whole = Region(level, 0, 0, *self.slide.levels[level])
        left, top = int(tile.x * factor), int(tile.y * factor)
        right, bottom = (tile.x + tile.width) * factor, (tile.y + tile.height) * factor
        wide = Region(level, left, top, int(np.ceil(right)) - left, int(np.ceil(bottom)) - top).overlap(whole)
        levels, _ = read_all_but_broken(self.slide, wide)
        return _reduce(levels, tile, factor, (left, top))

    @cached_property
    def _overview(self) -> tuple[Pixels, float]:
        overview, pixel, _ = read_overview(self.slide)
        return overview, pixel

    @property
    def overview(self) -> tuple[Pixels, float]:
        """A small overview (H, W, 3) of the whole slide, and its downsampling. It is read on first use."""
        with self._lock:
            return self._overview

    def draw_small(self, side: int) -> Pixels:
        """Return the whole slide (H, W, 3), at most `side` pixels along its longer side."""
        image = Image.fromarray(self._read_small(side))
        image.thumbnail((side, side), Image.Resampling.BOX, reducing_gap=None)
        return np.asarray(image)

    def is_quick(self, side: int) -> bool:
        """Return whether a picture of the whole slide with this many pixels on its longer side is quick to draw."""
        return math.prod(self.slide.levels[self._choose_level(side)]) <= QUICK

    def _choose_level(self, side: int) -> int:
        return choose_level(self.slide, NEARLY * max(self.slide.levels[0]) / side)

    def _read_small(self, side: int) -> Pixels:
        """Return the whole slide with at least `side` pixels on its longer side if that is quick, or what there is."""
        if self.is_quick(side):
            level = self._choose_level(side)
            return read_all_but_broken(self.slide, Region(level, 0, 0, *self.slide.levels[level]))[0]
        steps = [step for step, size in enumerate(self.sizes) if max(size) >= side]
        overview, pixel = self.overview
        step = max(steps, default=0)
        if max(overview.shape) >= side or pixel <= 2**step:
            return overview
        grid = self.grid(step)
        rows = [[self.read(step, x, y) for x in range(grid.columns)] for y in range(grid.rows)]
        return np.vstack([np.hstack(row) for row in rows])


class Shelf:
    """Open slides: those requested last, because a folder may hold more than can be open at once."""

    def __init__(self) -> None:
        """Start empty."""
        self._lock, self._opened = Lock(), lru_cache(maxsize=OPEN)(_open_pyramid)

    def open(self, path: Path) -> Pyramid:
        """Return an open slide's tiles. The slide stays open at least as long as the caller keeps them."""
        with self._lock:
            return self._opened(path)

    def close(self) -> None:
        """Close all slides that nobody uses."""
        self._opened.cache_clear()


def _open_pyramid(path: Path) -> Pyramid:
    stack = ExitStack()
    pyramid = Pyramid(stack.enter_context(open_slide(path)))
    finalize(pyramid, stack.close)
    return pyramid


def _reduce(levels: Pixels, tile: Region, factor: float, corner: tuple[int, int]) -> Pixels:
    """Return a tile, reduced by `factor` from an image whose upper left pixel is `corner`."""
    x, y = tile.x * factor - corner[0], tile.y * factor - corner[1]
    box = (x, y, x + tile.width * factor, y + tile.height * factor)
    height, width = levels.shape[:2]
    right, bottom = max(0, int(np.ceil(box[2])) - width), max(0, int(np.ceil(box[3])) - height)
    if right or bottom:  # the last pixels of a step may cover less
        levels = np.pad(levels, ((0, bottom), (0, right), (0, 0)), mode="edge")
    return np.asarray(Image.fromarray(levels).resize((tile.width, tile.height), Image.Resampling.BOX, box))
