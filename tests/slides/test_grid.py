import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bottlegan.core.errors import InputError
from bottlegan.slides.grid import Grid, Region, Size, halve_sizes, parse_region

SIDES, STARTS = st.integers(1, 60), st.integers(0, 40)
REGIONS = st.builds(Region, st.just(1), STARTS, STARTS, SIDES, SIDES)
TILES = st.builds(Size, st.integers(1, 30), st.integers(1, 30))


@given(REGIONS, TILES)
def test_tiles_cover_each_pixel_exactly_once(region: Region, tile: Size) -> None:
    grid = Grid(region, tile)
    times = np.zeros((region.height, region.width), int)
    for each in grid:
        assert each.level == region.level
        assert 0 < each.width <= tile.width
        assert 0 < each.height <= tile.height
        times[each.within(region)] += 1
    assert (times == 1).all()
    assert len(grid) == grid.columns * grid.rows == len(list(grid))


@given(REGIONS, TILES, REGIONS)
def test_tiles_that_touch_a_region_are_those_that_share_pixels(region: Region, tile: Size, other: Region) -> None:
    grid = Grid(region, tile)
    shared = [k for k, each in enumerate(grid) if each.overlap(other).width and each.overlap(other).height]
    assert list(grid.touching(other)) == shared


def test_there_is_no_tile_beyond_the_last() -> None:
    with pytest.raises(IndexError):
        Grid(Region(0, 0, 0, 10, 10), Size(5, 5))[4]


@given(st.builds(Size, st.integers(1, 5000), st.integers(1, 5000)))
def test_a_pyramid_is_halved_down_to_one_tile(size: Size) -> None:
    sizes = halve_sizes(size, Size(256, 128))
    assert sizes[0] == size
    for finer, coarser in itertools.pairwise(sizes):
        assert coarser == Size((finer.width + 1) // 2, (finer.height + 1) // 2)
        assert finer.width > 256 or finer.height > 128
    assert sizes[-1].width <= 256
    assert sizes[-1].height <= 128


def test_a_region_is_written_as_four_numbers() -> None:
    assert parse_region("1, 2,3,4", 5) == Region(5, 1, 2, 3, 4)
    for text in ("", "1,2,3", "1,2,3,4,5", "1,2,3,x", "1.5,2,3,4", "-1,0,3,3", "0,0,0,3", "0,0,3,0"):
        with pytest.raises(InputError, match="--region"):
            parse_region(text, 0)
