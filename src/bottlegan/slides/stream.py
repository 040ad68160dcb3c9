"""A pyramid from the tiles of its finest level, in memory that does not depend on the slide's size.

One pool of threads makes the tiles, block by block, with a bounded number in flight. Each finished tile is written,
halved, and put into its place in a tile of the next level. That tile goes the same way as soon as it is complete.
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
"""Tiles along the side of a block. Most files store a row of tiles together, and a block has few parent tiles."""
GROUP = 2**19
"""Pixels of the tiles that are made together: a color that several of them share is then mapped only once."""
IN_FLIGHT = 2**22
"""Pixels of the tiles in flight: enough that no thread waits, few enough that memory stays small.

Neither number depends on the number of threads, because they decide the order in which tiles are written."""
LEAST = 2  # fewest groups in flight, however large the tiles


class Sink(Protocol):
    """Receives tiles. Many threads call `encode`; one calls `add`, always in the same order."""

    grids: list[Grid]
    """The tiles of each level; each level is half of the one before, rounded up."""

    def encode(self, levels: Pixels) -> Any:
        """Return a tile (H, W, C) in the form in which it is stored."""
        ...

    def halve(self, levels: Pixels) -> Pixels:
        """Return a tile (H, W, C) at half the size, rounded up."""
        ...

    def add(self, level: int, index: int, data: Any) -> None:
        """Store the encoded tile at an index of the grid of its level."""
        ...


def stream_pyramid(
    make: Callable[[range], Sequence[Pixels]],
    sink: Sink,
    threads: int | None = None,
    progress: Progress | None = None,
    label: str = "tiles",
) -> None:
    """Make all tiles of a pyramid and pass them to `sink`. The result does not depend on the number of threads.

    Args:
        make: Returns tiles (H, W, C) of the finest level by their indices in the grid. Many threads call it.
        sink: Receives the tiles.
        threads: Number of threads; by default one per core.
        progress: Reports how many groups of tiles of the finest level are done.
        label: Label of that report.
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
    """Yield the indices of all tiles, block by block, up to `count` neighbors in a row at a time."""
    for top in range(0, grid.rows, BLOCK):
        for left in range(0, grid.columns, BLOCK):
            right = min(left + BLOCK, grid.columns)
            for row in range(top, min(top + BLOCK, grid.rows)):
                for column in range(left, right, count):
                    start = row * grid.columns
                    yield range(start + column, start + min(column + count, right))


@dataclass
class _Parent:
    """A tile of a coarser level that is being assembled."""

    levels: Pixels
    missing: int
    """Number of tiles of the finer level that are still missing."""


class _Pyramid:
    """The tiles in flight, and the coarser tiles that they fill."""

    def __init__(self, sink: Sink, pool: ThreadPoolExecutor) -> None:
        self._sink, self._pool = sink, pool
        self._pending: deque[tuple[int, range, Future[list[tuple[Any, Pixels | None]]]]] = deque()
        self._parents: dict[tuple[int, int], _Parent] = {}

    def submit(self, level: int, places: range, make: Callable[[], Sequence[Pixels]]) -> None:
        """Start making, encoding and halving some tiles."""
        last = level + 1 == len(self._sink.grids)

        def finish(levels: Pixels) -> tuple[Any, Pixels | None]:
            return self._sink.encode(levels), None if last else self._sink.halve(levels)

        def work() -> list[tuple[Any, Pixels | None]]:
            tiles = deque(make())
            return [finish(tiles.popleft()) for _ in places]  # frees each tile as soon as it is done

        self._pending.append((level, places, self._pool.submit(work)))

    def settle(self, most: int) -> None:
        """Wait until at most `most` groups are in flight, oldest first, and pass on the finished ones."""
        while len(self._pending) > most:
            level, places, future = self._pending.popleft()
            for place, (data, half) in zip(places, future.result(), strict=True):
                self._sink.add(level, place, data)
                if half is not None:
                    self._put(level + 1, place, half)

    def _put(self, level: int, place: int, half: Pixels) -> None:
        """Put a halved tile of the level below into its parent on this level, and submit the parent once complete."""
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
