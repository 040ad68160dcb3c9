"""A pyramid from the tiles of its finest level, in memory that does not depend on the slide's size.

Tiles are made in one pool of threads, a bounded number ahead, block of tiles by block of tiles. As they come, each is
written, halved, and put into its place in a tile of the next level, which goes the same way as soon as it is whole.
"""

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np

from bottlegan.core.progress import Progress, Silent, Unit
from bottlegan.imaging.files import Pixels
from bottlegan.slides.grid import Grid

BLOCK = 32
"""Tiles along a block. Those of a row are together in most files, and a block has few tiles of the next level."""
GROUP = 2**19
"""Pixels of the tiles that are made together: a color that many show is then new only once, and mapped with others."""
IN_FLIGHT = 2**22
"""Pixels of the tiles in flight: enough that no thread waits, few enough that memory stays small.

Both are the same for any number of threads, because they decide the order in which tiles are written."""
LEAST = 2  # groups in flight, however large tiles are


class Sink(Protocol):
    """Where tiles go: `encode` is called by many threads, `add` by one, in an order that is always the same."""

    grids: list[Grid]
    """The tiles of each level; each level is half of the one before, rounded up."""

    def encode(self, levels: Pixels) -> Any:
        """Return a tile (H, W, C) as it is to be stored."""
        ...

    def halve(self, levels: Pixels) -> Pixels:
        """Return a tile (H, W, C) at half the size, rounded up."""
        ...

    def add(self, level: int, index: int, data: Any) -> None:
        """Store what `encode` made of a tile, given by its place in the grid of its level."""
        ...


def stream_pyramid(
    make: Callable[[range], Sequence[Pixels]],
    sink: Sink,
    threads: int | None = None,
    progress: Progress | None = None,
    label: str = "tiles",
) -> None:
    """Make all tiles of a pyramid and hand them to `sink`; the result does not depend on the number of threads.

    Args:
        make: Returns tiles (H, W, C) of the finest level by their places in the grid; called by many threads.
        sink: Where tiles go.
        threads: How many; one a core, if not given.
        progress: Where to report how many groups of tiles of the finest level are done.
        label: What to call this there.
    """
    grid = sink.grids[0]
    pixels = grid.tile.width * grid.tile.height
    count = max(1, GROUP // pixels)
    groups, ahead = list(visit(grid, count)), max(LEAST, IN_FLIGHT // (count * pixels))
    unit = Unit(len(grid) * pixels / len(groups) / 1e6, "MP")
    with ThreadPoolExecutor(threads or os.cpu_count()) as pool:
        pyramid = _Pyramid(sink, pool)
        try:
            for places in (progress or Silent()).track(groups, label, len(groups), unit):
                pyramid.submit(0, places, partial(make, places))
                pyramid.settle(ahead)
            pyramid.settle(0)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def visit(grid: Grid, count: int) -> Iterator[range]:
    """Yield the places of all tiles, block by block, up to `count` neighbors of a row at a time."""
    for top in range(0, grid.rows, BLOCK):
        for left in range(0, grid.columns, BLOCK):
            right = min(left + BLOCK, grid.columns)
            for row in range(top, min(top + BLOCK, grid.rows)):
                for column in range(left, right, count):
                    start = row * grid.columns
                    yield range(start + column, start + min(column + count, right))


@dataclass
class _Parent:
    """A tile of a coarser level that is being put together."""

    levels: Pixels
    missing: int
    """How many tiles of the finer level are still to come."""


class _Pyramid:
    """The tiles in flight, and those that they fill."""

    def __init__(self, sink: Sink, pool: ThreadPoolExecutor) -> None:
        self._sink, self._pool = sink, pool
        self._pending: deque[tuple[int, range, Future[list[tuple[Any, Pixels | None]]]]] = deque()
        self._parents: dict[tuple[int, int], _Parent] = {}

    def submit(self, level: int, places: range, make: Callable[[], Sequence[Pixels]]) -> None:
        """Have some tiles made, encoded and halved."""
        last = level + 1 == len(self._sink.grids)

        def finish(levels: Pixels) -> tuple[Any, Pixels | None]:
            return self._sink.encode(levels), None if last else self._sink.halve(levels)

        def work() -> list[tuple[Any, Pixels | None]]:
            tiles = deque(make())
            return [finish(tiles.popleft()) for _ in places]  # none is kept longer than it takes

        self._pending.append((level, places, self._pool.submit(work)))

    def settle(self, most: int) -> None:
        """Wait until at most so many groups are in flight, oldest first, and hand on those that are done."""
        while len(self._pending) > most:
            level, places, future = self._pending.popleft()
            for place, (data, half) in zip(places, future.result(), strict=True):
                self._sink.add(level, place, data)
                if half is not None:
                    self._put(level + 1, place, half)

    def _put(self, level: int, place: int, half: Pixels) -> None:
        """Put a tile of the level below, halved, into its parent on this level, which goes on when it is whole."""
        grid, below = self._sink.grids[level], self._sink.grids[level - 1]
        row, column = divmod(place, below.columns)
        at = row // 2 * grid.columns + column // 2
        if (level, at) not in self._parents:
            tile = grid[at]
            children = min(2, below.rows - row // 2 * 2) * min(2, below.columns - column // 2 * 2)
            self._parents[level, at] = _Parent(np.empty((tile.height, tile.width, half.shape[2]), np.uint8), children)
        parent = self._parents[level, at]
        y, x = row % 2 * grid.tile.height // 2, column % 2 * grid.tile.width // 2
        parent.levels[y : y + half.shape[0], x : x + half.shape[1]] = half
        parent.missing -= 1
        if not parent.missing:
            del self._parents[level, at]
            self.submit(level, range(at, at + 1), lambda: [parent.levels])
