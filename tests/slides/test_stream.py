import itertools
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from bottlegan.imaging.files import Pixels
from bottlegan.slides.grid import Grid, Region, Size, halve_sizes
from bottlegan.slides.halving import halve
from bottlegan.slides.stream import LEAST, stream_pyramid


class Kept:
    """Keeps tiles as they are."""

    def __init__(self, size: Size, tile: Size) -> None:
        sizes = halve_sizes(size, tile)
        self.grids = [Grid(Region(level, 0, 0, *each), tile) for level, each in enumerate(sizes)]
        self.order: list[tuple[int, int]] = []
        self.levels = [np.zeros((each.height, each.width, 3), np.uint8) for each in sizes]

    def encode(self, levels: Pixels) -> bytes:
        return levels.tobytes()

    def halve(self, levels: Pixels) -> Pixels:
        return halve(np.ascontiguousarray(levels))

    def add(self, level: int, index: int, data: bytes) -> None:
        self.order.append((level, index))
        tile, whole = self.grids[level][index], self.grids[level].region
        self.levels[level][tile.within(whole)] = np.frombuffer(data, np.uint8).reshape(tile.height, tile.width, 3)


def stream(levels: Pixels, tile: Size, threads: int) -> Kept:
    kept = Kept(Size(levels.shape[1], levels.shape[0]), tile)
    grid = kept.grids[0]
    stream_pyramid(lambda places: [levels[grid[at].within(grid.region)] for at in places], kept, threads)
    return kept


@settings(max_examples=30)
@given(st.integers(1, 200), st.integers(1, 200), st.sampled_from([Size(16, 16), Size(32, 16), Size(48, 64)]))
def test_each_level_is_the_one_before_at_half_the_size(width: int, height: int, tile: Size) -> None:
    levels = np.random.default_rng(width).integers(0, 256, (height, width, 3), dtype=np.uint8)
    kept = stream(levels, tile, 3)
    assert (kept.levels[0] == levels).all()
    for finer, coarser in itertools.pairwise(kept.levels):
        assert (np.asarray(Image.fromarray(finer).reduce(2)) == coarser).all()
    assert sorted(kept.order) == [(level, k) for level, grid in enumerate(kept.grids) for k in range(len(grid))]


def test_tiles_come_in_the_same_order_from_any_number_of_threads() -> None:
    levels = np.zeros((150, 170, 3), np.uint8)
    assert stream(levels, Size(16, 16), 1).order == stream(levels, Size(16, 16), 4).order


def test_a_bounded_number_of_tiles_is_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bottlegan.slides.stream.IN_FLIGHT", 1)
    monkeypatch.setattr("bottlegan.slides.stream.GROUP", 3 * 16 * 16)
    tile, width = Size(16, 16), 4
    kept, lock = Kept(Size(16 * width, 16 * 200), tile), threading.Lock()
    made, most = 0, 0

    def make(places: range) -> list[Pixels]:
        nonlocal made, most
        assert len(places) == (3 if places.start % width == 0 else 1)
        with lock:
            made += len(places)
            most = max(most, made - sum(level == 0 for level, _ in kept.order))
        return [np.zeros((16, 16, 3), np.uint8) for _ in places]

    stream_pyramid(make, kept, 2)
    assert made == width * 200
    assert most <= 3 * (LEAST + 1)


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt])
def test_an_error_ends_it(kind: type[BaseException], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bottlegan.slides.stream.IN_FLIGHT", 1)
    monkeypatch.setattr("bottlegan.slides.stream.GROUP", 1)
    kept, calls = Kept(Size(1600, 1600), Size(16, 16)), 0

    def make(places: range) -> list[Pixels]:
        nonlocal calls
        calls += 1
        if 20 in places:
            raise kind("stop")
        return [np.zeros((16, 16, 3), np.uint8) for _ in places]

    with pytest.raises(kind, match="stop"):
        stream_pyramid(make, kept, 2)
    assert calls < 60
    assert (0, 20) not in kept.order
