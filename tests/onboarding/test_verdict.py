import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bottlegan.onboarding.verdict import (
    GOOD_ERROR,
    GOOD_GAIN,
    LEAST_CONTRAST,
    LEAST_HE,
    LEAST_TISSUE,
    LIKELY_HE,
    MOST_DARKNESS,
    Verdict,
    diagnose,
)

USUAL = {"expected_error": 5.0, "gain": 1.2, "is_he": 0.99, "tissue": 0.8, "contrast": 1.5, "darkness": 0.6}
MUCH = st.floats(0, 1e6)
SHARES = st.floats(0, 1)
RANK = {Verdict.GOOD: 0, Verdict.UNCERTAIN: 1, Verdict.REFUSED: 2}


def test_nothing_unusual_is_good_and_says_what_to_expect() -> None:
    found = diagnose(**USUAL)
    assert (found.verdict, found.reason) == (Verdict.GOOD, "expected error 5 levels")
    assert {name: getattr(found, name) for name in USUAL} == USUAL


@pytest.mark.parametrize(
    ("name", "line", "below", "above"),
    [
        ("expected_error", GOOD_ERROR, Verdict.GOOD, Verdict.UNCERTAIN),
        ("gain", GOOD_GAIN, Verdict.GOOD, Verdict.UNCERTAIN),
        ("is_he", LEAST_HE, Verdict.REFUSED, Verdict.UNCERTAIN),
        ("is_he", LIKELY_HE, Verdict.UNCERTAIN, Verdict.GOOD),
        ("tissue", LEAST_TISSUE, Verdict.REFUSED, Verdict.GOOD),
        ("contrast", LEAST_CONTRAST, Verdict.REFUSED, Verdict.GOOD),
        ("darkness", MOST_DARKNESS, Verdict.GOOD, Verdict.REFUSED),
    ],
)
def test_each_line_is_drawn_where_the_table_says(name: str, line: float, below: Verdict, above: Verdict) -> None:
    assert diagnose(**USUAL | {name: 0.999 * line}).verdict == below
    assert diagnose(**USUAL | {name: 1.001 * line}).verdict == above


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"expected_error": 31.0}, "expected error 31 levels"),
        ({"gain": 5.5}, r"noise is amplified 5\.5 times"),
        ({"is_he": 0.7}, "may not be those of hematoxylin and eosin"),
        ({"is_he": 0.1}, "not those of hematoxylin and eosin"),
        ({"tissue": 0.0}, "no tissue found"),
        ({"contrast": 0.0}, "no tissue found"),
        ({"gain": 9.0, "expected_error": 99.0}, "noise is amplified"),
        ({"is_he": 0.1, "expected_error": 99.0}, "not those of hematoxylin and eosin"),
        ({"tissue": 0.0, "is_he": 0.1}, "no tissue found"),
    ],
)
def test_every_reason_but_that_of_a_good_style_names_a_remedy(changed: dict[str, float], reason: str) -> None:

    found = diagnose(**USUAL | changed)
    assert found.verdict != Verdict.GOOD
    assert re.match(reason, found.reason) or reason in found.reason
    assert ";" in found.reason
    assert "\n" not in found.reason


@given(MUCH, MUCH, SHARES, SHARES, st.floats(0, 6), st.sampled_from(["tissue", "contrast"]))
def test_what_is_blank_is_refused_whatever_else(
    error: float, gain: float, is_he: float, tissue: float, contrast: float, blank: str
) -> None:
    figures: dict[str, Any] = {
        "expected_error": error,
        "gain": gain,
        "is_he": is_he,
        "tissue": tissue,
        "contrast": contrast,
        "darkness": 6 - contrast,
        blank: 0.0,
    }
    found = diagnose(**figures)
    assert found.verdict == Verdict.REFUSED
    assert "no tissue" in found.reason


@given(MUCH, MUCH, SHARES, SHARES, st.floats(0, 6), st.floats(1, 10), st.sampled_from(list(USUAL)))
def test_a_worse_figure_never_gives_a_better_verdict(
    error: float, gain: float, is_he: float, tissue: float, contrast: float, factor: float, worse: str
) -> None:
    figures = dict(zip(USUAL, (error, gain, is_he, tissue, contrast, 6 - contrast), strict=True))
    grows = worse in ("expected_error", "gain", "darkness")
    change = figures[worse] * factor if grows else figures[worse] / factor
    assert RANK[diagnose(**figures | {worse: change}).verdict] >= RANK[diagnose(**figures).verdict]


@pytest.mark.parametrize("name", list(USUAL))
def test_what_is_not_a_number_is_never_good(name: str) -> None:
    assert diagnose(**USUAL | {name: float("nan")}).verdict != Verdict.GOOD
