import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from bottlegan.stain.quantiles import sort_last, weighted_quantile

VALUES = st.lists(st.floats(-5, 5, width=32), min_size=1, max_size=40)


@given(VALUES)
def test_sorting_is_torchs_sorting(values: list[float]) -> None:
    given = torch.tensor([values])
    ordered, order = sort_last(given)
    assert torch.equal(ordered, given.sort(dim=-1).values)
    assert torch.equal(given.gather(-1, order), ordered)


def test_gradients_pass_through_the_order() -> None:
    values = torch.tensor([3.0, 1.0, 2.0], requires_grad=True)
    (sort_last(values)[0] * torch.tensor([1.0, 10.0, 100.0])).sum().backward()
    assert values.grad is not None
    assert values.grad.tolist() == [100.0, 1.0, 10.0]


@given(VALUES, st.floats(0.01, 1))
def test_equal_weights_give_the_plain_quantile(values: list[float], level: float) -> None:
    given = torch.tensor([values], dtype=torch.float64)
    found = weighted_quantile(given, torch.ones_like(given), torch.tensor([level]))
    expected = np.quantile(values, np.float32(level), method="inverted_cdf")
    position = level * len(values)
    if abs(position - round(position)) > 1e-4:  # otherwise rounding decides between two neighbors
        assert found.item() == expected


def test_weights_of_zero_leave_a_pixel_out_and_all_of_them_give_zero() -> None:
    values = torch.tensor([[1.0, 2.0, 900.0], [1.0, 2.0, 900.0]])
    weights = torch.tensor([[1.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
    assert weighted_quantile(values, weights, torch.tensor([1.0])).tolist() == [[2.0], [0.0]]
