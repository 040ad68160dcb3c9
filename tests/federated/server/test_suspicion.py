"""Suspicion on simulated updates: a common direction with much more noise."""

import numpy as np
import pytest
import torch

from bottlegan.federated.server.history import Standing
from bottlegan.federated.server.suspicion import compare_with_center, measure, name_suspects
from bottlegan.models.networks import Weights

LABS, NUMBERS = 20, 400
HOSTILE = frozenset(f"lab-{k:02d}" for k in range(1, LABS, 4))
START = {"a": torch.ones(NUMBERS), "b": torch.zeros(2, 3)}


def draw_round(number: int, seed: int, agreement: float) -> dict[str, Weights]:
    """Draw updates with a share that is common to all labs in this round."""
    random = torch.Generator().manual_seed(1000 * seed + number)
    common = torch.randn(NUMBERS, generator=random)
    replies: dict[str, Weights] = {}
    for k in range(LABS):
        own = torch.randn(NUMBERS, generator=random)
        step = agreement**0.5 * common + (1 - agreement) ** 0.5 * own
        replies[f"lab-{k:02d}"] = {"a": START["a"] + 0.01 * step, "b": START["b"]}
    return replies


def turn(replies: dict[str, Weights], scale: float) -> dict[str, Weights]:
    return {
        name: {key: START[key] - scale * (each[key] - START[key]) for key in START} if name in HOSTILE else each
        for name, each in replies.items()
    }


def accuse(seed: int, scale: float | None, agreements: list[float]) -> list[set[str]]:
    """Return the suspects of each round."""
    before: list[dict[str, Standing]] = []
    named = []
    for number, agreement in enumerate(agreements):
        replies = draw_round(number, seed, agreement)
        now = measure(replies if scale is None else turn(replies, scale), START)
        named.append(set(name_suspects(before, now)))
        before.append(now)
    return named


AGREEING = [0.3, 0.2, 0.15, 0.1, 0.1, 0.05, 0.05, 0.02, 0.0, 0.0]


@pytest.mark.parametrize("seed", range(5))
def test_nobody_is_named_where_all_mean_well(seed: int) -> None:
    assert accuse(seed, None, AGREEING) == [set()] * len(AGREEING)


@pytest.mark.parametrize("seed", range(5))
def test_a_quarter_that_turns_its_updates_around_is_named_and_nobody_else(seed: int) -> None:
    named = accuse(seed, 1.0, AGREEING)
    assert named[0] == set(), "one round proves nothing"
    assert named[4] == HOSTILE
    assert named[-1] == HOSTILE, "and rounds in which nobody agrees do not clear them"


def test_long_updates_are_named_at_once() -> None:
    assert accuse(0, -3.0, AGREEING)[0] == HOSTILE


def test_one_long_update_is_forgiven() -> None:
    usual = {name: Standing(cosine=0.2, length=1.0) for name in "abcdef"}
    long = {**usual, "a": Standing(cosine=0.2, length=4.0)}
    assert list(name_suspects([usual, usual], long)) == []
    assert list(name_suspects([usual, long], long)) == ["a"]


def test_labs_that_send_the_same_are_named_unless_all_do() -> None:
    replies = draw_round(0, 0, 0.1)
    replies["lab-03"] = replies["lab-08"]
    assert set(name_suspects([], measure(replies, START))) == {"lab-03", "lab-08"}
    same = dict.fromkeys(replies, replies["lab-03"])
    assert name_suspects([], measure(same, START)) == {}


def test_of_a_few_labs_nobody_can_be_named() -> None:
    odd = {name: Standing(cosine=-1.0, length=9.0) for name in "abcd"}
    assert name_suspects([odd] * 9, odd) == {}


def test_an_update_of_nothing_is_measured() -> None:
    replies = {"a": START, "b": START, "c": {**START, "a": START["a"] + 1}}
    found = measure(replies, START)
    assert all(np.isfinite([each.cosine, each.length, each.nearest]).all() for each in found.values())


def test_the_center_is_that_of_the_others_and_not_of_who_points_away() -> None:
    directions = np.array([[1.0, 0.0], [1.0, 0.0], [0.6, 0.8], [-1.0, 0.0]])
    found = compare_with_center(directions @ directions.T)
    center = directions[0] + directions[2]
    assert found[0] == pytest.approx(center[0] / np.linalg.norm(center))
    assert found[2] == pytest.approx(0.6)
    assert found[3] < -0.9
