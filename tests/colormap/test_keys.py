import numpy as np

from bottlegan.colormap.kernel import KNOWN
from bottlegan.colormap.keys import BLUE, COLORS, GREEN, RED, count_colors


def test_every_color_has_a_place_of_its_own() -> None:
    """The bits of the three channels do not overlap, and each level has different bits."""
    used = [int(np.bitwise_or.reduce(channel)) for channel in (RED, GREEN, BLUE)]
    assert sum(used) == used[0] | used[1] | used[2] == COLORS - 1
    assert all(len(np.unique(channel)) == 256 for channel in (RED, GREEN, BLUE))


def test_no_place_takes_the_bits_that_mark_a_color() -> None:
    assert int(KNOWN) > COLORS - 1


def test_neighbors_share_a_block_of_512() -> None:
    keys = (RED[8:16, None, None] | GREEN[None, 96:104, None] | BLUE[None, None, 248:256]).ravel()
    assert np.array_equal(np.sort(keys), keys.min() + np.arange(512))
    assert keys.min() % 512 == 0


def test_colors_are_counted_from_black_to_white() -> None:
    assert count_colors(0, 3).tolist() == [[0, 0, 0], [0, 0, 1], [0, 0, 2]]
    assert count_colors(255, 257).tolist() == [[0, 0, 255], [0, 1, 0]]
    assert count_colors(2**16 - 1, 2**16 + 1).tolist() == [[0, 255, 255], [1, 0, 0]]
    assert count_colors(COLORS - 1, COLORS).tolist() == [[255, 255, 255]]
    assert count_colors(0, 3).dtype == np.uint8
    assert len(count_colors(7, 7)) == 0
