import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bottlegan.bench.federation import average
from bottlegan.core.errors import ConfigError
from bottlegan.federated.flower.strategies import Aggregator
from bottlegan.federated.server.config import Robust, StrategyConfig
from bottlegan.models.networks import Weights

NAMES = ["enter.weight", "exit.bias"]
PLAIN = StrategyConfig(name="fedavg", robust="none")
numbers = st.floats(-100, 100, width=32)


def weights(first: float, second: float) -> Weights:
    return {NAMES[0]: torch.full((2, 3), first), NAMES[1]: torch.full((4,), second)}


def equal(a: Weights, b: Weights) -> bool:
    return list(a) == list(b) and all(torch.equal(a[name], b[name]) for name in a)


@st.composite
def replies(draw: st.DrawFn) -> dict[str, Weights]:
    count = draw(st.integers(1, 5))
    return {f"lab-{k}": weights(draw(numbers), draw(numbers)) for k in range(count)}


def test_an_average_is_weighted_by_shares() -> None:
    given_ = {"a": weights(1, 10), "b": weights(4, 40)}
    found = Aggregator(PLAIN).aggregate(1, weights(100, 100), given_, {"a": 1.0, "b": 3.0})
    assert equal(found, weights(3.25, 32.5))


@pytest.mark.parametrize(("robust", "first"), [("none", 202.5), ("trimmed", 4.5), ("median", 4.5)])
def test_a_robust_rule_does_not_follow_those_who_lie(robust: Robust, first: float) -> None:
    replies = {f"lab-{k}": weights(k, 1) for k in range(1, 7)} | {"x": weights(800, 1), "y": weights(799, 1)}
    aggregator = Aggregator(StrategyConfig(name="fedavg", robust=robust))
    found = aggregator.aggregate(1, weights(0, 0), replies, dict.fromkeys(replies, 1.0))
    assert found[NAMES[0]][0, 0].item() == pytest.approx(first)
    assert found[NAMES[1]][0].item() == 1


@pytest.mark.parametrize("robust", ["none", "trimmed", "median"])
def test_every_rule_keeps_momentum_and_averages_statistics_without_it(robust: Robust) -> None:
    aggregator = Aggregator(StrategyConfig(name="fedavgm", momentum=0.5, robust=robust), frozenset(NAMES[1:]))
    start = weights(0, 0)
    for number, expected in ((1, 1.0), (2, 2.5), (3, 4.25)):
        replies = {name: weights(start[NAMES[0]][0, 0].item() + 1, 7) for name in "abc"}
        start = aggregator.aggregate(number, start, replies, dict.fromkeys("abc", 1.0))
        torch.testing.assert_close(start, weights(expected, 7.0))


def test_momentum_accumulates_over_three_rounds_by_hand() -> None:
    aggregator = Aggregator(StrategyConfig(name="fedavgm", momentum=0.5))
    start = weights(0, 0)
    # In each round the clients move by 1: v = 1, 1.5, 1.75, so the weights are 1, 2.5, 4.25.
    for number, expected in ((1, 1.0), (2, 2.5), (3, 4.25)):
        trained = {name: tensor + 1 for name, tensor in start.items()}
        start = aggregator.aggregate(number, start, {"a": trained, "b": trained}, {"a": 1, "b": 2})
        assert equal(start, weights(expected, expected))


def test_the_server_learning_rate_scales_the_step() -> None:
    aggregator = Aggregator(StrategyConfig(name="fedavgm", momentum=0.0, learning_rate=0.5))
    assert equal(aggregator.aggregate(1, weights(2, 2), {"a": weights(4, 6)}, {"a": 1}), weights(3, 4))


@pytest.mark.parametrize("name", ["fedavg", "fedprox", "fedavgm"])
@given(given_=replies(), examples=st.lists(st.integers(1, 50), min_size=5, max_size=5))
@settings(max_examples=25)
def test_without_momentum_every_strategy_is_the_plain_average(
    name: str, given_: dict[str, Weights], examples: list[int]
) -> None:
    shares = {each: float(count) for each, count in zip(given_, examples, strict=False)}
    config = StrategyConfig(name=name, momentum=0.0, robust="none")  # type: ignore[arg-type]
    found = Aggregator(config).aggregate(1, weights(1, 2), given_, shares)
    wanted = average(given_, shares)
    for key in NAMES:
        np.testing.assert_allclose(found[key], wanted[key], rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("name", ["fedavg", "fedavgm", "fedadam"])
def test_the_order_of_clients_changes_no_bit(name: str) -> None:
    random = torch.Generator().manual_seed(0)
    given_ = {f"lab-{k}": {"w": torch.randn(50, generator=random)} for k in range(4)}
    examples = {each: 1.0 + row / 3 for row, each in enumerate(given_)}
    start = {"w": torch.randn(50, generator=random)}
    found = []
    for order in itertools.permutations(given_):
        aggregator = Aggregator(StrategyConfig(name=name))  # type: ignore[arg-type]
        first = aggregator.aggregate(1, start, {each: given_[each] for each in order}, examples)
        found.append(aggregator.aggregate(2, first, {each: given_[each] for each in order}, examples))
    assert all(equal(each, found[0]) for each in found)


@pytest.mark.parametrize("name", ["fedavgm", "fedadam"])
def test_the_order_of_a_replys_tensors_does_not_matter(name: str) -> None:
    start = {"a": torch.zeros(3), "b": torch.ones(3)}
    reply = {"a": torch.ones(3), "b": torch.full((3,), 5.0)}
    straight, turned = (Aggregator(StrategyConfig(name=name)) for _ in range(2))  # type: ignore[arg-type]
    found = other = start
    for number in (1, 2):
        found = straight.aggregate(number, found, {"x": reply}, {"x": 1})
        given_ = dict(reversed(reply.items())) if number == 2 else reply
        other = turned.aggregate(number, other, {"x": given_}, {"x": 1})
    assert equal(found, other)


@given(given_=replies())
@settings(max_examples=25)
def test_fedadam_gives_finite_float32_of_the_same_shapes(given_: dict[str, Weights]) -> None:
    aggregator, current = Aggregator(StrategyConfig(name="fedadam", learning_rate=0.1)), weights(0.5, -0.5)
    for number in (1, 2, 3):
        current = aggregator.aggregate(number, current, given_, dict.fromkeys(given_, 1.0))
    assert [tuple(tensor.shape) for tensor in current.values()] == [(2, 3), (4,)]
    assert all(tensor.dtype == torch.float32 and tensor.isfinite().all() for tensor in current.values())


def test_fedadam_by_hand() -> None:
    aggregator = Aggregator(StrategyConfig(name="fedadam", learning_rate=0.1, momentum=0.9))
    found = aggregator.aggregate(1, weights(1, 1), {"a": weights(1.5, 1)}, {"a": 1})
    # delta = .5, m = .05, v = .01 * .25; Flower corrects the bias with the round's number plus one.
    rate = 0.1 * (1 - 0.99**2) ** 0.5 / (1 - 0.9**2)
    assert found[NAMES[0]][0, 0].item() == pytest.approx(1 + rate * 0.05 / (0.0025**0.5 + 0.001), rel=1e-5)
    assert found[NAMES[1]][0].item() == 1


@pytest.mark.parametrize("name", ["fedavgm", "fedadam"])
def test_a_restored_server_optimizer_goes_on_as_before(name: str) -> None:
    config = StrategyConfig(name=name)  # type: ignore[arg-type]
    whole, begun = Aggregator(config), Aggregator(config)
    reply = {"a": weights(1, 3)}
    for aggregator in (whole, begun):
        middle = aggregator.aggregate(1, weights(0, 0), reply, {"a": 1})
    restored = Aggregator(config)
    restored.restore(begun.state(NAMES), NAMES)
    forgetful = Aggregator(config)
    after = [each.aggregate(2, middle, reply, {"a": 1}) for each in (whole, restored, forgetful)]
    assert equal(after[0], after[1])
    assert not equal(after[0], after[2])


def test_a_server_without_memory_has_no_state() -> None:
    aggregator = Aggregator(StrategyConfig(name="fedavg"))
    aggregator.aggregate(1, weights(0, 0), {"a": weights(1, 1)}, {"a": 1})
    assert aggregator.state(NAMES) == {}


@pytest.mark.parametrize("values", [{"momentum": 1.0}, {"momentum": -0.1}, {"learning_rate": 0.0}])
def test_impossible_numbers_are_refused(values: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="momentum must be"):
        StrategyConfig(**values)  # type: ignore[arg-type]
