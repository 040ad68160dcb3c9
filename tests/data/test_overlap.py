import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bottlegan.core.errors import InputError
from bottlegan.data.overlap import find_overlaps
from bottlegan.imaging.files import Pixels
from bottlegan.imaging.tensors import from_batch
from bottlegan.simulation.styles import render
from bottlegan.simulation.tissue import draw_tissue
from bottlegan.stain.style import REFERENCE

SIDE = 256


@pytest.fixture(scope="module")
def slide() -> Pixels:
    return from_batch(render(draw_tissue(3, 0, 2 * SIDE).concentration[None], REFERENCE))[0]


@pytest.fixture(scope="module")
def other() -> Pixels:
    return from_batch(render(draw_tissue(3, 1, SIDE).concentration[None], REFERENCE))[0]


@settings(max_examples=12, deadline=None)
@given(down=st.integers(0, 40), right=st.integers(0, 40))
def test_patches_of_one_place_are_found_whatever_the_shift(slide: Pixels, other: Pixels, down: int, right: int) -> None:
    first = slide[:SIDE, :SIDE]
    second = slide[4 * down : 4 * down + SIDE, 4 * right : 4 * right + SIDE]
    assert find_overlaps({"a": first, "b": other, "c": second}) == [("a", "c")]


def test_neighbors_that_only_touch_do_not_overlap(slide: Pixels, other: Pixels) -> None:
    assert find_overlaps({"a": slide[:SIDE, :SIDE], "b": slide[SIDE:, SIDE:], "c": other}) == []


def test_blank_patches_overlap_with_nothing() -> None:
    blank = np.full((SIDE, SIDE, 3), 250, np.uint8)
    assert find_overlaps({"a": blank, "b": blank.copy()}) == []


def test_sizes_must_be_the_same(other: Pixels) -> None:
    with pytest.raises(InputError, match="different sizes"):
        find_overlaps({"a": other, "b": other[:-4]})
