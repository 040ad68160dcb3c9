import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torchmetrics.functional.classification import multiclass_calibration_error

from bottlegan.metrics.calibration import (
    BINS,
    ExpectedCalibrationError,
    PixelNLL,
    calibration_bins,
    calibration_error,
    negative_log_likelihood,
)

pixels = st.lists(st.tuples(st.floats(-12, 12, width=32), st.booleans()), min_size=1, max_size=60)

few = settings(max_examples=50)


def ece(logits: Tensor, truth: Tensor) -> float:
    return calibration_error(calibration_bins(logits, truth)).item()


def test_ece_of_a_hand_computed_example() -> None:
    # Confidence .62 falls into [.600, .625), .81 into [.800, .825): whatever class it is confident of.
    probability = torch.tensor([0.62, 0.38, 0.62, 0.62, 0.81, 0.19, 0.81, 0.19, 0.81, 0.19])
    truth = torch.tensor([1, 0, 0, 0, 1, 0, 1, 0, 1, 1])
    # .62: 4 pixels, 2 of them right; .81: 6 pixels, 5 of them right.
    expected = 4 / 10 * abs(2 / 4 - 0.62) + 6 / 10 * abs(5 / 6 - 0.81)
    assert ece(torch.logit(probability), truth) == pytest.approx(expected, abs=1e-6)


def test_ece_cancels_within_a_bin_and_not_between_bins() -> None:
    within, between = torch.tensor([0.605, 0.620]), torch.tensor([0.605, 0.630])
    truth = torch.tensor([1, 0])
    assert ece(torch.logit(within), truth) == pytest.approx(abs(1 - 0.605 - 0.620) / 2, abs=1e-6)
    assert ece(torch.logit(between), truth) == pytest.approx((1 - 0.605 + 0.630) / 2, abs=1e-6)


def test_ece_counts_certainty_into_the_last_bin() -> None:
    logits = torch.tensor([math.log(0.98 / 0.02), 1e4])
    assert torch.sigmoid(logits[1]) == 1
    assert ece(logits, torch.tensor([1, 0])) == pytest.approx(abs(0.5 - 0.99), abs=1e-6)


def test_ece_is_0_when_certain_and_right_1_when_certain_and_wrong() -> None:
    logits = torch.tensor([[100.0, -100.0]])
    assert ece(logits, torch.tensor([[1, 0]])) == 0
    assert ece(logits, torch.tensor([[0, 1]])) == 1


@few
@given(st.lists(st.tuples(st.integers(-600, 600), st.booleans()), min_size=1, max_size=60))
def test_ece_equals_that_of_torchmetrics_with_two_classes(pairs: list[tuple[int, bool]]) -> None:
    # Steps of 1/50 keep clear of the edges of bins, where its rounding differs.
    logits = torch.tensor([step / 50 for step, _ in pairs], dtype=torch.float64)
    truth = torch.tensor([label for _, label in pairs])
    positive = torch.sigmoid(logits)
    expected = multiclass_calibration_error(
        torch.stack([1 - positive, positive], dim=1), truth.long(), num_classes=2, n_bins=BINS
    )
    assert ece(logits, truth) == pytest.approx(expected.item(), abs=1e-5)


@few
@given(pixels)
def test_scores_do_not_depend_on_which_class_is_called_1(pairs: list[tuple[float, bool]]) -> None:
    logits = torch.tensor([logit for logit, _ in pairs if logit != 0])  # a tie has to go to one class
    truth = torch.tensor([label for logit, label in pairs if logit != 0], dtype=torch.bool)
    assert torch.equal(calibration_bins(logits, truth), calibration_bins(-logits, ~truth))
    torch.testing.assert_close(negative_log_likelihood(logits, truth), negative_log_likelihood(-logits, ~truth))


@few
@given(pixels, st.randoms(use_true_random=False))
def test_batches_and_their_order_do_not_matter(pairs: list[tuple[float, bool]], random: object) -> None:
    whole = torch.tensor(pairs)
    metrics = [ExpectedCalibrationError(), PixelNLL()]
    batches = list(whole.chunk(5))
    random.shuffle(batches)  # type: ignore[attr-defined]
    for metric in metrics:
        for batch in batches:
            metric.update(batch[:, 0], batch[:, 1])
    logits, truth = whole.unbind(dim=1)
    assert metrics[0].compute().item() == pytest.approx(ece(logits, truth), abs=1e-12)
    assert metrics[1].compute().item() == pytest.approx(negative_log_likelihood(logits, truth).item() / len(pairs))


def test_nll_of_a_hand_computed_example() -> None:
    metric = PixelNLL()
    metric.update(torch.logit(torch.tensor([0.8, 0.3])), torch.tensor([1, 0]))
    assert metric.compute().item() == pytest.approx(-(math.log(0.8) + math.log(0.7)) / 2, rel=1e-6)


def test_nll_of_extreme_logits_is_exact() -> None:
    assert negative_log_likelihood(torch.tensor([1e30]), torch.tensor([0])).item() == pytest.approx(1e30)
    assert negative_log_likelihood(torch.tensor([-1e30]), torch.tensor([0])).item() == 0
    assert negative_log_likelihood(torch.tensor([30.0]), torch.tensor([1])).item() == pytest.approx(math.exp(-30))


def test_small_batches_are_not_lost_beside_a_large_sum() -> None:
    metric = PixelNLL()
    metric.update(torch.tensor([-1e9]), torch.tensor([1]))
    for _ in range(10):
        metric.update(torch.tensor([-1.0]), torch.tensor([1]))
    assert metric.total.item() == pytest.approx(1e9 + 10 * math.log1p(math.e), abs=1e-3)


def test_a_usual_pixel_is_not_lost_beside_an_extreme_one() -> None:
    total = negative_log_likelihood(torch.tensor([-1e9, -1.0]), torch.tensor([1, 1])).item()
    assert total == pytest.approx(1e9 + math.log1p(math.e), abs=1e-3)


def test_memory_does_not_grow_with_the_pixels() -> None:
    metric = ExpectedCalibrationError()
    metric.update(torch.randn(1000, generator=torch.Generator().manual_seed(0)), torch.ones(1000))
    assert list(metric.metric_state) == ["bins"]
    assert metric.bins.shape == (3, BINS)
    assert metric.bins[2].sum() == 1000
