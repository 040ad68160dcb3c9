"""A model's data on its reference stain: 30 numbers, and no pixels. Onboarding a new lab needs nothing else."""

from typing import Self

import torch
from torch import Tensor, nn

from bottlegan.models.code_maps import read_reference
from bottlegan.stain.affine import StyleMaps


class ReferenceStain(nn.Module):
    """The stain of a reference set, or unknown if a model was made without one."""

    stains: Tensor
    """(2, 3) densities of hematoxylin and eosin where they are strong; 0 if unknown."""
    maps: Tensor
    """(2, 4, 3) maps to and from the reference stain that onboarding's encoder was trained for: each a matrix and a
    bias."""

    def __init__(self) -> None:
        """Start with an unknown stain."""
        super().__init__()
        self.register_buffer("stains", torch.zeros(2, 3))
        self.register_buffer("maps", torch.eye(4, 3).repeat(2, 1, 1))

    @classmethod
    def of(cls, stains: Tensor, maps: StyleMaps | None = None) -> Self:
        """Keep the densities (2, 3) of both stains and, unless it is the encoder's own stain, the maps of one style."""
        kept = cls()
        kept.stains = stains.detach().float().cpu().clone()
        if maps is not None:
            kept.maps = torch.stack([torch.cat([one.matrix[0], one.bias]) for one in maps]).detach().float().cpu()
        return kept

    @property
    def known(self) -> bool:
        """Whether the stain is known."""
        return bool(self.stains.any())

    @property
    def directions(self) -> Tensor:
        """(2, 3) unit densities of hematoxylin and eosin."""
        return self.stains / self.stains.norm(dim=1, keepdim=True).clamp(min=1e-12)

    def style_maps(self) -> StyleMaps:
        """Return the maps between this stain and the encoder's, like those of a style; refuse an unknown stain."""
        return read_reference(self.stains, self.maps)
