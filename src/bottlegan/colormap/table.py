"""A map of colors with a memory. Images have far fewer colors than pixels: each color is mapped once, then looked up.

A whole slide of tissue shows about ten thousand of the 16.7 million colors of 8 bits per channel.
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
"""Maps colors (..., 3) to colors (..., 3), each by itself."""
BLOCK = 2**19
"""Number of pixels that one thread maps at a time, also when all colors are mapped."""
NOTHING: Keys = np.empty(0, np.uint32)


class ColorMap:
    """A frozen map of colors. Images, tiles of slides and tables for other software all use this one.

    Its table has a fixed place for each color and takes 64 MB of address space. The system provides memory only for the
    pages with colors seen so far. The first call makes the table. Any number of threads may call at once. A copy starts
    with an empty table, and so does the map that a worker process receives.
    """

    def __init__(self, network: ColorNetwork, *, remembers: bool = True) -> None:
        """Take the network that maps colors. Unless `remembers`, every pixel is computed."""
        self.network, self.remembers = network, remembers
        self._reset()

    def _reset(self) -> None:
        # An entry packs red, green, blue and a mark into one number, which is read and written at once. A thread that
        # looks a color up while another fills it in therefore sees all of it or none.
        self._entries: Keys | None = None
        self._lock = Lock()

    def __getstate__(self) -> tuple[ColorNetwork, bool]:
        """Return what a copy needs. Neither the lock nor the 64 MB can be sent to another process."""
        return self.network, self.remembers

    def __setstate__(self, state: tuple[ColorNetwork, bool]) -> None:
        """Start with an empty table."""
        self.network, self.remembers = state
        self._reset()

    def __call__(self, levels: Pixels) -> Pixels:
        """Return the mapped RGB levels (..., 3), uint8, as a new array of the same shape."""
        from bottlegan.colormap.kernel import look_up, map_pixels  # noqa: PLC0415 - its compiler takes time to import

        table, pixels = self._table(), np.ascontiguousarray(levels).reshape(-1, 3)
        output, arguments = np.empty_like(pixels), self.network.arguments()

        def run(start: int) -> None:
            block, mapped = pixels[start : start + BLOCK], output[start : start + BLOCK]
            chosen = np.arange(len(block)) if len(table) == 0 else np.empty(len(block), np.int64)
            count = len(block) if len(table) == 0 else look_up(table, block, mapped, chosen, arguments.keys)
            if count:
                map_pixels(table, chosen[:count], block, mapped, arguments)

        if len(pixels) <= BLOCK:  # mapping a tile takes less time than starting a thread
            run(0)
        else:  # the kernel releases the GIL, so blocks run in parallel
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                list(pool.map(run, range(0, len(pixels), BLOCK)))
        return output.reshape(levels.shape)

    def map_densities(self, densities: Floats) -> Floats:
        """Return the mapped densities (N, 3). The input need not be densities of levels; it may be beyond white."""
        from bottlegan.colormap.kernel import map_densities  # noqa: PLC0415 - its compiler takes time to import

        contiguous = np.ascontiguousarray(densities, np.float32)
        output = np.empty_like(contiguous)
        map_densities(contiguous, output, self.network.arguments())
        return output

    def fill(self, progress: Progress | None = None) -> None:
        """Map all 256^3 colors, block by block. Every later call is only a lookup."""
        for _ in self._map_all(progress):
            pass

    def digest(self, progress: Progress | None = None) -> str:
        """Return the SHA-256 of the mapped colors in hexadecimal. Two maps with the same digest are the same map.

        The hash is over three bytes for each of the 256^3 colors, its mapped red, green and blue. Colors go from black
        to white; blue changes fastest, then green, then red.
        """
        digest = hashlib.sha256()
        for mapped in self._map_all(progress):
            digest.update(mapped.tobytes())
        return digest.hexdigest()

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
        """Return the table, which the first call makes."""
        if not self.remembers:
            return NOTHING
        if self._entries is None:
            with self._lock:
                if self._entries is None:
                    self._entries = reserve()
        return self._entries


def reserve() -> Keys:
    """Return an empty table. Its memory comes in small pages as it is written: large pages are slow to clear."""
    memory = mmap.mmap(-1, 4 * COLORS)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(memory, np.uint32)
