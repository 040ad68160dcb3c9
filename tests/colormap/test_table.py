import copy
import hashlib
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from bottlegan.colormap.table import (
    BLOCK,
    COLORS,
    MOST_AT_ONCE,
    ColorTable,
    Keys,
    Levels,
    distinct,
    map_colors,
    pack,
    unpack,
)
from bottlegan.progress import Silent

IMAGES = arrays.arrays(np.uint8, st.tuples(st.integers(0, 5), st.integers(1, 7), st.just(3)))


def scramble(colors: Levels) -> Levels:
    """A color map in which all channels matter."""
    mixed = colors.astype(np.int64) @ np.array([[3, 1, 0], [0, 5, 2], [7, 0, 1]]) + 11
    return (mixed % 256).astype(np.uint8)


class Counting:
    """A color map that says how many colors it was asked for."""

    def __init__(self) -> None:
        self.count = self.calls = 0

    def __call__(self, colors: Levels) -> Levels:
        self.count, self.calls = self.count + len(colors), self.calls + 1
        return scramble(colors)


def noise(*shape: int, seed: int = 0) -> Levels:
    return np.random.default_rng(seed).integers(0, 256, (*shape, 3), np.uint8)


@given(IMAGES)
def test_a_table_maps_as_its_function_does(image: Levels) -> None:
    table = ColorTable(scramble)
    for _ in range(2):  # first the colors are new, then they are known
        mapped = table(image)
        assert (mapped.dtype, mapped.shape) == (image.dtype, image.shape)
        assert np.array_equal(mapped, scramble(image))


def test_an_image_of_many_blocks() -> None:
    image = noise(1, 2 * BLOCK + 100)
    assert np.array_equal(ColorTable(scramble)(image), scramble(image))


def test_black_that_stays_black_is_told_from_what_is_not_known() -> None:
    asked = Counting()
    table = ColorTable(lambda colors: 0 * asked(colors))
    black = np.zeros((4, 4, 3), np.uint8)
    assert np.array_equal(table(table(black)), black)
    assert asked.count == 1


def test_a_color_is_asked_for_once() -> None:
    asked, image = Counting(), noise(50, 60) & 0b11110000
    table, distinct = ColorTable(asked), len(np.unique(image.reshape(-1, 3), axis=0))
    table(image)
    table(image[::-1])
    assert asked.count == distinct < 50 * 60
    table(noise(1, 1, seed=1) | 1)
    assert asked.count == distinct + 1


def test_the_image_is_not_touched_and_may_be_a_view() -> None:
    image = noise(40, 30)
    before = image.copy()
    image.flags.writeable = False
    view = image[::2, ::-3]
    assert np.array_equal(ColorTable(scramble)(view), scramble(view))
    assert np.array_equal(image, before)


def test_threads_share_a_table() -> None:
    def slowly(colors: Levels) -> Levels:
        time.sleep(0.02)  # so that the others look before this one is done
        return asked(colors)

    asked, images = Counting(), [noise(64, 64, seed=i % 3) for i in range(12)]
    table = ColorTable(slowly)
    with ThreadPoolExecutor(4) as threads:
        mapped = list(threads.map(table, images))
    assert all(np.array_equal(ours, scramble(image)) for ours, image in zip(mapped, images, strict=True))
    assert asked.count <= 4 * len(np.unique(np.stack(images[:3]).reshape(-1, 3), axis=0))
    known = asked.count
    table(np.stack(images))
    assert asked.count == known


def test_many_new_colors_are_mapped_by_several_threads_and_those_of_several_images_at_once() -> None:
    names: set[str] = set()

    def slowly(colors: Levels) -> Levels:
        names.add(threading.current_thread().name)
        time.sleep(0.02)
        return asked(colors)

    asked, image = Counting(), noise(500, 700, seed=1)
    table = ColorTable(slowly)
    assert np.array_equal(table(image), scramble(image))
    assert asked.count == len(np.unique(image.reshape(-1, 3), axis=0))
    assert asked.count > 2 * MOST_AT_ONCE
    assert len(names) > 1
    images = [noise(4, 5, seed=2), noise(1, 1, seed=3), image, noise(30, 2, seed=4)]
    calls = asked.calls
    for mapped, before in zip(table.map_all(images), images, strict=True):
        assert np.array_equal(mapped, scramble(before))
    assert asked.calls == calls + 1
    assert table.map_all([]) == []


def test_a_function_that_fails_leaves_the_table_usable() -> None:
    def fail_once(colors: Levels) -> Levels:
        if not failed:
            failed.append(True)
            raise RuntimeError("out of memory")
        return scramble(colors)

    failed: list[bool] = []
    table, image = ColorTable(fail_once), noise(3, 3)
    with pytest.raises(RuntimeError, match="out of memory"):
        table(image)
    assert np.array_equal(table(image), scramble(image))


def test_a_copy_is_small_and_maps_the_same() -> None:
    image = noise(8, 8)
    table = ColorTable(scramble)
    table(image)
    sent = ForkingPickler.dumps(table)  # as a data loader sends it to its workers
    assert len(sent) < 1000
    for other in (ForkingPickler.loads(sent), copy.deepcopy(table)):
        assert np.array_equal(other(image), table(image))


@given(IMAGES)
def test_anything_can_be_asked_of_the_colors_of_an_image(image: Levels) -> None:
    assert np.array_equal(map_colors(image, scramble), scramble(image))
    total = map_colors(image, lambda colors: colors.sum(1, dtype=np.float32))
    assert np.array_equal(total, image.sum(-1, dtype=np.float32))
    assert total.dtype == np.float32


@given(arrays.arrays(np.uint32, st.integers(0, 20), elements=st.integers(0, 9)))
def test_distinct_is_unique(keys: Keys) -> None:
    assert np.array_equal(distinct(keys), np.unique(keys))


def test_a_packed_color_is_that_color() -> None:
    colors = noise(1000)
    assert np.array_equal(unpack(pack(colors)), colors)
    assert pack(np.array([[255, 255, 255]], np.uint8)) == 256**3 - 1


def test_the_whole_table_is_filled_a_block_at_a_time_and_told_by_its_hash() -> None:
    asked: list[int] = []

    def turn(colors: Levels) -> Levels:
        asked.append(len(colors))
        return colors[:, [1, 2, 0]] ^ np.array([37, 0, 5], np.uint8)

    table, told = ColorTable(turn), hashlib.sha256()
    table(noise(3, 5) | 1)  # what is known already is not asked for again
    assert len(table.digest()) == 64
    assert sum(asked) == COLORS
    assert max(asked) <= BLOCK
    green, blue = np.meshgrid(np.arange(256), np.arange(256), indexing="ij")
    for red in range(256):
        told.update(np.stack([green ^ 37, blue, np.full_like(green, red ^ 5)], axis=-1).astype(np.uint8).tobytes())
    assert table.digest() == told.hexdigest()
    assert sum(asked) == COLORS


def test_filling_reports_its_progress() -> None:
    class Watching(Silent):
        def track(self, items: Iterable[Any], label: str, total: int | None = None) -> Iterator[Any]:
            seen.append((label, total))
            yield from list(items)[:2]

    seen: list[tuple[str, int | None]] = []
    asked = Counting()
    ColorTable(asked).fill(Watching())
    assert seen == [("mapping all colors", COLORS // BLOCK)]
    assert asked.count == 2 * BLOCK
