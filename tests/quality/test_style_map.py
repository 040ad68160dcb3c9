import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bottlegan.quality.style_map import Stain, draw_style_map, draw_swatch, find_nearest, measure_apart, place_styles

COLORS = np.arange(75, dtype=np.uint8).reshape(5, 5, 3)


def make_stain(name: str, *code: float, alarm: bool = False) -> Stain:
    return Stain(name, np.array(code, np.float32), COLORS, alarm)


@given(st.integers(1, 12), st.integers(2, 24), st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_a_plane_never_shows_styles_farther_apart_than_they_are(count: int, size: int, seed: int) -> None:
    codes = np.random.default_rng(seed).normal(size=(count, size)).astype(np.float32)
    placed = place_styles(codes)
    seen = np.linalg.norm(placed.places[:, None] - placed.places[None], axis=2)
    assert (seen <= measure_apart(codes) + 1e-6).all()
    assert 0 <= placed.shown <= 1 + 1e-9


def test_styles_that_differ_in_two_ways_keep_their_distances() -> None:
    codes = np.zeros((4, 24), np.float32)
    codes[1, 3], codes[2, 7], codes[3, 3] = 1, 2, -2
    placed = place_styles(codes)
    seen = np.linalg.norm(placed.places[:, None] - placed.places[None], axis=2)
    assert seen == pytest.approx(measure_apart(codes), abs=1e-6)
    assert placed.shown == pytest.approx(1)


def test_the_nearest_style_is_found() -> None:
    stains = [make_stain("a", 0, 0), make_stain("b", 1, 1), make_stain("c", 3, 3)]
    assert find_nearest(stains) == {
        "a": ("b", pytest.approx(1)),
        "b": ("a", pytest.approx(1)),
        "c": ("b", pytest.approx(2)),
    }
    assert find_nearest(stains[:1]) == {}


def test_a_map_names_all_marks_some_and_escapes_names() -> None:
    stains = [make_stain("a", 0, 0), make_stain("<b>", 1, 0, alarm=True), make_stain("c", 1, 1)]
    drawn = draw_style_map(stains, "map")
    assert "&lt;b&gt;" in drawn
    assert "<b>" not in drawn
    assert drawn.count("#d9541e") == 1
    assert drawn.count("<line") == 2  # from each to its nearest, once
    assert draw_style_map([make_stain(name, 2, 2) for name in "ab"], "alike").count("nan") == 0


def test_a_swatch_shows_each_color() -> None:
    drawn = draw_swatch(COLORS, "a & b")
    assert drawn.count("<rect") == 25
    assert "rgb(72,73,74)" in drawn
    assert 'aria-label="a &amp; b"' in drawn
