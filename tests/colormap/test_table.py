import copy
import hashlib
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from bottlegan.colormap.kernel import KNOWN
from bottlegan.colormap.keys import BLUE, COLORS, GREEN, RED
from bottlegan.colormap.network import ColorNetwork, Ink
from bottlegan.colormap.table import BLOCK, ColorMap, reserve
from bottlegan.core.progress import Silent
from bottlegan.imaging.files import Pixels

IMAGES = arrays.arrays(np.uint8, st.tuples(st.integers(0, 5), st.integers(1, 7), st.just(3)))
STATM = Path("/proc/self/statm")


def bend() -> ColorNetwork:
    """A network with all parts: two hidden layers, and ink that stays unchanged."""
    random = np.random.default_rng(0)
    layers, shifts, last = (random.normal(0, 0.4, shape).astype(np.float32) for shape in ((2, 5, 5), (2, 5), (5, 3)))
    ink = Ink.of(np.full(3, 0.1, np.float32), np.array([[1.4, 1.9, 1.0], [0.05, 0.96, 0.62]], np.float32))
    assert ink is not None
    return ColorNetwork(np.diag([0.7, 1.2, 0.9]).astype(np.float32), np.zeros(3, np.float32), layers, shifts, last, ink)


def turn() -> ColorNetwork:
    """Red becomes what green was, green what blue was, and blue what red was."""
    matrix = np.array([[0, 0, 1], [1, 0, 0], [0, 1, 0]], np.float32)
    return ColorNetwork(matrix, np.zeros(3, np.float32))


def noise(*shape: int, seed: int = 0) -> Pixels:
    return np.random.default_rng(seed).integers(0, 256, (*shape, 3), np.uint8)


def in_pieces(network: ColorNetwork, image: Pixels) -> Pixels:
    """Map an image in pieces, with a map that remembers no colors."""
    convert, pixels = ColorMap(network, remembers=False), image.reshape(-1, 3)
    mapped = [convert(pixels[start : start + 999]) for start in range(0, len(pixels), 999)]
    return np.concatenate([*mapped, pixels[:0]]).reshape(image.shape)


def place(color: Pixels) -> int:
    return int(RED[color[0]] | GREEN[color[1]] | BLUE[color[2]])


@settings(max_examples=50)
@given(IMAGES)
def test_a_map_that_remembers_maps_as_one_that_does_not(image: Pixels) -> None:
    table = ColorMap(bend())
    for _ in range(2):  # first the colors are new, then they are remembered
        mapped = table(image)
        assert (mapped.dtype, mapped.shape) == (image.dtype, image.shape)
        assert np.array_equal(mapped, in_pieces(bend(), image))


def test_the_network_of_these_tests_changes_tissue_and_spares_ink() -> None:
    colors = np.array([[160, 90, 170], [20, 120, 60]], np.uint8)
    mapped = ColorMap(bend())(colors)
    assert (mapped[0] != colors[0]).any()
    assert (mapped[1] == colors[1]).all()


@pytest.mark.parametrize("remembers", [True, False])
def test_an_image_of_many_blocks_is_mapped_as_its_pieces_are(remembers: bool) -> None:
    image = noise(1, 2 * BLOCK + 100)
    assert np.array_equal(ColorMap(bend(), remembers=remembers)(image), in_pieces(bend(), image))


@pytest.mark.parametrize("count", [0, 1, BLOCK, BLOCK + 1])
def test_no_pixel_is_left_out_where_blocks_end(count: int) -> None:
    image = noise(count)
    assert np.array_equal(ColorMap(turn())(image), image[:, [1, 2, 0]])


def test_a_known_color_is_looked_up() -> None:
    table, color, other = ColorMap(turn()), np.array([[9, 8, 7]], np.uint8), np.array([[1, 2, 3]], np.uint8)
    table(color)
    entries = table._table()
    assert entries[place(color[0])] == KNOWN | 8 | 7 << 8 | 9 << 16
    assert np.count_nonzero(entries) == 1
    entries[place(color[0])] = KNOWN | 50 | 60 << 8 | 70 << 16
    assert table(color).tolist() == [[50, 60, 70]]
    assert table(other).tolist() == [[2, 3, 1]]


def test_black_that_stays_black_is_told_from_what_is_not_known() -> None:
    table, black = ColorMap(turn()), np.zeros((4, 4, 3), np.uint8)
    assert not table(black).any()
    assert table._table()[0] == KNOWN


def test_without_a_memory_there_is_no_table() -> None:
    table = ColorMap(turn(), remembers=False)
    table(noise(4, 4))
    assert table._entries is None
    assert len(table._table()) == 0


def test_the_image_is_not_touched_and_may_be_a_view() -> None:
    image = noise(40, 30)
    before = image.copy()
    image.flags.writeable = False
    view = image[::2, ::-3]
    mapped = ColorMap(bend())(view)
    assert np.array_equal(mapped, in_pieces(bend(), view))
    assert np.array_equal(image, before)
    assert mapped.flags.writeable


def test_threads_share_a_map_and_get_the_same() -> None:
    images = [noise(200, 300, seed=i % 3) for i in range(12)]
    alone = [in_pieces(bend(), image) for image in images[:3]]
    table = ColorMap(bend())
    with ThreadPoolExecutor(8) as threads:
        mapped = list(threads.map(table, images))
    assert all(np.array_equal(ours, alone[i % 3]) for i, ours in enumerate(mapped))
    distinct = np.unique(np.stack(images[:3]).reshape(-1, 3), axis=0)
    assert np.count_nonzero(table._table()) == len(distinct)


def test_the_number_of_cores_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    image, mapped = noise(3, BLOCK), []
    for cores in (1, 7, None):
        monkeypatch.setattr(os, "cpu_count", lambda cores=cores: cores)
        mapped.append(ColorMap(bend())(image))
    assert all(np.array_equal(each, mapped[0]) for each in mapped)


def test_a_copy_is_small_begins_empty_and_maps_the_same() -> None:
    image = noise(8, 8)
    for remembers in (True, False):
        table = ColorMap(bend(), remembers=remembers)
        table(image)
        sent = ForkingPickler.dumps(table)  # as a data loader sends it to its workers
        assert len(sent) < 5000
        for other in (ForkingPickler.loads(sent), copy.deepcopy(table)):
            assert other._entries is None
            assert other.remembers is remembers
            assert np.array_equal(other(image), table(image))


def test_a_digest_is_that_of_all_colors_counted_from_black_to_white() -> None:
    told = hashlib.sha256()
    green, blue = np.meshgrid(np.arange(256, dtype=np.uint8), np.arange(256, dtype=np.uint8), indexing="ij")
    for red in range(256):  # blue is the first to change, then green, then red
        told.update(np.stack([green, blue, np.full_like(green, red)], axis=-1).tobytes())
    table = ColorMap(turn())
    table(noise(3, 5))
    assert [table.digest(), table.digest()] == 2 * [told.hexdigest()]
    assert np.count_nonzero(table._table()) == COLORS


class Watching(Silent):
    """Records the progress, and stops after two blocks."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, int | None]] = []

    def track(self, items: Iterable[Any], label: str, total: int | None = None) -> Iterator[Any]:
        self.seen.append((label, total))
        for _, item in zip(range(2), items, strict=False):
            yield item


def test_filling_reports_its_progress() -> None:
    watching, table = Watching(), ColorMap(turn())
    table.fill(watching)
    assert watching.seen == [("mapping all colors", COLORS // BLOCK)]
    watching.seen.clear()
    assert len(table.digest(watching)) == 64
    assert watching.seen == [("mapping all colors", COLORS // BLOCK)]


@pytest.mark.skipif(not STATM.exists(), reason="only Linux says how much memory a process has")
def test_an_empty_table_takes_next_to_no_memory() -> None:
    """A map of few colors takes little memory."""

    def resident() -> float:
        return int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20

    ColorMap(turn())(noise(2))  # compiled by now
    before = resident()
    entries = reserve()
    assert (entries.nbytes, entries.dtype) == (2**26, np.uint32)
    assert resident() - before < 1
    table = ColorMap(turn())
    assert table._entries is None
    table(noise(1, 2))
    assert resident() - before < 2
