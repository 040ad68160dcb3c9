import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from bottlegan.imaging.files import Pixels
from bottlegan.slides.halving import halve

IMAGES = arrays(np.uint8, st.tuples(st.integers(1, 9), st.integers(1, 9), st.just(3)))


@given(IMAGES)
def test_a_pixel_is_the_mean_of_those_that_there_are(levels: Pixels) -> None:
    half = halve(levels)
    height, width = levels.shape[:2]
    assert half.shape == ((height + 1) // 2, (width + 1) // 2, 3)
    for y, x in np.ndindex(half.shape[:2]):
        mean = levels[2 * y : 2 * y + 2, 2 * x : 2 * x + 2].mean((0, 1))  # of one or two pixels at an odd edge
        assert (half[y, x] == np.floor(mean + 0.5)).all()


def test_white_stays_white_and_halves_are_rounded_up() -> None:
    assert (halve(np.full((3, 3, 3), 255, np.uint8)) == 255).all()
    columns = np.array([[[10], [11]], [[10], [11]]], np.uint8).repeat(3, axis=2)
    assert halve(columns).tolist() == [[[11, 11, 11]]]


def test_what_is_read_only_can_be_halved() -> None:
    levels = np.full((4, 4, 3), 7, np.uint8)
    levels.flags.writeable = False
    assert (halve(levels) == 7).all()
