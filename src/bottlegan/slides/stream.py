"""A pyramid from the tiles of its finest level, in memory that depends on the slide's width but not on its height.

Tiles are made in one pool of threads, a bounded number ahead. As they come, in reading order, each is written, halved,
and put into a strip of the next level, one row of tiles high; a strip that is full becomes tiles in the same way.
"""

import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Protocol

import numpy as np

from bottlegan.progress import Progress, Silent
from bottlegan.slides.grid import Grid
from bottlegan.slides.image import Levels

IN_FLIGHT, LEAST = 2**23, 16
"""Pixels of the tiles in flight, and how many there are at least: enough that no thread waits, few enough that memory
stays small. The same for any number of threads, because it decides the order in which tiles are written."""


class Sink(Protocol):
    """Where tiles go: `encode` is called by many threads, `add` by one, in an order that is always the same."""

    grids: list[Grid]
    """The tiles of each level; each level is half of the one before, rounded up."""

    def encode(self, levels: Levels) -> bytes:
        """Return a tile (H, W, 3) as it is to be stored."""
        ...

    def add(self, level: int, index: int, data: bytes) -> None:
        """Store a tile, given by its place in the grid of its level."""
        ...


def stream_pyramid(
    make: Callable[[int], Levels],
    sink: Sink,
    threads: int | None = None,
    progress: Progress | None = None,
    label: str = "tiles",
) -> None:
    """Make all tiles of a pyramid and hand them to `sink`; the result does not depend on the number of threads.

    Args:
        make: Returns a tile (H, W, 3) of the finest level by its place in the grid; called by many threads.
        sink: Where tiles go.
        threads: How many; one a core, if not given.
        progress: Where to report how many tiles of the finest level are done.
        label: What to call this there.
    """
    count, tile = len(sink.grids[0]), sink.grids[0].tile
    ahead = max(LEAST, IN_FLIGHT // (tile.width * tile.height))
    with ThreadPoolExecutor(threads or os.cpu_count()) as pool:
        pyramid = _Pyramid(sink, pool)
        try:
            for index in (progress or Silent()).track(range(count), label, count):
                pyramid.submit(0, index, partial(make, index))
                pyramid.settle(ahead)
            pyramid.settle(0)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


class _Pyramid:
    """The tiles in flight, and the strips that they fill."""

    def __init__(self, sink: Sink, pool: ThreadPoolExecutor) -> None:
        from bottlegan.slides.halving import halve  # noqa: PLC0415 - its compiler takes time to import

        self._sink, self._pool, self._halve = sink, pool, halve
        self._pending: deque[tuple[int, int, Future[tuple[bytes, Levels | None]]]] = deque()
        self._strips = [np.empty((grid.tile.height, grid.region.width, 3), np.uint8) for grid in sink.grids[1:]]

    def submit(self, level: int, index: int, make: Callable[[], Levels]) -> None:
        """Have a tile made, encoded and halved."""

        def work() -> tuple[bytes, Levels | None]:
            levels = make()
            last = level + 1 == len(self._sink.grids)
            return self._sink.encode(levels), None if last else self._halve(np.ascontiguousarray(levels))

        self._pending.append((level, index, self._pool.submit(work)))

    def settle(self, most: int) -> None:
        """Wait until at most so many tiles are in flight, oldest first, and hand on those that are done."""
        while len(self._pending) > most:
            level, index, future = self._pending.popleft()
            data, half = future.result()
            self._sink.add(level, index, data)
            if half is not None:
                self._put(level + 1, index, half)

    def _put(self, level: int, index: int, half: Levels) -> None:
        """Put a tile of the level below into the strip of this level, which becomes tiles when it is full."""
        grid, below, strip = self._sink.grids[level], self._sink.grids[level - 1], self._strips[level - 1]
        row, column = divmod(index, below.columns)
        y, x = row % 2 * grid.tile.height // 2, column * grid.tile.width // 2
        strip[y : y + half.shape[0], x : x + half.shape[1]] = half
        ends_strip = row % 2 == 1 or row == below.rows - 1
        if column < below.columns - 1 or not ends_strip:
            return
        for place in range(row // 2 * grid.columns, (row // 2 + 1) * grid.columns):
            tile = grid[place]
            # A copy, because the next tiles from below go into the same strip.
            levels = strip[: tile.height, tile.x : tile.x + tile.width].copy()
            self.submit(level, place, partial(np.asarray, levels))
