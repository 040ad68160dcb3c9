"""What one should know of a color map before trusting it: white, more and more stain, and neighboring colors.

A smooth map still jumps at the dark end: from level 0 to 1 is as much optical density as from 128 to 255. So jumps are
told twice, anywhere and where every channel lets through some light, and only the latter have a limit.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from bottlegan.colormap.levels import DENSITY, to_levels
from bottlegan.colormap.table import Convert
from bottlegan.imaging.files import Pixels
from bottlegan.stain.style import LABORATORIES, list_stains

Color = tuple[int, int, int]

WHITE = 255
STEPS = 128
"""Colors along a path from white into stain."""
STRONGEST = 1.5
"""Concentration at its end; 1 is strong."""
STRIDE = 5
"""Every so many levels a color is compared with its neighbors, where comparing all of them takes too long."""
DARK = 32
"""Level of a channel below which one level is more than 3 % of the light."""

MOST_WHITE_SHIFT = 5
"""Levels that a map to the reference stain may take from white before somebody should look at it."""
MOST_LIGHTER = 0.01
"""Share of steps into more stain that may come out lighter."""
MOST_JUMP = 8
"""Levels between neighbors, where no channel is dark."""


@dataclass(frozen=True)
class Jump:
    """The largest difference between what a map makes of two neighbors: colors one level of one channel apart."""

    levels: int
    """Of the channel that changes most."""
    color: Color
    """The darker one of the two."""
    pairs: int
    """Neighbors that were compared."""


@dataclass(frozen=True)
class MapChecks:
    """What was found of a map."""

    white: Color
    """What it makes of white."""
    lighter: Mapping[str, float]
    """Share of the steps into more of something, by its name, at which the output is lighter than it was before."""
    jump: Jump
    """Where no channel is dark."""
    dark_jump: Jump
    """Anywhere."""

    @property
    def white_shift(self) -> int:
        """How many levels white is off, in the channel that is off most."""
        return WHITE - min(self.white)


def check_map(convert: Convert, stride: int = STRIDE) -> MapChecks:
    """Check a map of colors (N, 3), comparing every `stride`-th color along each channel with its neighbors."""
    lighter = {name: lighter_steps(convert, colors) for name, colors in stain_paths().items()}
    white = _color(convert(np.full((1, 3), WHITE, np.uint8))[0])
    return MapChecks(white, lighter, largest_jump(convert, stride, DARK), largest_jump(convert, stride))


def stain_paths() -> dict[str, Pixels]:
    """Return paths (P, STEPS, 3) of darker and darker colors: gray, and each stain of nine laboratories, from white."""
    stains = np.stack([list_stains(style) for style in LABORATORIES])
    ends = {
        "gray": np.full((1, 3), float(DENSITY[0])),
        "hematoxylin": STRONGEST * stains[:, 0],
        "eosin": STRONGEST * stains[:, 1],
        "both stains": STRONGEST * stains.mean(axis=1),
    }
    share = np.linspace(0, 1, STEPS)[:, None]
    return {name: to_levels((share * end[:, None]).astype(np.float32)) for name, end in ends.items()}


def lighter_steps(convert: Convert, paths: Pixels) -> float:
    """Return the share of steps along paths (P, S, 3) after which a color comes out lighter than one before it.

    Light is the mean optical density of the channels. What rounding to levels may have done does not count.
    """
    mapped = convert(paths.reshape(-1, 3)).reshape(paths.shape).astype(np.float64)
    darkest, lightest = _darkness(mapped - 0.5), _darkness(mapped + 0.5)
    before = np.maximum.accumulate(lightest, axis=1)[:, :-1]
    return float((darkest[:, 1:] < before).mean())


def largest_jump(convert: Convert, stride: int = 1, darkest: int = 0) -> Jump:
    """Return the largest jump between neighbors among the 256^3 colors.

    Args:
        convert: The map.
        stride: Compare every so many levels of each channel with the next level; 1 is all there are.
        darkest: Leave out colors with a channel below this level.
    """
    side = np.arange(0, WHITE + 1, stride, dtype=np.uint8)
    side = side[side >= darkest]
    found, pairs = Jump(-1, (0, 0, 0), 0), 0
    for red in side:  # a plane at a time, so that memory does not matter
        plane = np.stack(np.meshgrid(red, side, side, indexing="ij"), axis=-1).reshape(-1, 3)
        mapped = convert(plane)
        for channel in range(3):
            inside = plane[:, channel] < WHITE
            if not inside.any():
                continue
            beside = plane[inside]
            beside[:, channel] += 1
            apart = np.abs(np.subtract(convert(beside), mapped[inside], dtype=np.int16)).max(axis=1)
            pairs += len(apart)
            if apart.max() > found.levels:
                found = Jump(int(apart.max()), _color(plane[inside][apart.argmax()]), 0)
    return replace(found, pairs=pairs)


def _darkness(levels: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the mean optical density (...) of levels (..., 3), which need not be whole."""
    return np.asarray(-np.log((levels.clip(0, WHITE) + 1) / 256).mean(axis=-1))


def _color(levels: Pixels) -> Color:
    red, green, blue = levels.tolist()
    return (red, green, blue)
