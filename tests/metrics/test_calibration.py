import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torchmetrics.functional.classification import multiclass_calibration_error

from bottlegan.metrics.calibration import (
    BINS,
    NEUTRAL,
    TEMPERATURES,
    calibration_bins,
    calibration_error,
    find_temperature,
    negative_log_likelihoods,
)


def ece(logits: Tensor, truth: Tensor) -> float:
    return calibration_error(calibration_bins(logits, truth)).item()


def draw(count: int, classes: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(seed)
    return 3 * torch.randn(count, classes, generator=random), torch.randint(classes, (count,), generator=random)


def test_ece_of_a_hand_computed_example() -> None:
    # Confidence .62 falls into [.600, .625), .81 into [.800, .825): whatever class it is confident of.
    share = torch.tensor([0.62, 0.38, 0.62, 0.62, 0.81, 0.19, 0.81, 0.19, 0.81, 0.19])
    truth = torch.tensor([1, 0, 0, 0, 1, 0, 1, 0, 1, 1])
    # .62: 4 pixels, 2 of them right; .81: 6 pixels, 5 of them right.
    expected = 4 / 10 * abs(2 / 4 - 0.62) + 6 / 10 * abs(5 / 6 - 0.81)
    assert ece(torch.stack([1 - share, share], dim=1).log(), truth) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("classes", [2, 3, 7])
def test_ece_is_that_of_torchmetrics(classes: int) -> None:
    logits, truth = draw(500, classes)
    theirs = multiclass_calibration_error(torch.softmax(logits, 1), truth, classes, n_bins=BINS, norm="l1")
    assert ece(logits, truth) == pytest.approx(theirs.item(), abs=1e-5)


@given(st.integers(1, 60), st.integers(2, 5), st.integers(0, 5))
@settings(max_examples=30)
def test_sums_of_parts_are_those_of_all(count: int, classes: int, seed: int) -> None:
    logits, truth = draw(count, classes, seed)
    for function in (calibration_bins, negative_log_likelihoods):
        parts = sum(function(*part) for part in zip(logits.chunk(3), truth.chunk(3), strict=True))
        torch.testing.assert_close(parts, function(logits, truth))


@pytest.mark.parametrize("classes", [2, 4])
def test_nll_is_the_cross_entropy_at_each_temperature(classes: int) -> None:
    logits, truth = draw(300, classes)
    found = negative_log_likelihoods(logits, truth)
    for temperature, value in zip(TEMPERATURES, found.tolist(), strict=True):
        wanted = torch.nn.functional.cross_entropy(logits.double() / temperature, truth, reduction="sum")
        assert value == pytest.approx(wanted.item())
    assert TEMPERATURES[NEUTRAL] == 1


def test_extreme_logits_have_finite_sums() -> None:
    logits = torch.tensor([[3e38, -3e37], [0.0, 1e30]])
    assert negative_log_likelihoods(logits, torch.tensor([1, 0])).isfinite().all()
    assert calibration_bins(logits, torch.tensor([1, 0])).isfinite().all()


@pytest.mark.parametrize("temperature", [0.5, 0.93, 1.0, 2.5])
@pytest.mark.parametrize("classes", [2, 4])
def test_a_known_temperature_is_found_again(temperature: float, classes: int) -> None:
    random = torch.Generator().manual_seed(0)
    honest = 2 * torch.randn(100_000, classes, generator=random)
    truth = torch.multinomial(torch.softmax(honest, 1), 1, generator=random)[:, 0]
    found = find_temperature(negative_log_likelihoods(honest * temperature, truth))
    assert found == pytest.approx(temperature, rel=0.03)


def test_a_temperature_stays_within_bounds() -> None:
    right = negative_log_likelihoods(torch.tensor([[5.0, -5.0]]), torch.tensor([0]))
    wrong = negative_log_likelihoods(torch.tensor([[5.0, -5.0]]), torch.tensor([1]))
    assert find_temperature(right) == pytest.approx(0.2)
    assert find_temperature(wrong) == pytest.approx(5)
    assert math.isfinite(find_temperature(torch.zeros(len(TEMPERATURES))))
