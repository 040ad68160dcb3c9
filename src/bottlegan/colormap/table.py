"""A map of colors that remembers: images have far fewer colors than pixels, so each is mapped once, and then looked up.

A whole slide of tissue shows some ten thousand of the 16.7 million colors of 8 bits a channel.
"""

import hashlib
import mmap
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Lock

import numpy as np

from bottlegan.colormap.keys import COLORS, Keys, count_colors
from bottlegan.colormap.levels import Floats
from bottlegan.colormap.network import ColorNetwork
from bottlegan.core.progress import Progress, Silent
from bottlegan.imaging.files import Pixels

Convert = Callable[[Pixels], Pixels]
"""What makes of colors (..., 3) others (..., 3), each by itself."""
BLOCK = 2**19
"""Pixels that one thread maps at a time, and colors that are mapped at a time when all are."""
NOTHING: Keys = np.empty(0, np.uint32)


class ColorMap:
    """A frozen map of colors, the one that everything takes: images, tiles of slides, tables for other software.

    Its table has a fixed place for each color and takes 64 MB of address space, of which the system hands out only the
    pages that hold colors seen so far. It is made by the first call. Any number of threads may call at once. A copy, or
    what a worker process gets, begins with an empty table.
    """

    def __init__(self, network: ColorNetwork, *, remembers: bool = True) -> None:
        """Take the network that maps colors; without a memory, each pixel is mapped anew."""
        self.network, self.remembers = network, remembers
        self._reset()

    def _reset(self) -> None:
        # Red, green, blue, and whether they are known. All four are one number when they are read and written, so that
        # a thread which looks a color up while another fills it in sees it whole or not at all.
        self._entries: Keys | None = None
        self._lock = Lock()

    def __getstate__(self) -> tuple[ColorNetwork, bool]:
        """Return what a copy needs: neither a lock nor 64 MB can be sent to another process."""
        return self.network, self.remembers

    def __setstate__(self, state: tuple[ColorNetwork, bool]) -> None:
        """Begin with no color known."""
        self.network, self.remembers = state
        self._reset()

    def __call__(self, levels: Pixels) -> Pixels:
        """Return RGB levels (..., 3), uint8, mapped, as a new array of the same shape."""
        from bottlegan.colormap.kernel import look_up, map_pixels  # noqa: PLC0415 - its compiler takes time to import

        table, pixels = self._table(), np.ascontiguousarray(levels).reshape(-1, 3)
        output, arguments = np.empty_like(pixels), self.network.arguments()

        def run(start: int) -> None:
            given, made = pixels[start : start + BLOCK], output[start : start + BLOCK]
            chosen = np.arange(len(given)) if len(table) == 0 else np.empty(len(given), np.int64)
            count = len(given) if len(table) == 0 else look_up(table, given, made, chosen, arguments.keys)
            if count:
                map_pixels(table, chosen[:count], given, made, arguments)

        if len(pixels) <= BLOCK:  # a tile is mapped in less time than it takes to start a thread
            run(0)
        else:  # the kernel lets go of Python's lock, so that blocks run side by side
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                list(pool.map(run, range(0, len(pixels), BLOCK)))
        return output.reshape(levels.shape)

    def map_densities(self, densities: Floats) -> Floats:
        """Return densities (N, 3), which need not be those of levels, mapped; they may be brighter than white."""
        from bottlegan.colormap.kernel import map_densities  # noqa: PLC0415 - its compiler takes time to import

        given = np.ascontiguousarray(densities, np.float32)
        output = np.empty_like(given)
        map_densities(given, output, self.network.arguments())
        return output

    def fill(self, progress: Progress | None = None) -> None:
        """Map all 256^3 colors, a block at a time: whatever comes later is a mere lookup."""
        for _ in self._map_all(progress):
            pass

    def digest(self, progress: Progress | None = None) -> str:
        """Return the SHA-256 of the map of all colors, in hexadecimal: two maps that share it are one, on any machine.

        It is that of 256^3 times three bytes, the mapped red, green and blue of each color, from black to white: blue
        is the first to change, then green, then red.
        """
        told = hashlib.sha256()
        for mapped in self._map_all(progress):
            told.update(mapped.tobytes())
        return told.hexdigest()

    def _map_all(self, progress: Progress | None):  # type: ignore[no-untyped-def]
        threads = os.cpu_count() or 1
        starts = range(0, COLORS, BLOCK)
        with ThreadPoolExecutor(threads) as pool:
            yield from (progress or Silent()).track(
                pool.map(self._map_block, starts), "mapping all colors", len(starts)
            )

    def _map_block(self, start: int) -> Pixels:
        return self(count_colors(start, start + BLOCK))

    def _table(self) -> Keys:
        """Return the table, made when it is first needed."""
        if not self.remembers:
            return NOTHING
        if self._entries is None:
            with self._lock:
                if self._entries is None:
                    self._entries = reserve()
        return self._entries


def reserve() -> Keys:
    """Return an empty table, whose memory comes in small pages as it is written to: large ones are slow to clear."""
    memory = mmap.mmap(-1, 4 * COLORS)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(memory, np.uint32)
