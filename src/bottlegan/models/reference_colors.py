"""What a model knows of its reference set: compact statistics, and no pixel. A new style is fitted to these alone."""

from typing import Self

import torch
from torch import Tensor, nn

from bottlegan.errors import InputError
from bottlegan.stain.macenko import PROFILE_DIRECTIONS, PROFILE_LEVELS, Reference

COLOR_DIRECTIONS = 9
"""Directions along which colors are described: eight in the plane of the two stains, and one across it."""
COLOR_LEVELS = 64
"""Quantiles along each."""


class ReferenceColors(nn.Module):
    """The statistics of a reference set; of an empty one, if a model was made without any."""

    matrix: Tensor
    strength: Tensor
    moment: Tensor
    low: Tensor
    profiles: Tensor
    colors: Tensor
    """(R, COLOR_DIRECTIONS, COLOR_LEVELS): how the colors of each image are distributed."""

    def __init__(self, profiles: int = 0, colors: int = 0) -> None:
        """Make room for the statistics of so many images: of their tissue, if they show both stains, and colors."""
        super().__init__()
        shapes = {
            "matrix": (2, 3),
            "strength": (2,),
            "moment": (3, 3),
            "low": (2,),
            "profiles": (profiles, len(PROFILE_DIRECTIONS), len(PROFILE_LEVELS)),
            "colors": (colors, COLOR_DIRECTIONS, COLOR_LEVELS),
        }
        for name, shape in shapes.items():
            self.register_buffer(name, torch.zeros(shape))

    @classmethod
    def of(cls, reference: Reference, colors: Tensor) -> Self:
        """Keep the statistics of a reference set, and how the colors (R, ...) of its images are distributed."""
        kept = cls()
        for name in ("matrix", "strength", "moment", "low", "profiles"):
            kept.register_buffer(name, getattr(reference, name).float().cpu())
        kept.register_buffer("colors", colors.float().cpu())
        return kept

    def statistics(self) -> Reference:
        """Return what a closed-form fit needs to know."""
        if not len(self.colors):
            raise InputError("this model knows nothing of its reference set, so it cannot learn a style; use another")
        parts = (self.matrix, self.strength, self.moment, self.low, self.profiles)
        return Reference(*(part.double().cpu() for part in parts))
