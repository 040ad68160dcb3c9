"""Checks of a color map before it is trusted: white, increasing stain, and neighboring colors.

Even a smooth map jumps at the dark end: levels 0 and 1 are as far apart in optical density as levels 128 and 255. So
jumps are reported twice: over all colors, and over colors without a dark channel. Only the latter have a limit.
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
"""Number of colors along a path from white into stain."""
STRONGEST = 1.5
"""Concentration at the end of a path; 1 is strong."""
STRIDE = 5
"""Distance in levels between the colors that are compared with their neighbors, where comparing all takes too long."""
DARK = 32
"""A channel below this level is dark: one level is more than 3 % of its light."""

MOST_WHITE_SHIFT = 5
"""Levels by which a map to the reference stain may darken white before somebody should look at it."""
MOST_LIGHTER = 0.01
"""Share of steps toward more stain that may come out lighter."""
MOST_JUMP = 8
"""Largest acceptable difference in levels between mapped neighbors without a dark channel."""


@dataclass(frozen=True)
class Jump:
    """The largest difference between two mapped neighbors: colors that are one level of one channel apart."""

    levels: int
    """Difference in the channel that changes most."""
    color: Color
    """The darker of the two neighbors."""
    pairs: int
    """Number of pairs that were compared."""


@dataclass(frozen=True)
class MapChecks:
    """The findings about a map."""

    white: Color
    """The mapped color of white."""
    lighter: Mapping[str, float]
    """By path name: the share of steps into more stain at which the output becomes lighter."""
    jump: Jump
    """Largest jump among colors without a dark channel."""
    dark_jump: Jump
    """Largest jump among all colors."""

    @property
    def white_shift(self) -> int:
        """Largest error of white, over its channels, in levels."""
        return WHITE - min(self.white)


def check_map(convert: Convert, stride: int = STRIDE) -> MapChecks:
    """Check a map of colors (N, 3), comparing every `stride`-th color along each channel with its neighbors."""
    lighter = {name: lighter_steps(convert, colors) for name, colors in stain_paths().items()}
    white = _color(convert(np.full((1, 3), WHITE, np.uint8))[0])
    return MapChecks(white, lighter, largest_jump(convert, stride, DARK), largest_jump(convert, stride))


def stain_paths() -> dict[str, Pixels]:
    """Return paths (P, STEPS, 3) of ever darker colors from white: gray, and each stain of the nine laboratories."""
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
    """Return the share of steps along paths (P, S, 3) after which a color comes out lighter than an earlier one.

    Lightness is the mean optical density of the channels. Differences that rounding explains do not count.
    """
    mapped = convert(paths.reshape(-1, 3)).reshape(paths.shape).astype(np.float64)
    darkest, lightest = _darkness(mapped - 0.5), _darkness(mapped + 0.5)
    before = np.maximum.accumulate(lightest, axis=1)[:, :-1]
    return float((darkest[:, 1:] < before).mean())


def largest_jump(convert: Convert, stride: int = 1, darkest: int = 0) -> Jump:
    """Return the largest jump between neighbors among the 256^3 colors.

    Args:
        convert: The map.
        stride: Distance in levels between the compared colors, along each channel; 1 compares all.
        darkest: Leave out colors with a channel below this level.
    """
    side = np.arange(0, WHITE + 1, stride, dtype=np.uint8)
    side = side[side >= darkest]
    largest, pairs = Jump(-1, (0, 0, 0), 0), 0
    for red in side:  # one plane at a time, to save memory
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
            if apart.max() > largest.levels:
                largest = Jump(int(apart.max()), _color(plane[inside][apart.argmax()]), 0)
    return replace(largest, pairs=pairs)


def _darkness(levels: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the mean optical density (...) of levels (..., 3), which need not be whole numbers."""
    return np.asarray(-np.log((levels.clip(0, WHITE) + 1) / 256).mean(axis=-1))


def _color(levels: Pixels) -> Color:
    red, green, blue = levels.tolist()
    return (red, green, blue)
