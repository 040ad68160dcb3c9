"""How a lab is hidden in a round: clipped updates, noise, and sums instead of single updates.

An update is a lab's change of the weights, as one row of numbers. For a private update, the row is clipped to a length,
which bounds the influence of one lab; the lab's noise is added; and the result is rounded to a grid of whole numbers
modulo 2^32. There, sums are exact in any order, and masks cancel exactly.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bottlegan.core.config import document
from bottlegan.core.errors import ConfigError

PRIVACY, LABS, UPDATE = "privacy", "labs", "update"
"""Names of a request's settings (a `PrivacyConfig`, the number of labs in the sum) and of a private update's tensor."""
LEAST_LABS = 3
"""Fewest labs in a sum. Of two labs, each could subtract itself and learn the other's update."""
NOISE_RANGE = 6.0
"""Range of the grid for noise, in standard deviations; larger noise is clipped."""

Whole = NDArray[np.uint32]
Floats = NDArray[np.float64]


@document
class PrivacyConfig:
    """How single labs are hidden in a round. All labs then count the same and do not report their loss."""

    secure: bool = False
    """Secure aggregation: the server learns the sum of the updates, and no update of a single lab."""
    clip: float = 5.0
    """Length to which labs clip their updates, with `secure` or `noise`."""
    noise: float = 0.0
    """Standard deviation of the noise in a round's sum of updates, as a multiple of `clip`; 0 for none."""
    noise_at: Literal["labs", "server"] = "labs"
    """Who adds the noise. With `labs`, nobody needs to be trusted; with `secure`, each lab adds only a part of it."""
    delta: float = 1e-5
    """The delta for which epsilon is stated."""

    def __post_init__(self) -> None:
        """Check the numbers."""
        if not (self.clip > 0 and self.noise >= 0 and 0 < self.delta < 1):
            raise ConfigError("privacy: clip must be above 0, noise at least 0, delta between 0 and 1")

    @property
    def active(self) -> bool:
        """Whether labs send private updates."""
        return self.secure or self.noise > 0


@dataclass(frozen=True)
class Grid:
    """The grid on which the private updates of a number of labs are added without overflow."""

    privacy: PrivacyConfig
    labs: int
    numbers: int

    @property
    def deviation(self) -> float:
        """Standard deviation of the noise that each lab adds."""
        if self.privacy.noise_at == "server":
            return 0.0
        # Even if only the fewest allowed labs reply, their noise adds up to the full amount.
        part = math.sqrt(count_needed(self.labs)) if self.privacy.secure else 1.0
        return self.privacy.noise * self.privacy.clip / part

    @property
    def most(self) -> int:
        """The largest whole number that a lab sends."""
        return (2**31 - 1) // self.labs

    @property
    def step(self) -> float:
        """The value of one grid step."""
        return (self.privacy.clip + NOISE_RANGE * self.deviation) / self.most

    def cut(self, update: Floats) -> Floats:
        """Clip an update so that it is no longer than `clip`, even after rounding to the grid."""
        longest = max(0.0, self.privacy.clip - math.sqrt(self.numbers) * self.step / 2)
        length = float(np.linalg.norm(update))
        return update * (longest / length) if length > longest else update

    def to_whole(self, values: Floats) -> Whole:
        """Round numbers to the grid, modulo 2^32."""
        rounded = np.rint(np.clip(values / self.step, -self.most, self.most)).astype(np.int64)
        return (rounded % 2**32).astype(np.uint32)

    def from_whole(self, total: Whole) -> Floats:
        """Return the values of a sum on the grid."""
        return total.view(np.int32).astype(np.float64) * self.step

    def is_possible(self, total: Floats, count: int) -> bool:
        """Return whether `count` clipped updates can have this sum, with ample room for noise."""
        room = 2 * self.deviation * math.sqrt(count * self.numbers)
        return bool(np.linalg.norm(total) <= count * self.privacy.clip + room)


def count_needed(labs: int) -> int:
    """Return how many labs must reply: two thirds, so that no two groups without a common lab are large enough."""
    return max(2, math.ceil(2 * labs / 3))


def to_row(weights: Mapping[str, Tensor], start: Mapping[str, Tensor], own: Collection[str] = ()) -> Floats:
    """Return the change of the weights as one row, sorted by name; the lab's own layers count as unchanged."""
    parts = [
        torch.zeros(start[name].numel(), dtype=torch.float64)
        if name in own
        else (weights[name].double() - start[name].double()).flatten()
        for name in sorted(start)
    ]
    return torch.cat(parts).numpy()


def add_row(start: Mapping[str, Tensor], row: Floats) -> dict[str, Tensor]:
    """Add a row of changes to the weights."""
    pieces = torch.from_numpy(row).split([start[name].numel() for name in sorted(start)])
    changes = dict(zip(sorted(start), pieces, strict=True))
    return {name: (t.double() + changes[name].reshape(t.shape)).to(t.dtype) for name, t in start.items()}


def to_tensor(row: Whole) -> Tensor:
    """Return whole numbers as a tensor, for a reply."""
    return torch.from_numpy(row.view(np.int32).copy())


def from_tensor(tensor: Tensor) -> Whole:
    """Return the whole numbers in a reply's tensor."""
    return tensor.numpy().view(np.uint32)
