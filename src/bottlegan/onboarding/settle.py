"""Settling: draw what a map makes of tissue half way to how tissue mostly is.

Whether pale nuclei are pale by nature or by a weak stain, a few images cannot say. The encoder leaves most of it to the
tissue, so labs that stain weakly stay a little pale. Nuclei hold much the same chromatin everywhere, though, and what
lies between them much the same protein. So amounts are scaled such that the nuclei's hematoxylin, and the eosin of the
rest, come half way to what they are in simulated tissue.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bottlegan.stain.affine import AffineMap, StyleMaps

Floats = NDArray[np.float32]

LEAST_STAIN = 0.12
"""Hematoxylin and eosin together, below which a pixel says nothing of tissue."""
LEAST_PIXELS = 64
"""Of tissue, below which nothing is settled."""
ROUNDS = 20
"""Of finding the two classes: more change nothing."""
LEAST_GAP = 0.05
"""Between the hematoxylin of the two classes."""
WAY = 0.5
"""How far to go: half way, as the two explanations are equally good."""
MOST_CHANGE = 2.0
"""Factor up to which tissue can be pale or dark by itself."""


class Uptake(NamedTuple):
    """How much stain tissue holds, in the reference stain."""

    hematoxylin: float
    """Of nuclei."""
    eosin: float
    """Of all else."""


TYPICAL = Uptake(0.56, 0.53)
"""Mean over 1,000 simulated labs of eight patches each."""


def settle(maps: StyleMaps, density: Floats, basis: Floats, white: Floats) -> StyleMaps:
    """Return maps whose normalized tissue is half way to typical.

    Args:
        maps: Of one lab.
        density: (P, 3) of its tissue.
        basis: (3, 3) density of what is 1 of hematoxylin, eosin and neither in the reference stain.
        white: (1, 3) normalized density of glass, which stays.
    """
    to_amounts = np.linalg.inv(basis)
    uptake = measure_uptake((maps.normalize(density[None])[0] - white) @ to_amounts)
    if uptake is None:
        return maps
    change = np.clip(np.array(TYPICAL) / uptake, 1 / MOST_CHANGE, MOST_CHANGE) ** WAY
    matrix = ((to_amounts * np.array([*change, 1.0])) @ basis).astype(np.float32)[None]
    scale = AffineMap(matrix, white - (white[:, None] @ matrix)[:, 0])
    return StyleMaps(maps.normalize.then(scale), scale.inverse().then(maps.restain))


def measure_uptake(amounts: Floats) -> Uptake | None:
    """Return how much stain nuclei and other tissue hold, by amounts (P, 3); None where too little is stained.

    The two are told apart by their hematoxylin. The border between them is soft, so that a pixel next to it does not
    make a difference.
    """
    stained = amounts[amounts[:, 0] + amounts[:, 1] > LEAST_STAIN].astype(np.float64)
    if len(stained) < LEAST_PIXELS:
        return None
    hematoxylin, eosin = stained[:, 0], stained[:, 1]
    low, high = np.quantile(hematoxylin, [0.2, 0.9])
    for _ in range(ROUNDS):
        gap = max(high - low, LEAST_GAP)
        nuclear = np.clip(0.5 + 4 * (hematoxylin - (low + high) / 2) / gap, 0, 1)
        high, low = (_mean(hematoxylin, weight) for weight in (nuclear, 1 - nuclear))
    return Uptake(max(high, LEAST_GAP), max(_mean(eosin, 1 - nuclear), LEAST_GAP))


def _mean(values: NDArray[np.float64], weights: NDArray[np.float64]) -> float:
    return float((weights * values).sum() / max(float(weights.sum()), 1e-9))
