import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torchmetrics.functional.classification import (
    multiclass_accuracy,
    multiclass_auroc,
    multiclass_f1_score,
    multiclass_jaccard_index,
)

from bottlegan.bench.attacks.replies import LIES
from bottlegan.core.errors import InputError
from bottlegan.metrics.tally import (
    Layout,
    compute_scores,
    compute_temperature,
    count_all,
    find_bad_tally,
    find_changed_tally,
    tally,
)

NAMES = ("other", "benign", "tumor", "necrosis")


def draw(count: int, classes: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(seed)
    truth = torch.randint(classes, (count,), generator=random)
    logits = 2 * torch.randn(count, classes, generator=random)
    logits[torch.arange(count), truth] += 1
    return logits, truth


@pytest.mark.parametrize("classes", [2, 3, 4])
def test_pixels_score_as_in_torchmetrics(classes: int) -> None:
    logits, truth = draw(800, classes)
    layout = Layout(classes, ranked=False)
    found = compute_scores(tally(logits, truth, layout), layout, NAMES[:classes])
    jaccard = multiclass_jaccard_index(logits, truth, classes, average="none")
    dice = multiclass_f1_score(logits, truth, classes, average="none")
    assert found["iou"] == pytest.approx(jaccard[1:].mean().item(), abs=1e-6)
    assert found["dice"] == pytest.approx(dice[1:].mean().item(), abs=1e-6)
    if classes > 2:
        for k, name in enumerate(NAMES[:classes]):
            assert found[f"iou/{name}"] == pytest.approx(jaccard[k].item(), abs=1e-6)
            assert found[f"dice/{name}"] == pytest.approx(dice[k].item(), abs=1e-6)
    assert found["nll"] == pytest.approx(torch.nn.functional.cross_entropy(logits, truth).item(), abs=1e-5)


@pytest.mark.parametrize("classes", [2, 3, 4])
def test_patches_score_as_in_torchmetrics(classes: int) -> None:
    logits, truth = draw(800, classes)
    layout = Layout(classes, ranked=True)
    found = compute_scores(tally(logits, truth, layout), layout, NAMES[:classes])
    areas = multiclass_auroc(logits, truth, classes, average="none")
    wanted = areas[1] if classes == 2 else areas.mean()
    recall = multiclass_accuracy(logits, truth, classes, average="none")
    assert found["accuracy"] == pytest.approx(multiclass_accuracy(logits, truth, classes, average="micro").item())
    assert found["balanced_accuracy"] == pytest.approx(recall.mean().item(), abs=1e-6)
    assert found["auroc"] == pytest.approx(wanted.item(), abs=0.003)  # from bins of scores


@given(st.integers(1, 80), st.integers(2, 4), st.booleans(), st.integers(0, 5))
@settings(max_examples=40)
def test_sums_of_many_clients_give_the_scores_of_all(count: int, classes: int, ranked: bool, seed: int) -> None:
    layout = Layout(classes, ranked)
    logits, truth = draw(count, classes, seed)
    whole = tally(logits, truth, layout)
    total = torch.zeros(layout.size, dtype=torch.float64)
    for part, wanted in zip(logits.chunk(3), truth.chunk(3), strict=True):
        total += tally(part, wanted, layout)
    assert whole.shape == (layout.size,)
    assert compute_scores(total, layout, NAMES[:classes]) == pytest.approx(
        compute_scores(whole, layout, NAMES[:classes])
    )
    assert count_all(total, layout) == count
    assert find_bad_tally(total, layout) is None


def test_scores_by_hand() -> None:
    layout = Layout(2, ranked=False)
    logits = torch.tensor([[0, 2.0], [0, -1.0], [0, 3.0], [0, -2.0]])
    found = compute_scores(tally(logits, torch.tensor([1, 1, 0, 0]), layout), layout, NAMES[:2])
    surprise = torch.nn.functional.softplus(torch.tensor([-2.0, 1.0, 3.0, -2.0])).mean().item()
    assert found.keys() == {"iou", "dice", "ece", "nll"}
    assert found["iou"] == pytest.approx(1 / 3)
    assert found["dice"] == pytest.approx(1 / 2)
    assert found["nll"] == pytest.approx(surprise, rel=1e-5)


def test_nothing_found_where_there_is_nothing_is_right() -> None:
    layout = Layout(2, ranked=False)
    total = tally(torch.tensor([[3.0, 0.0]] * 5), torch.zeros(5), layout)
    assert compute_scores(total, layout, NAMES[:2])["iou"] == 1


def test_a_class_that_is_nowhere_does_not_count() -> None:
    logits, truth = draw(100, 2)
    layout = Layout(3, ranked=False)
    wide = torch.cat([logits, torch.full((100, 1), -30.0)], dim=1)
    found = compute_scores(tally(wide, truth, layout), layout, NAMES[:3])
    two = Layout(2, ranked=False)
    assert found["iou"] == pytest.approx(compute_scores(tally(logits, truth, two), two, NAMES[:2])["iou"])
    assert "iou/tumor" not in found
    ranked = Layout(3, ranked=True)
    assert "auroc/tumor" not in compute_scores(tally(wide, truth, ranked), ranked, NAMES[:3])


def test_one_class_only_has_no_roc_curve() -> None:
    layout = Layout(2, ranked=True)
    found = compute_scores(tally(torch.tensor([[0.0, 2.0]]), torch.tensor([1]), layout), layout, NAMES[:2])
    assert "auroc" not in found
    assert found["accuracy"] == 1


def test_nothing_cannot_be_scored() -> None:
    layout = Layout(2, ranked=False)
    with pytest.raises(InputError, match="nothing to score"):
        compute_scores(torch.zeros(layout.size).double(), layout, NAMES[:2])


def test_the_temperature_comes_from_the_sums() -> None:
    random, layout = torch.Generator().manual_seed(0), Layout(3, ranked=False)
    honest = 2 * torch.randn(50_000, 3, generator=random)
    truth = torch.multinomial(torch.softmax(honest, 1), 1, generator=random)[:, 0]
    assert compute_temperature(tally(2 * honest, truth, layout), layout) == pytest.approx(2, rel=0.03)


def test_a_tally_that_cannot_be_is_found_out() -> None:
    layout = Layout(3, ranked=True)
    good = tally(*draw(50, 3), layout)
    assert find_bad_tally(good, layout) is None
    for place, value in ((0, 1e6), (0, -1.0), (3, float("nan")), (8, 99.0)):
        bad = good.clone()
        bad[place] = value
        assert find_bad_tally(bad, layout) is not None
    bad = good.clone()
    bad[-1] += 7
    assert find_bad_tally(bad, layout) == "the parts of its tally do not match"


@pytest.mark.parametrize("lie", LIES)
def test_whatever_would_end_a_run_or_distort_scores_is_no_tally(lie: str) -> None:
    layout = Layout(2, ranked=False)
    bad = tally(*draw(50, 2), layout)
    LIES[lie](layout.split(bad))
    assert find_bad_tally(bad, layout) is not None


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=1, max_size=9), st.integers(0, 10**6))
def test_a_tally_that_passes_can_be_scored(values: list[float], seed: int) -> None:
    layout = Layout(2, ranked=False)
    total = tally(*draw(20, 2), layout)
    places = torch.randint(layout.size, (len(values),), generator=torch.Generator().manual_seed(seed))
    total[places] = torch.tensor(values, dtype=torch.float64)
    if find_bad_tally(total, layout) is None:
        assert all(map(math.isfinite, compute_scores(total, layout, NAMES[:2]).values()))


def test_a_tally_must_be_of_the_images_that_were_announced() -> None:
    layout = Layout(2, ranked=False)
    total = tally(torch.zeros(5, 2), torch.tensor([0, 0, 1, 1, 1]), layout)
    assert find_changed_tally(total, layout, (2, 3)) is None
    assert find_changed_tally(total, layout, (3, 2)) is not None
    assert find_changed_tally(10 * total, layout, (2, 3)) == "its tally counts 20 and 30 of the classes, not 2 and 3"
