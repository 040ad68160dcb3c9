"""Updates on a grid of whole numbers, and privacy accounting."""

import math

import numpy as np
import pytest
import torch
from dp_accounting import GaussianDpEvent, SelfComposedDpEvent
from dp_accounting.pld import PLDAccountant
from hypothesis import given
from hypothesis import strategies as st

from bottlegan.core.errors import ConfigError
from bottlegan.core.seeding import numpy_stream
from bottlegan.federated.protocol.accounting import Spent, find_epsilon, find_noise
from bottlegan.federated.protocol.privacy import Grid, PrivacyConfig, add_row, count_needed, to_row


@given(labs=st.integers(2, 500), clip=st.floats(1e-3, 1e3), noise=st.sampled_from([0.0, 0.5]), secure=st.booleans())
def test_sums_on_the_grid_are_exact_and_do_not_run_over(labs: int, clip: float, noise: float, secure: bool) -> None:
    grid = Grid(PrivacyConfig(clip=clip, noise=noise, secure=secure), labs, 3)
    values = np.array([clip, -clip, clip / 3])
    one = grid.to_whole(values)
    total = np.zeros(3, np.uint32)
    for _ in range(labs):
        total = total + one
    assert grid.from_whole(total) == pytest.approx(labs * values, abs=labs * grid.step)
    most = grid.to_whole(np.full(3, 1e30))
    assert int(most[0]) * labs < 2**31


@given(length=st.floats(0, 100))
def test_an_update_is_never_longer_than_the_clip_even_when_rounded(length: float) -> None:
    grid = Grid(PrivacyConfig(secure=True, clip=2.0), 5, 1000)
    row = numpy_stream(1, "row").normal(size=1000)
    cut = grid.from_whole(grid.to_whole(grid.cut(row / np.linalg.norm(row) * length)))
    assert np.linalg.norm(cut) <= 2.0
    assert np.linalg.norm(cut) == pytest.approx(min(length, 2.0), abs=1e-4)


def test_a_sum_that_is_too_long_is_told() -> None:
    grid = Grid(PrivacyConfig(secure=True, clip=1.0), 4, 100)
    assert grid.is_possible(np.full(100, 0.3), 3)
    assert not grid.is_possible(np.full(100, 0.31), 3)
    noisy = Grid(PrivacyConfig(secure=True, clip=1.0, noise=1.0), 4, 100)
    assert noisy.is_possible(np.full(100, 1.0), 3)


def test_the_noise_of_as_many_labs_as_are_needed_is_all_of_it() -> None:
    grid = Grid(PrivacyConfig(secure=True, clip=2.0, noise=1.5), 20, 10)
    assert grid.deviation * math.sqrt(count_needed(20)) == pytest.approx(3.0)
    assert Grid(PrivacyConfig(clip=2.0, noise=1.5), 20, 10).deviation == 3.0
    assert Grid(PrivacyConfig(clip=2.0, noise=1.5, noise_at="server"), 20, 10).deviation == 0


@given(labs=st.integers(3, 1000))
def test_no_two_groups_without_a_common_lab_are_enough(labs: int) -> None:
    assert labs < 2 * count_needed(labs) <= 2 * labs


def test_weights_become_a_row_and_weights_again() -> None:
    start = {"b": torch.ones(2, 2), "a": torch.zeros(3)}
    after = {"a": torch.tensor([1.0, 2, 3]), "b": torch.full((2, 2), 5.0)}
    row = to_row(after, start)
    assert row.tolist() == [1, 2, 3, 4, 4, 4, 4]
    again = add_row(start, row)
    assert list(again) == ["b", "a"]
    assert all(torch.equal(again[name], after[name]) for name in after)
    assert to_row(after, start, ["b"]).tolist() == [1, 2, 3, 0, 0, 0, 0]


@pytest.mark.parametrize(("noise", "rounds"), [(1.0, 1), (2.0, 25), (0.5, 100)])
def test_epsilon_is_that_of_another_accountant(noise: float, rounds: int) -> None:
    spent = Spent()
    for _ in range(rounds):
        spent = spent.after(noise)
    accountant = PLDAccountant()
    accountant.compose(SelfComposedDpEvent(GaussianDpEvent(noise), rounds))
    assert find_epsilon(spent, 1e-5) == pytest.approx(accountant.get_epsilon(1e-5), rel=0.01)


def test_epsilon_grows_with_rounds_and_is_none_without_any() -> None:
    assert find_epsilon(Spent(), 1e-5) == 0
    one, two = Spent().after(1.0), Spent().after(1.0).after(1.0)
    assert 0 < find_epsilon(one, 1e-5) < find_epsilon(two, 1e-5)
    assert find_epsilon(Spent(rounds=9, precision=9 / find_noise(9, 5.0, 1e-5) ** 2), 1e-5) == pytest.approx(
        5, rel=0.01
    )


@pytest.mark.parametrize("bad", [{"clip": 0.0}, {"noise": -1.0}, {"delta": 0.0}, {"delta": 1.0}])
def test_what_makes_no_sense_is_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="clip must be above 0"):
        PrivacyConfig(**bad)  # type: ignore[arg-type]
