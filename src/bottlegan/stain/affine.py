"""Affine maps of optical densities: what a staining style is, but for bent tone curves and what a scanner cuts off."""

from typing import NamedTuple

import torch
from torch import Tensor

from bottlegan.stain.density import to_density, to_rgb


class AffineMap(NamedTuple):
    """S maps of densities, which are row vectors: x -> x @ matrix + bias."""

    matrix: Tensor
    """(S, 3, 3)."""
    bias: Tensor
    """(S, 3)."""

    def __call__(self, density: Tensor) -> Tensor:
        """Return densities (S, P, 3), mapped; one map serves any number of sets."""
        return density @ self.matrix + self.bias[:, None]

    def map_images(self, images: Tensor) -> Tensor:
        """Return images (S, 3, H, W) in [0, 1], mapped."""
        matrix, bias = self.matrix.to(images), self.bias.to(images)
        density = torch.einsum("nchw,ncd->ndhw", to_density(images), matrix.expand(len(images), 3, 3))
        return to_rgb(density + bias[:, :, None, None])

    def then(self, following: "AffineMap") -> "AffineMap":
        """Return these maps and others after them, as one."""
        return AffineMap(self.matrix @ following.matrix, following(self.bias[:, None])[:, 0])

    def inverse(self) -> "AffineMap":
        """Return the maps in the other direction."""
        matrix = torch.linalg.inv(self.matrix)
        return AffineMap(matrix, -(self.bias[:, None] @ matrix)[:, 0])

    def choose(self, rows: Tensor) -> "AffineMap":
        """Return the maps of the given rows (M,), which may repeat."""
        return AffineMap(self.matrix[rows], self.bias[rows])


class StyleMaps(NamedTuple):
    """The maps of S styles, both ways. One need not be the exact inverse of the other: noise is not to be amplified."""

    normalize: AffineMap
    """From the style to the reference stain."""
    restain: AffineMap
    """From the reference stain to the style."""

    def relative_to(self, other: "StyleMaps") -> "StyleMaps":
        """Return the maps as they are if the other style, of one or as many labs, is the reference stain."""
        return StyleMaps(self.normalize.then(other.restain), other.normalize.then(self.restain))

    def choose(self, rows: Tensor) -> "StyleMaps":
        """Return the maps of the given rows (M,), which may repeat."""
        return StyleMaps(self.normalize.choose(rows), self.restain.choose(rows))


def both_ways(normalize: AffineMap) -> StyleMaps:
    """Return maps toward the reference stain with their exact inverses."""
    return StyleMaps(normalize, normalize.inverse())


def join_maps(parts: list[AffineMap]) -> AffineMap:
    """Return all the maps as one batch."""
    return AffineMap(torch.cat([part.matrix for part in parts]), torch.cat([part.bias for part in parts]))
