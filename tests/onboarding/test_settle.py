"""Settling draws tissue half way to typical, and leaves glass alone."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bottlegan.onboarding.settle import TYPICAL, Floats, measure_uptake, settle
from bottlegan.stain.affine import AffineMap, StyleMaps

BASIS = np.array([[0.9, 1.1, 0.5], [0.1, 0.8, 0.4], [0.5, -0.3, 0.6]], np.float32)
NO_STAIN = np.zeros((1, 3), np.float32)


def draw_amounts(hematoxylin: float, eosin: float, nuclei: int = 600) -> Floats:
    """Return amounts (2000, 3) of so many pixels of nuclei, and of other tissue for the rest."""
    random = np.random.default_rng(0)
    amounts = np.zeros((2000, 3), np.float32)
    amounts[:nuclei, :2] = hematoxylin, 0.2
    amounts[nuclei:, :2] = 0.08, eosin
    return np.asarray(amounts * np.exp(random.normal(0, 0.1, amounts.shape)), np.float32)


def no_change() -> StyleMaps:
    """Return maps that leave densities as they are."""
    identity = AffineMap(np.eye(3, dtype=np.float32)[None], NO_STAIN)
    return StyleMaps(identity, identity)


@given(st.floats(0.35, 0.9), st.floats(0.3, 0.9), st.integers(200, 1600))
def test_uptake_is_that_of_nuclei_and_of_the_rest_in_any_share(hematoxylin: float, eosin: float, nuclei: int) -> None:
    uptake = measure_uptake(draw_amounts(hematoxylin, eosin, nuclei))
    assert uptake is not None
    assert uptake.hematoxylin == pytest.approx(hematoxylin, rel=0.05)
    assert uptake.eosin == pytest.approx(eosin, rel=0.05)


def test_uptake_does_not_depend_on_the_order_of_pixels() -> None:
    amounts = draw_amounts(0.6, 0.5)
    shuffled = np.random.default_rng(1).permutation(amounts)
    assert measure_uptake(shuffled) == pytest.approx(measure_uptake(amounts), rel=1e-6)


@pytest.mark.parametrize("factor", [0.6, 1.0, 1.7])
def test_tissue_comes_half_way_to_typical(factor: float) -> None:
    amounts = draw_amounts(factor * TYPICAL.hematoxylin, factor * TYPICAL.eosin)
    maps = settle(no_change(), amounts @ BASIS, BASIS, NO_STAIN)
    settled = maps.normalize((amounts @ BASIS)[None])[0] @ np.linalg.inv(BASIS)
    before, after = measure_uptake(amounts), measure_uptake(settled)
    assert before is not None
    assert after == pytest.approx(np.sqrt(np.array(before) * np.array(TYPICAL)), rel=0.01)


def test_glass_stays_and_restaining_brings_back() -> None:
    white, density = np.array([[0.03, 0.02, 0.01]], np.float32), draw_amounts(0.3, 0.25) @ BASIS
    maps = settle(no_change(), density, BASIS, white)
    assert maps.normalize(white[None])[0] == pytest.approx(white, abs=1e-6)
    assert maps.restain(maps.normalize(density[None]))[0] == pytest.approx(density, abs=1e-5)
    assert np.abs(maps.normalize(density[None])[0] - density).max() > 0.1


def test_nothing_is_settled_where_hardly_anything_is_stained() -> None:
    maps = no_change()
    assert settle(maps, np.full((500, 3), 0.01, np.float32), BASIS, NO_STAIN) is maps
