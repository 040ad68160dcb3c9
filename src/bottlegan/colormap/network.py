"""A pixel network under one code as a few arrays: everything that the compiled kernel needs for a map of colors."""

import math
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from bottlegan.colormap.keys import BLUE, GREEN, RED, Keys
from bottlegan.colormap.levels import DENSITY, EDGES, FIRST, Floats
from bottlegan.colormap.limits import FAINT, FAR, GREENNESS, NEAR

Number = TypeVar("Number", bound=np.generic)

MIXED = np.float32(0.5)
"""Share of each stain's strength at which the stains are measured; no channel is black there in any style."""


def _nothing(*shape: int) -> Floats:
    return np.zeros(shape, np.float32)


@dataclass(frozen=True)
class Ink:
    """The data that distinguishes pen from tissue: the glass and the two stains of the mapped images."""

    glass: Floats
    """(3,) density where there is no stain."""
    stains: Floats
    """(2, 3) unit densities of both stains above glass."""
    inverse: Floats
    """(2, 3): multiplied by a density above glass, it gives the amount of each stain."""

    @classmethod
    def of(cls, glass: Floats, strong: Floats) -> "Ink | None":
        """Return the data from the densities of glass (3,) and of both stains (2, 3), which include that of glass.

        Returns None if the two stains are parallel, because ink cannot be recognized then. The computation goes number
        by number in double precision, because a matrix library may sum in any order.
        """
        above = [[float(a) - float(b) for a, b in zip(stain, glass, strict=True)] for stain in strong]
        lengths = [math.sqrt(math.fsum(value * value for value in stain)) for stain in above]
        if min(lengths) < 1e-6:
            return None
        first, second = ([value / length for value in s] for s, length in zip(above, lengths, strict=True))
        cosine = math.fsum(a * b for a, b in zip(first, second, strict=True))
        if 1 - cosine * cosine < 1e-6:
            return None
        scale = 1 / (1 - cosine * cosine)
        inverse = [
            [scale * (a - cosine * b) for a, b in zip(*pair, strict=True)]
            for pair in ((first, second), (second, first))
        ]
        return cls(*(np.array(part, np.float32) for part in (glass, [first, second], inverse)))


@dataclass(frozen=True)
class ColorNetwork:
    """A map of densities, y = x A + b + R(x), applied to each color by itself, and the ink that it leaves unchanged.

    R has D hidden layers of width W with ReLU after each. With D = 0 the map is affine.
    """

    matrix: Floats
    """(3, 3): A."""
    bias: Floats
    """(3,): b, including the bias of the last layer."""
    layers: Floats = field(default_factory=lambda: _nothing(0, 3, 0))
    """(D, max(W, 3), W): weights from rows to columns. The first layer uses three rows, the others W."""
    shifts: Floats = field(default_factory=lambda: _nothing(0, 0))
    """(D, W)."""
    last: Floats = field(default_factory=lambda: _nothing(0, 3))
    """(W, 3)."""
    ink: Ink | None = None
    """The ink that is left unchanged; None maps every color."""

    def __post_init__(self) -> None:
        """Check that all arrays fit together, because the kernel does not."""
        depth, width = self.shifts.shape
        wanted = {
            "matrix": (3, 3),
            "bias": (3,),
            "layers": (depth, max(width, 3), width),
            "shifts": (depth, width),
            "last": (width, 3),
        }
        for name, shape in wanted.items():
            array = getattr(self, name)
            if array.dtype != np.float32 or not array.flags.c_contiguous or array.shape != shape:
                raise ValueError(f"{name} must be {shape}, float32, contiguous, got {array.shape}, {array.dtype}")

    def arguments(self) -> "Arguments":
        """Return the arguments of the kernel."""
        ink = self.ink or Ink(_nothing(3), _nothing(0, 3), _nothing(0, 3))
        return Arguments(
            matrix=_constant(self.matrix),
            bias=_constant(self.bias),
            layers=_constant(self.layers),
            shifts=_constant(self.shifts),
            last=_constant(self.last),
            glass=_constant(ink.glass),
            stains=_constant(ink.stains),
            inverse=_constant(ink.inverse),
            density=_constant(DENSITY),
            edges=_constant(EDGES),
            first=_constant(FIRST),
            keys=KEYS,
            limits=LIMITS,
        )


class Arguments(NamedTuple):
    """The kernel's read-only arrays: those of a network, and those that all networks share."""

    matrix: Floats
    bias: Floats
    layers: Floats
    shifts: Floats
    last: Floats
    glass: Floats
    stains: Floats
    inverse: Floats
    density: Floats
    edges: Floats
    first: NDArray[np.int64]
    keys: Keys
    """(3, 256): the term that each level of red, green and blue adds to the number of a color."""
    limits: Floats
    """(6,): limits of density, angle and green share at which pen begins."""


def _constant(array: NDArray[Number]) -> NDArray[Number]:
    """Return a read-only view of an array."""
    view = array.view()
    view.flags.writeable = False
    return view


KEYS = _constant(np.stack([RED, GREEN, BLUE]))
LIMITS = _constant(np.array([*FAINT, NEAR, FAR, *GREENNESS], np.float32))
