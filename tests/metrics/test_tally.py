import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bottlegan.errors import InputError
from bottlegan.metrics.segmentation import SegmentationScores
from bottlegan.metrics.tally import SIZE, compute_scores, tally


@given(st.lists(st.tuples(st.integers(1, 300), st.floats(0.1, 6), st.floats(0, 1)), min_size=1, max_size=4))
@settings(max_examples=40)
def test_sums_of_many_clients_give_the_scores_of_all_their_pixels(clients: list[tuple[int, float, float]]) -> None:
    random, scores, total = torch.Generator().manual_seed(0), SegmentationScores(), torch.zeros(SIZE).double()
    for count, scale, share in clients:
        logits = scale * torch.randn(count, generator=random)
        truth = torch.rand(count, generator=random) < share
        scores.update(logits[None], truth[None])
        total += tally(logits, truth)
    found, wanted = compute_scores(total), scores.compute()
    assert found.keys() == wanted.keys()
    for name, value in found.items():
        assert value == pytest.approx(wanted[name], abs=1e-5), name


def test_scores_by_hand() -> None:
    logits = torch.tensor([2.0, -1.0, 3.0, -2.0])
    truth = torch.tensor([1, 1, 0, 0])
    found = compute_scores(tally(logits, truth))
    surprise = torch.nn.functional.softplus(torch.tensor([-2.0, 1.0, 3.0, -2.0])).mean().item()
    assert found["iou"] == pytest.approx(1 / 3)
    assert found["nll"] == pytest.approx(surprise, rel=1e-5)


def test_no_epithelium_found_where_there_is_none_is_right() -> None:
    assert compute_scores(tally(torch.full((5,), -3.0), torch.zeros(5)))["iou"] == 1


def test_nothing_cannot_be_scored() -> None:
    with pytest.raises(InputError, match="no pixel to score"):
        compute_scores(torch.zeros(SIZE).double())
