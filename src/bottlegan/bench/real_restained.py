"""The same places in several real stainings: how much of the stainings' difference a method removes.

Neighboring sections show nearly the same tissue, but no pixel of one is a pixel of the other. So it is their
distributions of color that are compared, place by place: `measure_place` says how.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from skimage.color import rgb2lab

from bottlegan.bench.real_colors import root_mean_square
from bottlegan.bench.real_methods import Fitted, LabMethod, apply
from bottlegan.imaging.files import Pixels, read_image

QUANTILES = np.linspace(0.05, 0.95, 19)
FLAT = 1e-3
"""Smallest spread within a tile, in CIE Lab, so that the ratio exists for tiles of one color."""
Tiles = dict[int, dict[int, Pixels]]
"""Tiles by place and staining."""


def read_tiles(restained: dict[int, dict[int, Path]]) -> Tiles:
    """Return the tiles of all places and stainings."""
    return {
        place: {staining: read_image(path) for staining, path in tiles.items()} for place, tiles in restained.items()
    }


def measure_restained(method: LabMethod, tiles: Tiles) -> dict[str, float | None]:
    """Return the ratio that `measure_place` gives, averaged over places, for two ways to fit one style a staining.

    `all places`: fitted to the staining's tiles of all places. `other places`: fitted to those of all places but the
    one that is scored, so that nothing is scored on what it was fitted to.
    """
    together = fit_stainings(method, tiles, list(tiles))
    apart = [fit_stainings(method, tiles, [other for other in tiles if other != place]) for place in tiles]
    return {
        "all places": score([together] * len(tiles), tiles),
        "other places": score(apart, tiles) if len(tiles) > 1 else None,
    }


def fit_stainings(method: LabMethod, tiles: Tiles, places: Sequence[int]) -> dict[int, Fitted]:
    """Return one fit per staining, to its tiles of these places; none if there are none."""
    stainings = next(iter(tiles.values())) if places else ()
    return {staining: method.fit([tiles[place][staining] for place in places]) for staining in stainings}


def score(fits: Sequence[dict[int, Fitted]], tiles: Tiles) -> float:
    """Return the mean ratio over places, from the fits of all stainings for each place."""
    mapped = [
        [apply(fit[staining], tile)[0] for staining, tile in of.items()]
        for fit, of in zip(fits, tiles.values(), strict=True)
    ]
    return float(np.mean([measure_place(of) for of in mapped]))


def measure_place(tiles: Sequence[Pixels]) -> float:
    """Return the ratio of the color differences between stainings of one place to those within a tile.

    *Between stainings*: of each tile, 19 quantiles
    (5 % to 95 %) of lightness, a and b, each channel for itself; the root mean squared distance of two stainings'
    quantiles of the same level. *Within a tile*: the standard deviation of its pixels' colors, the root of the mean
    squared distance to their mean, pooled over the stainings' tiles.
    """
    colors = [rgb2lab(tile).reshape(-1, 3) for tile in tiles]
    quantiles = np.stack([np.quantile(tile, QUANTILES, axis=0) for tile in colors])
    count = len(tiles)
    # The mean squared distance of pairs is twice the variance; pairs of an element with itself are excluded.
    between = root_mean_square(quantiles - quantiles.mean(0)) * np.sqrt(2 * count / (count - 1))
    within = float(np.sqrt(np.mean([_variance(tile) for tile in colors])))
    return between / max(within, FLAT)


def _variance(colors: NDArray[np.float64]) -> float:
    return root_mean_square(colors - colors.mean(0)) ** 2
