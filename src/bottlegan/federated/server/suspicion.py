"""Which labs pull against the others: compares each lab's update with a robust center of all, round by round.

Labs that train on similar tasks agree on a direction, weakly in a single round and clearly over several. A lab that
inverts its updates, trains on inverted labels or invents updates does not agree. The measurements are stored in the
history, so a resumed run comes to the same conclusions.
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
"""With fewer labs, nobody can tell which one is odd."""
CERTAIN = 4.0
"""Evidence against a lab (log odds) above which it becomes a suspect. Honest labs have stayed below 2.5."""
MOST_OF_ROUND = 2.0
"""Largest evidence from one round."""
LEAST_SPREAD = 0.1
"""Smallest spread of the cosines in a round that is assumed, however well labs agree."""
LONG = 2.5
"""Length of an honest lab's updates in most rounds, as a multiple of the median, at most."""
TWIN, UNLIKE = 0.95, 0.8
"""Two labs send the same if their cosine is above the first, and most labs' nearest is below the second."""
PASSES = 5
NORMAL = 1.4826
"""Standard deviation of a normal distribution, divided by its median absolute deviation."""
KEYS = ("cosine", "length", "nearest")
TINY = 1e-30
"""Smallest length of an update; anything shorter counts as no update."""


def measure(replies: Mapping[str, Tensors], start: Tensors) -> dict[str, Standing]:
    """Compare each lab's update with the others': its length, and its cosines with their center and the nearest one."""
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
    """Return the inner products (N, N) of all updates, computed tensor by tensor to save memory."""
    total = torch.zeros(len(replies), len(replies), dtype=torch.float64)
    for key, begun in start.items():
        rows = torch.stack([(reply[key].double() - begun.double()).flatten() for reply in replies])
        total += rows @ rows.T
    return total.numpy()


def compare_with_center(cosines: Floats) -> Floats:
    """Return the cosine of each direction with the center of the others, from the cosines of all pairs (N, N).

    The center is the sum of the unit directions of all labs that do not point away from it.
    """
    near = np.ones(len(cosines), bool)
    cosines_with_center = np.zeros(len(cosines))
    for _ in range(PASSES):
        # A lab is not part of its own center. These are the product of the two, and the length of the center.
        others = np.broadcast_to(near, cosines.shape) & ~np.eye(len(cosines), dtype=bool)
        along = (cosines * others).sum(axis=1)
        lengths = np.sqrt(np.maximum(np.einsum("ki,ij,kj->k", others, cosines, others), 1e-12))
        cosines_with_center = along / np.maximum(lengths, 1e-12)
        pointing = cosines_with_center > 0
        if bool((pointing == near).all()) or pointing.sum() < len(cosines) / 2:
            break
        near = pointing
    return np.clip(cosines_with_center, -1, 1)


def weigh(rounds: Sequence[Standings]) -> dict[str, float]:
    """Return the evidence (log odds) that a lab goes along with the others, not against them.

    Cosines of labs that go along lie around the round's usual cosine, those of labs that invert their updates around
    its negative. So rounds in which labs agree, such as the first ones, tell much, and others little.
    """
    evidence: dict[str, float] = {}
    for standings in rounds:
        if len(standings) < FEWEST:
            continue
        usual = median(standing.cosine for standing in standings.values())
        spread = max(LEAST_SPREAD, NORMAL * median(abs(standing.cosine - usual) for standing in standings.values()))
        for name, standing in standings.items():
            gained = 2 * max(0.0, usual) * standing.cosine / spread**2
            evidence[name] = evidence.get(name, 0.0) + min(MOST_OF_ROUND, max(-MOST_OF_ROUND, gained))
    return evidence


def name_suspects(before: Sequence[Standings], now: Standings) -> dict[str, str]:
    """Return the labs of a round whose updates should not count, and why, given all earlier rounds."""
    if len(now) < FEWEST:
        return {}
    evidence = weigh([*before, now])
    unlike = median(standing.nearest for standing in now.values()) < UNLIKE
    suspects = {}
    for name, standing in now.items():
        length = median([*(record[name].length for record in before if name in record), standing.length])
        if length > LONG:
            suspects[name] = f"its updates are {length:.1f} times as long as the median update"
        elif evidence.get(name, 0.0) < -CERTAIN:
            suspects[name] = f"its updates point away from the others' (evidence {-evidence[name]:.1f})"
        elif unlike and standing.nearest > TWIN:
            suspects[name] = f"it sends the same as another lab (cosine {standing.nearest:.2f})"
    return suspects
