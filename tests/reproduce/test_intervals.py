import math

import pytest

from bottlegan.reproduce.intervals import format_difference, format_interval, half_width


def test_the_half_width_is_student_s() -> None:
    # 2.776 is the 97.5 % quantile of Student's t with 4 degrees of freedom; the standard deviation is sqrt(2.5).
    assert half_width([1, 2, 3, 4, 5]) == pytest.approx(2.7764 * math.sqrt(2.5) / math.sqrt(5), rel=1e-4)


def test_one_value_has_no_interval() -> None:
    assert math.isnan(half_width([0.5]))
    assert format_interval([0.5]) == "0.500"
    assert format_interval([]) == "-"


def test_an_interval_is_shown_with_its_mean() -> None:
    assert format_interval([1.0, 3.0], digits=1) == "2.0 ± 12.7"


@pytest.mark.parametrize(("pairs", "text"), [([(0.5, 0.2)], "+0.300"), ([(0.2, 0.5)], "-0.300"), ([], "-")])
def test_a_difference_has_a_sign(pairs: list[tuple[float, float]], text: str) -> None:
    assert format_difference(pairs) == text
