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

from bottlegan.federated.protocol.validation import Tensors
from bottlegan.federated.server.history import Standing

Standings = Mapping[str, Standing]
Floats = NDArray[np.float64]

FEWEST = 5
"""Labs without which nobody can tell who is odd."""
CERTAIN = 4.0
"""Evidence against a lab, as the logarithm of odds, above which it is named. Honest ones have stayed below 2.5."""
MOST_OF_ROUND = 2.0
"""Evidence that one round can give."""
LEAST_SPREAD = 0.1
"""Of cosines in a round; labs that agree better than that are taken for no better than that."""
LONG = 2.5
"""Times the median that updates of somebody who means well are long, in most rounds."""
TWIN, UNLIKE = 0.95, 0.8
"""Cosine above which two labs send the same, where most labs have nobody as near as the second."""
PASSES = 5
NORMAL = 1.4826
"""Standard deviation of normal numbers, over the median of how far they are off."""
KEYS = ("cosine", "length", "nearest")
TINY = 1e-30
"""Length of an update that is taken for none."""


def measure(replies: Mapping[str, Tensors], start: Tensors) -> dict[str, Standing]:
    """Return how each lab's update lies to the others': its length, its cosine with their center and the nearest."""
    names = sorted(replies)
    gram = multiply_updates([replies[name] for name in names], start)
    lengths = np.sqrt(np.diagonal(gram))
    safe = np.maximum(lengths, TINY)
    pairs = gram / np.outer(safe, safe)
    nearest = (pairs - 2 * np.eye(len(names))).max(axis=1)
    rows = zip(names, compare_with_center(pairs), lengths / np.median(safe), nearest, strict=True)
    return {
        name: Standing(**{key: round(float(value), 4) for key, value in zip(KEYS, values, strict=True)})
        for name, *values in rows
    }


def multiply_updates(replies: Sequence[Tensors], start: Tensors) -> Floats:
    """Return the inner products (N, N) of all updates, tensor by tensor, so that no copy of all is ever made."""
    total = torch.zeros(len(replies), len(replies), dtype=torch.float64)
    for key, begun in start.items():
        rows = torch.stack([(reply[key].double() - begun.double()).flatten() for reply in replies])
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


def weigh(rounds: Sequence[Standings]) -> dict[str, float]:
    """Return the evidence, as a logarithm of odds, that a lab goes along with the others, not against them.

    Cosines of labs that go along are around the usual one of their round, those of labs that turn their updates around
    it with the other sign. So rounds in which labs agree, as the first ones, tell much, and others little.
    """
    evidence: dict[str, float] = {}
    for standings in rounds:
        if len(standings) < FEWEST:
            continue
        usual = median(each.cosine for each in standings.values())
        spread = max(LEAST_SPREAD, NORMAL * median(abs(each.cosine - usual) for each in standings.values()))
        for name, each in standings.items():
            found = 2 * max(0.0, usual) * each.cosine / spread**2
            evidence[name] = evidence.get(name, 0.0) + min(MOST_OF_ROUND, max(-MOST_OF_ROUND, found))
    return evidence


def name_suspects(before: Sequence[Standings], now: Standings) -> dict[str, str]:
    """Return the labs of a round whose updates should not count, and why, given how all rounds before it went."""
    if len(now) < FEWEST:
        return {}
    evidence = weigh([*before, now])
    unlike = median(each.nearest for each in now.values()) < UNLIKE
    suspects = {}
    for name, each in now.items():
        length = median([*(record[name].length for record in before if name in record), each.length])
        if length > LONG:
            suspects[name] = f"its updates are {length:.1f} times as long as the median"
        elif evidence.get(name, 0.0) < -CERTAIN:
            suspects[name] = f"its updates point away from the others' (evidence {-evidence[name]:.1f})"
        elif unlike and each.nearest > TWIN:
            suspects[name] = f"it sends the same as another lab (cosine {each.nearest:.2f})"
    return suspects
