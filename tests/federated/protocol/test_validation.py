import re

import pytest
import torch
from torch import Tensor

from bottlegan.federated.protocol.validation import (
    clip_updates,
    find_bad_count,
    find_bad_number,
    find_fault,
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


def test_a_long_update_is_clipped_and_the_usual_ones_are_not() -> None:
    start = {"w": torch.ones(4), "v": torch.zeros(1)}
    replies = {f"lab-{k}": {"w": torch.full((4,), 2.0 + k / 10), "v": torch.zeros(1)} for k in range(4)}
    replies["mad"] = {"w": torch.full((4,), -1e30), "v": torch.zeros(1)}
    found = clip_updates(replies, start, bound=1.5)
    assert update_length(found["mad"], start) == pytest.approx(1.5 * 2.4, rel=1e-5)
    assert bool((found["mad"]["w"] < 1).all())
    assert all(found[name] is replies[name] for name in replies if name != "mad")


def test_labs_that_change_nothing_do_not_hold_back_those_that_do() -> None:
    start = {"w": torch.zeros(2)}
    replies = {name: {"w": torch.zeros(2)} for name in "abc"} | {"d": {"w": torch.ones(2)}, "e": {"w": -torch.ones(2)}}
    assert clip_updates(replies, start, bound=10.0)["d"] is replies["d"]
    still = {name: replies[name] for name in "abc"}
    assert clip_updates(still, start, bound=10.0)["a"] is still["a"]


def test_of_two_updates_the_shorter_one_is_usual() -> None:
    start = {"w": torch.zeros(1)}
    found = clip_updates({"a": {"w": torch.ones(1)}, "b": {"w": torch.full((1,), 1e6)}}, start, 2.0)
    assert found == {"a": {"w": torch.ones(1)}, "b": {"w": torch.full((1,), 2.0)}}


@pytest.mark.parametrize(("value", "good"), [(3.0, True), (0.0, True), (0.5, False), (2.0**60, False), (-1.0, False)])
def test_a_count_is_a_whole_number(value: float, good: bool) -> None:
    assert (find_bad_count({"x": value}, frozenset("x")) is None) == good


def test_a_clients_text_is_one_short_line() -> None:
    assert printable("a\nb\x00" + "c" * 500) == "a?b?" + "c" * 196


@pytest.mark.parametrize(("labs", "most"), [(2, 2 / 3), (3, 0.5), (4, 0.4), (20, 2 / 21)])
def test_a_client_that_claims_endless_images_does_not_outweigh_the_others(labs: int, most: float) -> None:
    shares = limit_shares({**{f"lab-{k}": 5.0 for k in range(labs - 1)}, "liar": 1e18}, 2.0)
    assert shares["liar"] / sum(shares.values()) == pytest.approx(most)
