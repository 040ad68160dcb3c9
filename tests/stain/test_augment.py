from functools import partial

import numpy as np
import pytest
from skimage.color import rgb2lab

from bottlegan.stain.augment import LabStatistics, draw_templates, jitter_hed


@pytest.fixture
def crops() -> np.ndarray:
    random = np.random.default_rng(0)
    tissue = random.integers(120, 230, (4, 24, 24, 3)).astype(np.uint8)
    tissue[..., 1] //= 2
    return tissue


def statistics(spread: float) -> LabStatistics:
    means = np.array([[60.0, 25, -15], [60 + spread, 25, -15]])
    return LabStatistics(np.stack([means, np.full((2, 3), 6.0)], axis=1))


def test_no_jitter_changes_nothing_but_rounding(crops: np.ndarray) -> None:
    kept = jitter_hed(crops, np.random.default_rng(1), jitter=0.0)
    assert np.abs(kept.astype(int) - crops).max() <= 1


@pytest.mark.parametrize("vary", [jitter_hed, partial(draw_templates, statistics=statistics(20.0))])
def test_each_crop_is_changed_in_its_own_way(vary: partial, crops: np.ndarray) -> None:
    same = np.repeat(crops[:1], 4, axis=0)
    varied = vary(same, np.random.default_rng(1))
    assert varied.dtype == np.uint8
    assert varied.shape == same.shape
    assert len({crop.tobytes() for crop in varied}) == 4
    assert (varied == vary(same, np.random.default_rng(1))).all()


def test_a_template_sets_mean_and_spread_of_the_colors(crops: np.ndarray) -> None:
    varied = draw_templates(crops, np.random.default_rng(2), statistics(0.0))
    found = rgb2lab(varied).reshape(4, -1, 3)
    assert np.allclose(found.mean(1), [60, 25, -15], atol=0.5)
    assert np.allclose(found.std(1), 6, atol=0.5)


def test_statistics_are_of_each_image_and_add_up(crops: np.ndarray) -> None:
    both = LabStatistics.of(list(crops[:1])).join(LabStatistics.of(list(crops[1:])))
    assert np.allclose(both.values, LabStatistics.of(list(crops)).values)
    assert np.allclose(both.values[2, 0], rgb2lab(crops[2]).mean((0, 1)))
