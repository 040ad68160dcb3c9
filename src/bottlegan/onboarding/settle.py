"""Settling: where the encoder doubts itself, draw nuclei and other tissue toward what both are in most tissue.

The encoder has only seen simulated labs, and expects larger errors of a lab that is unlike them. Its maps may then
leave nuclei paler or redder than those of other labs. But nuclei hold much the same chromatin everywhere, and what lies
between them much the same protein, whatever share of a patch either has. So the mean amounts of stain of both are drawn
toward the typical ones: the more, the larger the expected error, and not at all where it is no larger than in most
simulated labs.
"""

import numpy as np
from numpy.typing import NDArray

from bottlegan.stain.affine import AffineMap, StyleMaps

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]

USUAL_ERROR = 10.9
"""Expected error, in levels of 255, up to which maps are taken at their word: that of three in four simulated labs."""
MOST_DOUBT = 0.3
"""How far maps may be off at most, as a share of what they say: in 41 simulated labs above `USUAL_ERROR`, four of five
numbers of the best mend are nearer. With more doubt, unusual tissue would turn into what is typical."""
TYPICAL = np.array([[0.46, 0.37], [0.09, 0.53]])
"""(2, 2) mean hematoxylin and eosin of nuclei, and of other tissue, as they are read in 550 simulated labs of three
patches."""
VARIATION = np.array([[0.087, 0.110], [0.024, 0.081]])
"""How far labs differ in these: their standard deviation."""
LEAST_STAIN = 0.12
"""Hematoxylin and eosin together, below which a pixel says nothing of tissue."""
ENOUGH = 64.0
"""Pixels of a class that count half as much as any number of them."""
ROUNDS = 20
"""Of finding the two classes: more change nothing."""
LEAST_GAP = 1e-3
"""Between how nuclear the two are."""


def settle(
    maps: StyleMaps, density: Floats, nuclear: Floats, *, basis: Floats, white: Floats, expected_error: float
) -> StyleMaps:
    """Return maps whose normalized nuclei and other tissue are nearer to typical.

    Args:
        maps: Of one lab.
        density: (P, 3) of its tissue.
        nuclear: (P,) the larger, the more likely a pixel is of a nucleus.
        basis: (3, 3) density of what is 1 of hematoxylin, eosin and neither in the reference stain.
        white: (1, 3) normalized density of glass, which stays.
        expected_error: Of the maps, in levels of 255.
    """
    doubt = min(expected_error / USUAL_ERROR - 1, MOST_DOUBT)
    if not doubt > 0:
        return maps
    to_amounts = np.linalg.inv(basis)
    amounts = ((maps.normalize(density[None])[0] - white) @ to_amounts)[:, :2].astype(np.float64)
    mend = np.eye(3)
    mend[:2, :2] = find_mend(*average_classes(amounts, find_nuclei(nuclear.astype(np.float64))), doubt)
    matrix = (to_amounts @ mend @ basis).astype(np.float32)[None]
    change = AffineMap(matrix, white - (white[:, None] @ matrix)[:, 0])
    return StyleMaps(maps.normalize.then(change), change.inverse().then(maps.restain))


def find_nuclei(nuclear: Doubles) -> Doubles:
    """Return how much each pixel (P,) is of a nucleus, in [0, 1].

    Where images are unlike simulated ones, nuclei still look more like nuclei than all else does, but all less so than
    they should. So the border is drawn between the two groups that there are. It is soft, so that a pixel next to it
    does not make a difference.
    """
    low, high = np.quantile(nuclear, [0.2, 0.9])
    for _ in range(ROUNDS):
        share = np.clip(0.5 + 4 * (nuclear - (low + high) / 2) / max(high - low, LEAST_GAP), 0, 1)
        high, low = (float((part * nuclear).sum() / max(part.sum(), 1e-9)) for part in (share, 1 - share))
    return np.asarray(share)


def average_classes(amounts: Doubles, nuclear: Doubles) -> tuple[Doubles, Doubles]:
    """Return the mean amounts (2, 2) of nuclei and of other tissue, and how many pixels (2,) say so.

    Args:
        amounts: (P, 2) of hematoxylin and eosin in each pixel.
        nuclear: (P,) how much of it is of a nucleus, in [0, 1].
    """
    sure = 2 * nuclear - 1  # a pixel that may be either says nothing of both
    weight = np.maximum(np.stack([sure, -sure]), 0) * (amounts.sum(1) > LEAST_STAIN)
    total = weight.sum(1)
    return weight @ amounts / np.maximum(total, 1e-9)[:, None], total


def find_mend(means: Doubles, pixels: Doubles, doubt: float) -> Doubles:
    """Return the matrix (2, 2) that brings amounts nearest to typical without changing much.

    `means` (2, 2) are those of the classes, `pixels` (2,) says how many there are of each, and `doubt` how far maps may
    be off, as a share of what they say. With x_k the mean amounts of class k, t_k and v_k the typical ones and how far
    these vary, column j of the matrix is

        argmin over m of sum over k of share_k (x_k m - t_kj)^2 / v_kj^2 + |m - e_j|^2 / doubt^2.
    """
    trust = (pixels / (pixels + ENOUGH))[:, None] / VARIATION**2
    unchanged = np.eye(2) / doubt**2
    columns = []
    for stain in (0, 1):
        weighted = means.T * trust[:, stain]
        columns.append(np.linalg.solve(weighted @ means + unchanged, weighted @ TYPICAL[:, stain] + unchanged[stain]))
    return np.stack(columns, axis=1)
