"""Who pulls against the others: how each lab's update lies to the robust center of all, round by round.

Labs that train on similar tasks agree on a direction, weakly in any one round and clearly over several. A lab that
turns its updates around, trains on inverted labels or makes them up does not. What is measured is kept in the history,
so that a resumed run comes to the same opinions.
"""

from collections.abc import Mapping, Sequence
from statistics import median

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bottlegan.federated.server.history import RoundRecord, Standing

Weights = Mapping[str, Tensor]
Floats = NDArray[np.float64]

DECAY = 0.9
"""What a round counts less than the one after it."""
FEWEST = 5
"""Labs without which nobody can tell who is odd."""
ENOUGH = 3.0
"""Rounds' worth of evidence without which nobody is named for the direction of updates."""
FAR = 4.0
"""How many times the usual spread a lab may be below the usual agreement."""
PASSES = 5
LONGEST = 5.0
"""Times the median that an update of somebody who means well may be long."""


def measure(replies: Mapping[str, Weights], start: Weights) -> dict[str, Standing]:
    """Return how each lab's update lies to the others': its length in medians, and its cosine with their center."""
    names = sorted(replies)
    gram = multiply_updates([replies[name] for name in names], start)
    lengths = np.sqrt(np.diagonal(gram))
    usual = max(float(np.median(lengths)), 1e-300)
    safe = np.maximum(lengths, 1e-300)
    cosines = compare_with_center(gram / np.outer(safe, safe))
    return {
        name: Standing(cosine=round(float(cosine), 4), length=round(float(length) / usual, 4))
        for name, cosine, length in zip(names, cosines, lengths, strict=True)
    }


def multiply_updates(replies: Sequence[Weights], start: Weights) -> Floats:
    """Return the inner products (N, N) of all updates, tensor by tensor, so that no copy of all is ever made."""
    total = torch.zeros(len(replies), len(replies), dtype=torch.float64)
    for key, begun in start.items():
        rows = torch.stack([(reply[key] - begun).flatten() for reply in replies]).double()
        total += rows @ rows.T
    return total.numpy()


def compare_with_center(cosines: Floats) -> Floats:
    """Return the cosine of each direction with the center of the others, given those of all pairs (N, N).

    The center is the sum of directions, each as long as the others, of labs that do not point away from it.
    """
    near = np.ones(len(cosines), bool)
    found = np.zeros(len(cosines))
    for _ in range(PASSES):
        # Of each lab's center, which it is no part of itself: the product with the lab, and the length.
        others = np.broadcast_to(near, cosines.shape) & ~np.eye(len(cosines), dtype=bool)
        along = (cosines * others).sum(axis=1)
        lengths = np.sqrt(np.maximum(np.einsum("ki,ij,kj->k", others, cosines, others), 1e-12))
        found = along / np.maximum(lengths, 1e-12)
        pointing = found > 0
        if bool((pointing == near).all()) or pointing.sum() < len(cosines) / 2:
            break
        near = pointing
    return np.clip(found, -1, 1)


def agree(rounds: Sequence[RoundRecord], now: Mapping[str, Standing]) -> dict[str, tuple[float, float]]:
    """Return each lab's cosine with the center over the rounds that it was in, and how many rounds that rests on."""
    sums: dict[str, tuple[float, float]] = {}
    for standings in (*(record.standing for record in rounds), now):
        for name, each in standings.items():
            total, weight = sums.get(name, (0.0, 0.0))
            sums[name] = (DECAY * total + each.cosine, DECAY * weight + 1)
    return {name: (sums[name][0] / sums[name][1], sums[name][1]) for name in sorted(now)}


def name_suspects(rounds: Sequence[RoundRecord], now: Mapping[str, Standing]) -> dict[str, str]:
    """Return the labs of a round whose updates should not count, and why."""
    if len(now) < FEWEST:
        return {}
    suspects = {
        name: f"its update is {each.length:.1f} times as long as the median"
        for name, each in now.items()
        if each.length > LONGEST
    }
    found = agree(rounds, now)
    usual = median(value for value, _ in found.values())
    spread = 1.4826 * median(abs(value - usual) for value, _ in found.values())
    for name, (value, weight) in found.items():
        if weight >= ENOUGH and value < min(0.0, usual - FAR * spread):
            suspects[name] = f"its updates point away from the others' (cosine {value:.2f}, usual {usual:.2f})"
    return suspects
