import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bottlegan.errors import InputError
from bottlegan.metrics.calibration import calibration_bins, calibration_error, negative_log_likelihood
from bottlegan.metrics.segmentation import EpitheliumIOU, SegmentationScores

pixels = st.lists(st.tuples(st.floats(-5, 5, width=32), st.booleans()), min_size=1, max_size=40)

few = settings(max_examples=50)


def iou(logits: list[float], truth: list[int]) -> float:
    metric = EpitheliumIOU()
    metric.update(torch.tensor(logits), torch.tensor(truth))
    return float(metric.compute())


def test_iou_of_a_hand_computed_example() -> None:
    assert iou([2, 2, -2, -2, 2], [1, 0, 1, 0, 1]) == pytest.approx(2 / 4)


def test_iou_takes_small_logits_for_logits() -> None:
    # All in [0, 1], where torchmetrics would take .3 for a probability below one half.
    assert iou([0.3, 0.9, 0.1], [1, 1, 1]) == 1


def test_iou_is_over_all_pixels_not_a_mean_over_batches() -> None:
    metric = EpitheliumIOU()
    metric.update(torch.tensor([1.0]), torch.tensor([1]))
    metric.update(torch.tensor([1.0, 1.0, 1.0]), torch.tensor([0, 0, 0]))
    assert metric.compute().item() == pytest.approx(1 / 4)


def test_iou_without_any_epithelium_is_1_if_none_is_predicted_else_0() -> None:
    assert iou([-1, -1], [0, 0]) == 1
    assert iou([-1, 1], [0, 0]) == 0
    assert iou([-1, -1], [0, 1]) == 0


@few
@given(st.lists(st.booleans(), min_size=1))
def test_a_perfect_prediction_scores_perfectly(labels: list[bool]) -> None:
    truth = torch.tensor(labels).reshape(1, 1, -1)
    scores = SegmentationScores()
    scores.update(200 * truth - 100.0, truth)
    assert scores.compute() == {"iou": 1, "ece": 0, "nll": pytest.approx(0, abs=1e-12)}


@few
@given(pixels)
def test_scores_are_those_of_the_single_metrics_for_any_type_of_truth(pairs: list[tuple[float, bool]]) -> None:
    logits, truth = torch.tensor(pairs).unbind(dim=1)
    expected = {
        "iou": iou(logits.tolist(), truth.int().tolist()),
        "ece": calibration_error(calibration_bins(logits, truth)).item(),
        "nll": negative_log_likelihood(logits, truth).item() / len(pairs),
    }
    for kind in (torch.bool, torch.uint8, torch.int64, torch.float32):
        scores = SegmentationScores()
        scores.update(logits, truth.to(kind))
        assert scores.compute() == pytest.approx(expected)


@few
@given(pixels)
def test_batches_and_their_order_do_not_matter(pairs: list[tuple[float, bool]]) -> None:
    whole, parts = SegmentationScores(), SegmentationScores()
    batches = torch.tensor(pairs)
    whole.update(batches[:, 0], batches[:, 1])
    for batch in reversed(batches.chunk(5)):
        parts.update(batch[:, 0], batch[:, 1])
    assert parts.compute() == pytest.approx(whole.compute())


def test_scores_follow_further_batches_and_forget_at_reset() -> None:
    scores = SegmentationScores()
    scores.update(torch.tensor([9.0]), torch.tensor([1]))
    assert scores.compute()["iou"] == 1
    scores.update(torch.tensor([9.0]), torch.tensor([0]))
    assert scores.compute()["iou"] == 0.5
    scores.reset()
    with pytest.raises(InputError, match="no pixel"):
        scores.compute()
    scores.update(torch.tensor([-9.0]), torch.tensor([1]))
    assert scores.compute()["iou"] == 0


def test_scores_of_extreme_logits_can_be_written_as_json() -> None:
    scores = SegmentationScores()
    scores.update(torch.tensor([3e38, -3e38]), torch.tensor([0, 1]))
    json.dumps(scores.compute(), allow_nan=False)


@pytest.mark.parametrize("batches", [0, 1])
def test_no_pixel_at_all_is_an_error(batches: int) -> None:
    scores = SegmentationScores()
    for _ in range(batches):
        scores.update(torch.zeros(0), torch.zeros(0))
    with pytest.raises(InputError, match="no pixel"):
        scores.compute()


@pytest.mark.parametrize(
    ("logits", "truth", "message"),
    [
        (torch.zeros(2, 1, 4, 4), torch.zeros(2, 4, 4), r"\(2, 1, 4, 4\).*\(2, 4, 4\)"),
        (torch.zeros(3, dtype=torch.long), torch.zeros(3), "int64"),
        (torch.tensor([float("nan")]), torch.zeros(1), "diverged"),
        (torch.tensor([float("inf")]), torch.zeros(1), "diverged"),
        (torch.zeros(2), torch.tensor([0, 255]), "0 and 1 only"),
        (torch.zeros(2), torch.tensor([0.5, 1]), "0 and 1 only"),
    ],
)
def test_bad_input_is_named_and_not_counted(logits: torch.Tensor, truth: torch.Tensor, message: str) -> None:
    scores = SegmentationScores()
    with pytest.raises(InputError, match=message):
        scores.update(logits, truth)
    with pytest.raises(InputError, match="no pixel"):
        scores.compute()
