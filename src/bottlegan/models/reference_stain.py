"""What a model knows of its reference stain: 30 numbers, and no pixel. A new lab is onboarded with these alone."""

from typing import Self

import torch
from torch import Tensor, nn

from bottlegan.models.code_maps import read_reference
from bottlegan.stain.affine import StyleMaps


class ReferenceStain(nn.Module):
    """The stain of a reference set; of none, if a model was made without any."""

    stains: Tensor
    """(2, 3) densities of hematoxylin and eosin where they are strong; 0 if nothing is known."""
    maps: Tensor
    """(2, 4, 3) the way to the reference stain that onboarding's encoder was trained for, and the way back: a matrix
    and a bias each."""

    def __init__(self) -> None:
        """Know nothing."""
        super().__init__()
        self.register_buffer("stains", torch.zeros(2, 3))
        self.register_buffer("maps", torch.eye(4, 3).repeat(2, 1, 1))

    @classmethod
    def of(cls, stains: Tensor, maps: StyleMaps | None = None) -> Self:
        """Keep the densities (2, 3) of both stains and, unless it is the encoder's own stain, the maps of one style."""
        kept = cls()
        kept.stains = stains.detach().float().cpu().clone()
        if maps is not None:
            kept.maps = torch.stack([torch.cat([each.matrix[0], each.bias]) for each in maps]).detach().float().cpu()
        return kept

    @property
    def known(self) -> bool:
        """Whether anything is known."""
        return bool(self.stains.any())

    @property
    def directions(self) -> Tensor:
        """(2, 3) unit densities of hematoxylin and eosin."""
        return self.stains / self.stains.norm(dim=1, keepdim=True).clamp(min=1e-12)

    def style_maps(self) -> StyleMaps:
        """Return the maps between this stain and the encoder's, as of a style; refuse a model that knows none."""
        return read_reference(self.stains, self.maps)
