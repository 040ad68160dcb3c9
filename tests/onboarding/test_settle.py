"""Settling draws nuclei and other tissue toward typical, by what they are and not by how much of them there is."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bottlegan.onboarding.settle import (
    MOST_DOUBT,
    TYPICAL,
    USUAL_ERROR,
    Doubles,
    Floats,
    average_classes,
    find_mend,
    find_nuclei,
    settle,
)
from bottlegan.stain.affine import AffineMap, StyleMaps

BASIS = np.array([[0.9, 1.1, 0.5], [0.1, 0.8, 0.4], [0.5, -0.3, 0.6]], np.float32)
NO_STAIN = np.zeros((1, 3), np.float32)
PIXELS = 4000
MUCH = 2 * USUAL_ERROR


def draw_amounts(change: Floats, nuclei: int = 1200) -> tuple[Floats, Floats]:
    """Return amounts (PIXELS, 3) of typical tissue after a change (2, 2), and which pixels are nuclei, 0 or 1."""
    random = np.random.default_rng(0)
    nuclear = (np.arange(PIXELS) < nuclei).astype(np.float32)
    typical = TYPICAL[np.where(nuclear > 0, 0, 1)] * np.exp(random.normal(0, 0.1, (PIXELS, 2)))
    amounts = np.concatenate([typical @ change, np.zeros((PIXELS, 1))], axis=1)
    return amounts.astype(np.float32), nuclear


def no_change() -> StyleMaps:
    """Return maps that leave densities as they are."""
    identity = AffineMap(np.eye(3, dtype=np.float32)[None], NO_STAIN)
    return StyleMaps(identity, identity)


def distance(amounts: Floats, nuclear: Floats) -> Floats:
    """Return how far the mean amounts of both classes are from typical, (2,)."""
    means = np.stack([amounts[nuclear > 0, :2].mean(0), amounts[nuclear == 0, :2].mean(0)])
    return np.linalg.norm(means - TYPICAL, axis=1)


def mend(amounts: Doubles, nuclear: Doubles) -> Doubles:
    """Return the matrix for maps that may be wholly off."""
    return find_mend(*average_classes(amounts[:, :2].astype(float), nuclear.astype(float)), 1.0)


@given(st.floats(0.6, 1.6), st.floats(0.6, 1.6), st.floats(-0.25, 0.25), st.floats(-0.25, 0.25))
def test_both_classes_come_nearer_to_typical(h: float, e: float, h_to_e: float, e_to_h: float) -> None:
    amounts, nuclear = draw_amounts(np.array([[h, h_to_e], [e_to_h, e]]))
    maps = settle(no_change(), amounts @ BASIS, nuclear, basis=BASIS, white=NO_STAIN, expected_error=MUCH)
    settled = maps.normalize((amounts @ BASIS)[None])[0] @ np.linalg.inv(BASIS)
    before, after = distance(amounts, nuclear), distance(settled, nuclear)
    assert np.linalg.norm(after) <= 0.75 * np.linalg.norm(before) + 0.01


def test_typical_tissue_stays() -> None:
    amounts, nuclear = draw_amounts(np.eye(2))
    assert mend(amounts, nuclear) == pytest.approx(np.eye(2), abs=0.02)


@given(st.integers(400, 3600))
def test_what_is_mended_does_not_depend_on_the_share_of_nuclei(nuclei: int) -> None:
    change = np.array([[0.7, 0.1], [0.0, 1.3]])
    half, other = (draw_amounts(change, count) for count in (2000, nuclei))
    mends = [mend(amounts, nuclear) for amounts, nuclear in (half, other)]
    assert mends[1] == pytest.approx(mends[0], abs=0.06)


def test_maps_are_changed_the_more_the_larger_the_expected_error() -> None:
    amounts, nuclear = draw_amounts(np.array([[0.6, 0.0], [0.0, 1.4]]))
    density = amounts @ BASIS
    left = []
    for error in (0.5 * USUAL_ERROR, USUAL_ERROR, 1.1 * USUAL_ERROR, 1.5 * USUAL_ERROR, 2 * USUAL_ERROR):
        maps = settle(no_change(), density, nuclear, basis=BASIS, white=NO_STAIN, expected_error=error)
        left.append(np.linalg.norm(distance(maps.normalize(density[None])[0] @ np.linalg.inv(BASIS), nuclear)))
    assert left[0] == left[1]
    assert left[1:] == sorted(left[1:], reverse=True)
    assert left[-1] < 0.5 * left[0]
    unknown = settle(no_change(), density, nuclear, basis=BASIS, white=NO_STAIN, expected_error=float("nan"))
    assert unknown.normalize.matrix == pytest.approx(np.eye(3)[None])


def test_doubt_has_a_limit_so_that_unusual_tissue_stays_unusual() -> None:
    amounts, nuclear = draw_amounts(np.array([[0.6, 0.0], [0.0, 1.4]]))
    limit = (1 + MOST_DOUBT) * USUAL_ERROR
    maps = [
        settle(no_change(), amounts @ BASIS, nuclear, basis=BASIS, white=NO_STAIN, expected_error=error).normalize
        for error in (0.95 * limit, limit, 10 * limit)
    ]
    assert maps[2].matrix == pytest.approx(maps[1].matrix, abs=1e-5)
    assert maps[0].matrix != pytest.approx(maps[1].matrix, abs=1e-3)


def test_it_does_not_depend_on_the_order_of_pixels() -> None:
    amounts, nuclear = draw_amounts(np.array([[0.7, 0.1], [0.0, 1.3]]))
    order = np.random.default_rng(1).permutation(PIXELS)
    assert mend(amounts[order], nuclear[order]) == pytest.approx(mend(amounts, nuclear), abs=1e-9)


def test_glass_stays_and_restaining_brings_back() -> None:
    white = np.array([[0.03, 0.02, 0.01]], np.float32)
    amounts, nuclear = draw_amounts(np.array([[0.5, 0.0], [0.0, 0.6]]))
    density = amounts @ BASIS
    maps = settle(no_change(), density, nuclear, basis=BASIS, white=white, expected_error=MUCH)
    assert maps.normalize(white[None])[0] == pytest.approx(white, abs=1e-6)
    assert maps.restain(maps.normalize(density[None]))[0] == pytest.approx(density, abs=1e-4)
    assert np.abs(maps.normalize(density[None])[0] - density).max() > 0.1


@pytest.mark.parametrize("nuclear", [0.0, 0.5, 1.0])
def test_nothing_is_settled_where_nothing_is_known(nuclear: float) -> None:
    faint = np.full((500, 2), 0.01)
    assert mend(faint, np.full(500, nuclear)) == pytest.approx(np.eye(2), abs=1e-9)
    unknown, _ = draw_amounts(np.array([[0.5, 0.0], [0.0, 0.6]]))
    assert mend(unknown, np.full(PIXELS, 0.5)) == pytest.approx(np.eye(2), abs=1e-9)


@given(st.floats(-6, 2), st.floats(1, 8), st.integers(200, 3600))
def test_nuclei_are_what_looks_most_like_them_however_little_that_is(low: float, gap: float, nuclei: int) -> None:
    is_nucleus = np.arange(PIXELS) < nuclei
    logits = low + gap * is_nucleus + np.random.default_rng(0).normal(0, 0.05 * gap, PIXELS)
    found = find_nuclei(logits)
    assert found[is_nucleus].mean() > 0.98
    assert found[~is_nucleus].mean() < 0.02


def test_where_all_pixels_look_alike_none_is_called_a_nucleus() -> None:
    assert find_nuclei(np.full(100, -2.0)) == pytest.approx(np.full(100, 0.5))
