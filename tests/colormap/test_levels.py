from decimal import Decimal, getcontext

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from bottlegan.colormap.levels import DENSITY, EDGES, STEPS, Floats, to_levels
from bottlegan.colormap.network import ColorNetwork
from bottlegan.colormap.table import ColorMap
from bottlegan.imaging.files import Pixels

getcontext().prec = 50
SAFE = Decimal("1e-10")
"""Relative distance from the middle between two floats, a million times that by which logarithms of double precision
may differ. The closest of all is 1.8e-10 away."""
LEVELS: Pixels = np.arange(256, dtype=np.uint8)


def density(place: Decimal) -> Decimal:
    return -((place + 1) / 256).ln()


def middles(value: np.float32) -> list[Decimal]:
    """Return the limits between which all numbers are rounded to `value`."""
    beside = (np.nextafter(value, np.float32(way)) for way in (-np.inf, np.inf))
    return [(Decimal(float(value)) + Decimal(float(other))) / 2 for other in beside]


def around(values: Floats) -> Floats:
    """Return each number with three neighbors on either side."""
    found = [values]
    for way in (-np.inf, np.inf):
        moved = values
        for _ in range(3):
            moved = np.nextafter(moved, np.float32(way))
            found.append(moved)
    return np.concatenate(found)


def find_levels(densities: Floats) -> Pixels:
    """Return the kernel's levels, one density at a time: the density is the bias of a map of a single color."""
    color, nothing = np.zeros((1, 3), np.uint8), np.zeros((3, 3), np.float32)
    padded = np.concatenate([densities, np.zeros(-len(densities) % 3, np.float32)]).reshape(-1, 3)
    found = [ColorMap(ColorNetwork(nothing, bias.copy()), remembers=False)(color)[0] for bias in padded]
    return np.concatenate(found)[: len(densities)]


@pytest.mark.parametrize(("values", "half"), [(DENSITY[:-1], "0"), (EDGES, "0.5")], ids=["levels", "edges"])
def test_densities_are_rounded_right_and_no_last_bit_decides(values: Floats, half: str) -> None:
    assert values.dtype == np.float32
    for level, value in enumerate(values):
        exact = density(level + Decimal(half))
        low, high = middles(value)
        assert low < exact < high
        assert min(exact - low, high - exact) / exact > SAFE


def test_there_are_256_levels_from_black_to_white() -> None:
    assert (len(DENSITY), len(EDGES)) == (256, 255)
    assert DENSITY[255] == 0
    assert DENSITY[0] == pytest.approx(np.log(256))
    assert (DENSITY[:-1] > EDGES).all()
    assert (DENSITY[1:] < EDGES).all()


def test_all_levels_survive_the_round_trip() -> None:
    assert np.array_equal(to_levels(DENSITY), LEVELS)
    assert np.array_equal(find_levels(DENSITY), LEVELS)


def test_an_edge_is_the_brighter_level_and_the_next_float_the_darker() -> None:
    for find in (to_levels, find_levels):
        assert np.array_equal(find(EDGES), LEVELS[1:])
        assert np.array_equal(find(np.nextafter(EDGES, np.float32(np.inf))), LEVELS[:-1])
        assert np.array_equal(find(np.nextafter(EDGES, np.float32(-np.inf))), LEVELS[1:])


def test_the_kernel_finds_the_same_levels_at_every_edge_and_step_of_its_search() -> None:
    steps = (np.arange(STEPS + 1) * (float(DENSITY[0]) / STEPS)).astype(np.float32)
    places = around(np.concatenate([EDGES, DENSITY, steps]))
    assert np.array_equal(find_levels(places), to_levels(places))


@given(arrays.arrays(np.float32, st.integers(1, 30), elements=st.floats(-20, 20, width=32)))
def test_the_kernel_finds_the_same_levels_of_any_density(densities: Floats) -> None:
    assert np.array_equal(find_levels(densities), to_levels(densities))


def test_what_is_beyond_white_and_black_is_white_and_black() -> None:
    largest = np.finfo(np.float32).max
    beyond = np.array([-0.0, -1e-45, -1, -largest, -np.inf, 5.6, 1e9, largest, np.inf], np.float32)
    expected = [255] * 5 + [0] * 4
    assert to_levels(beyond).tolist() == expected
    assert find_levels(beyond).tolist() == expected


def test_levels_keep_the_shape() -> None:
    assert to_levels(DENSITY.reshape(4, 8, 8)).shape == (4, 8, 8)
