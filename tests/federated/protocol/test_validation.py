import re

import pytest
import torch
from torch import Tensor

from bottlegan.federated.protocol.validation import (
    find_bad_number,
    find_fault,
    find_oversized,
    limit_shares,
    printable,
    update_length,
)

SHAPES = {"a": (2, 2), "b": (3,)}
GOOD = {"a": torch.zeros(2, 2), "b": torch.ones(3)}


def test_what_is_wanted_has_no_fault() -> None:
    assert find_fault(GOOD, SHAPES) is None


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"a": None}, "tensor a is missing"),
        ({"c": torch.zeros(1)}, "unexpected tensor c"),
        ({"a\x1b[2J": torch.zeros(1)}, r"unexpected tensor a\?\[2J"),
        ({"a": torch.zeros(4)}, r"shape \(4,\), not \(2, 2\)"),
        ({"a": torch.zeros(2, 2, dtype=torch.float64)}, "torch.float64, not torch.float32"),
        ({"b": torch.tensor([0, torch.nan, 0])}, "tensor b holds NaN or infinity"),
        ({"b": torch.tensor([0, torch.inf, 0])}, "tensor b holds NaN or infinity"),
    ],
)
def test_every_fault_is_named(change: dict[str, Tensor | None], fault: str) -> None:
    arrays = {name: tensor for name, tensor in {**GOOD, **change}.items() if tensor is not None}
    found = find_fault(arrays, SHAPES)
    assert found is not None
    assert re.search(fault, found)


@pytest.mark.parametrize(
    ("numbers", "fault"),
    [
        ({"x": 1.0}, None),
        ({}, "number x is missing"),
        ({"x": 1.0, "y": 1.0}, "number y is unexpected"),
        ({"x": float("nan")}, "number x is nan"),
        ({"x": float("inf")}, "number x is inf"),
        ({"x": -1.0}, "number x is -1.0"),
    ],
)
def test_numbers_are_finite_not_negative_and_those_asked_for(numbers: dict[str, float], fault: str | None) -> None:
    assert find_bad_number(numbers, frozenset("x")) == fault


def test_an_update_is_measured_from_where_it_began() -> None:
    start = {"a": torch.ones(2), "b": torch.ones(1)}
    assert update_length({"a": torch.tensor([4.0, 1.0]), "b": torch.tensor([5.0])}, start) == pytest.approx(5)


def test_an_oversized_update_is_left_out_and_the_usual_ones_are_not() -> None:
    start = {"w": torch.zeros(4)}
    replies = {f"lab-{k}": {"w": torch.full((4,), 1.0 + k / 10)} for k in range(4)}
    replies["mad"] = {"w": torch.full((4,), 50.0)}
    found = find_oversized(replies, start, bound=10)
    assert list(found) == ["mad"]
    assert "41.7 times the median" in found["mad"]
    assert find_oversized(replies, start, bound=50) == {}


def test_of_two_updates_nobody_knows_which_is_odd() -> None:
    start = {"w": torch.zeros(1)}
    assert find_oversized({"a": {"w": torch.ones(1)}, "b": {"w": torch.full((1,), 1e6)}}, start, 10) == {}


def test_a_clients_text_is_one_short_line() -> None:
    assert printable("a\nb\x00" + "c" * 500) == "a?b?" + "c" * 196


def test_a_client_that_claims_endless_images_does_not_outweigh_the_others() -> None:
    claimed = {"a": 4, "b": 6, "c": 10**18}
    assert limit_shares(claimed, 10.0) == {"a": 4.0, "b": 6.0, "c": 60.0}
