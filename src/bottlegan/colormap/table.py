"""Color maps as tables: an image has far fewer colors than pixels, so each color is mapped once, and then looked up.

A whole slide of tissue shows some ten thousand of the 16.7 million colors of 8 bits a channel. Whatever maps a color by
itself, a network of 1x1 convolutions as well, can be evaluated on those alone, without changing a bit of the result.
"""

import hashlib
import mmap
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from bottlegan.progress import Progress, Silent

Number = TypeVar("Number", bound=np.generic)
Levels = NDArray[np.uint8]
Keys = NDArray[np.uint32]
Convert = Callable[[Levels], Levels]
"""What makes of colors (N, 3) others (N, 3), each by itself."""

COLORS = 256**3
BLOCK = 2**19
"""Pixels that one thread looks up at a time, and colors that are mapped at a time when all are."""
MOST_AT_ONCE = 2**16
"""Colors that one thread maps at a time."""
LEVELS: Keys = np.arange(256, dtype=np.uint32)
RED: Keys = (LEVELS >> 3 << 19 | (LEVELS & 7) << 6).astype(np.uint32)
GREEN: Keys = (LEVELS >> 3 << 14 | (LEVELS & 7) << 3).astype(np.uint32)
BLUE: Keys = (LEVELS >> 3 << 9 | LEVELS & 7).astype(np.uint32)
"""What each level adds to the number of a color, by which it is found in a table.

Colors are numbered in blocks of 8 x 8 x 8, not row by row, because those of an image lie close together: so they share
cache lines, and touch a fifth of the pages of memory.
"""
FEW = 4096
"""Pixels of an image whose color is new, up to which only these are looked up again."""
NONE: NDArray[np.int64] = np.empty(0, np.int64)
KNOWN = 255
"""The fourth byte of a color that is in the table."""


class ColorTable:
    """A color map that remembers: a color goes through `convert` when it is first seen, and never again.

    The table has a fixed place for each color and takes 64 MB of address space, of which the system hands out only the
    pages that hold colors seen so far. It is made by the first call. Any number of threads may call at once. A copy, or
    what a worker process gets, begins with an empty table.
    """

    def __init__(self, convert: Convert) -> None:
        """Begin with no color known."""
        self._convert = convert
        self._reset()

    def _reset(self) -> None:
        # Red, green, blue, and whether they are known. All four are one number when they are read and written, so that
        # a thread which looks a color up while another fills it in sees it whole or not at all.
        self._entries: Keys | None = None
        self._lock = Lock()

    def __getstate__(self) -> dict[str, Convert]:
        """Return what a copy needs: neither a lock nor 64 MB can be sent to another process."""
        return {"convert": self._convert}

    def __setstate__(self, state: dict[str, Convert]) -> None:
        """Begin with no color known."""
        self._convert = state["convert"]
        self._reset()

    def __call__(self, levels: Levels) -> Levels:
        """Return RGB levels (..., 3), uint8, mapped, as a new array of the same shape."""
        from bottlegan.colormap.kernel import look_up  # noqa: PLC0415 - its compiler takes time to import

        table, pixels = self._table(), np.ascontiguousarray(levels).reshape(-1, 3)
        output = np.empty_like(pixels)
        blocks = [slice(start, start + BLOCK) for start in range(0, len(pixels), BLOCK)]

        def fill(block: slice) -> int:
            return look_up(table, pixels[block], output[block], NONE)

        if len(blocks) <= 1:  # a crop is looked up in less time than it takes to start a thread
            return self.map_all([levels])[0]
        # The kernel lets go of Python's lock, so that blocks run side by side.
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            if sum(pool.map(fill, blocks)):
                self.learn(pixels)
                list(pool.map(fill, blocks))
        return output.reshape(levels.shape)

    def map_all(self, images: Iterable[Levels]) -> list[Levels]:
        """Return several images (H, W, 3), mapped; what is new in any of them is learned at once.

        An image is looked up as soon as it is there, and not kept: `images` may read one when it is asked for it.
        """
        from bottlegan.colormap.kernel import look_up  # noqa: PLC0415 - its compiler takes time to import

        table, outputs, shapes = self._table(), [], []
        again: list[tuple[Levels, Levels, NDArray[np.int64] | slice]] = []
        for image in images:
            pixels = np.ascontiguousarray(image).reshape(-1, 3)
            output, first = np.empty_like(pixels), np.empty(FEW, np.int64)
            if count := look_up(table, pixels, output, first):
                unknown = first[:count] if count <= FEW else slice(None)
                again.append((pixels[unknown], output, unknown))
            outputs.append(output)
            shapes.append(image.shape)
        if again:
            self.learn(np.concatenate([colors for colors, _, _ in again]))
        for colors, output, unknown in again:
            output[unknown] = table[pack(colors)].view(np.uint8).reshape(-1, 4)[:, :3]
        return [output.reshape(shape) for output, shape in zip(outputs, shapes, strict=True)]

    def learn(self, levels: Levels) -> None:
        """Fill in those colors of RGB levels (..., 3) that are not known yet."""
        from bottlegan.colormap.kernel import find_new  # noqa: PLC0415 - its compiler takes time to import

        table, pixels = self._table(), np.ascontiguousarray(levels).reshape(-1, 3)
        if len(pixels) <= BLOCK:  # sorting some keys is faster than clearing a mark for every color there is
            keys = pack(pixels)
            new = distinct(keys[table[keys] == 0])
        else:
            new = find_new(table, pixels, np.zeros(COLORS, np.bool_))
        # No lock: threads that learn the same color at the same time write the same number in its place.
        if len(new) <= MOST_AT_ONCE:
            self._store(new)
            return
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(self._store, np.array_split(new, -(-len(new) // MOST_AT_ONCE))))

    def _store(self, keys: Keys) -> None:
        """Map colors, given by their numbers, and put them into the table."""
        entries = np.full((len(keys), 4), KNOWN, np.uint8)
        entries[:, :3] = self._convert(unpack(keys))
        self._table()[keys] = entries.view(np.uint32)[:, 0]

    def fill(self, progress: Progress | None = None) -> None:
        """Fill in all 256^3 colors, a block at a time: whatever comes later is a mere lookup, and never waits."""
        starts = range(0, COLORS, BLOCK)
        for start in (progress or Silent()).track(starts, "mapping all colors", len(starts)):
            self.learn(unpack(np.arange(start, start + BLOCK, dtype=np.uint32)))

    def digest(self, progress: Progress | None = None) -> str:
        """Return the SHA-256 of the whole table, in hexadecimal, filling it first: two maps that share it are one.

        It is that of 256^3 times three bytes, the mapped red, green and blue of each color, from black to white: blue
        is the first to change, then green, then red.
        """
        self.fill(progress)
        table, told = self._table(), hashlib.sha256()
        for start in range(0, COLORS, BLOCK):
            told.update(table[in_order(start, start + BLOCK)].view(np.uint8).reshape(-1, 4)[:, :3].tobytes())
        return told.hexdigest()

    def _table(self) -> Keys:
        """Return the table, made when it is first needed."""
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


def map_colors(levels: Levels, function: Callable[[Levels], NDArray[Number]]) -> NDArray[Number]:
    """Return what `function` makes of each color, once a color, at each pixel of RGB levels (..., 3).

    Args:
        levels: An image, or any other array of colors.
        function: From colors (C, 3) to an array (C, ...), each color by itself.
    """
    keys = pack(levels.reshape(-1, 3))
    colors = distinct(keys)
    position = np.empty(COLORS, np.uint32)  # only what is written to costs anything
    position[colors] = np.arange(len(colors), dtype=np.uint32)
    values = function(unpack(colors))[position.take(keys)]
    return values.reshape(*levels.shape[:-1], *values.shape[1:])


def distinct(keys: Keys) -> Keys:
    """Return the numbers that occur, in order: what `np.unique` does, in a fifth of the time."""
    ordered = np.sort(keys)
    first = np.ones(len(ordered), np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    return ordered[first]


def pack(colors: Levels) -> Keys:
    """Return colors (N, 3) as one number (N,) below 256^3 each."""
    keys = RED[colors[:, 0]]
    keys |= GREEN[colors[:, 1]]
    keys |= BLUE[colors[:, 2]]
    return keys


def unpack(keys: Keys) -> Levels:
    """Return the colors (N, 3) of the numbers (N,)."""
    channels = [keys >> high << 3 & 0xF8 | keys >> low & 7 for high, low in ((19, 6), (14, 3), (9, 0))]
    return np.stack(channels, axis=1).astype(np.uint8)


def in_order(start: int, stop: int) -> Keys:
    """Return the numbers of some colors as people count them: from black to white, blue first, then green, then red."""
    counted = np.arange(start, stop, dtype=np.uint32)
    return RED[counted >> 16] | GREEN[counted >> 8 & 255] | BLUE[counted & 255]
