"""Affine maps of optical densities: what a staining style is, but for bent tone curves and what a scanner cuts off."""

from typing import Any, NamedTuple

from array_api_compat import array_namespace

Array = Any
"""Of numpy or of torch."""


class AffineMap(NamedTuple):
    """S maps of densities, which are row vectors: x -> x @ matrix + bias."""

    matrix: Array
    """(S, 3, 3)."""
    bias: Array
    """(S, 3)."""

    def __call__(self, density: Array) -> Array:
        """Return densities (S, P, 3), mapped; one map serves any number of sets."""
        return density @ self.matrix + self.bias[:, None]

    def then(self, following: "AffineMap") -> "AffineMap":
        """Return these maps and others after them, as one."""
        return AffineMap(self.matrix @ following.matrix, following(self.bias[:, None])[:, 0])

    def inverse(self) -> "AffineMap":
        """Return the maps in the other direction."""
        matrix = array_namespace(self.matrix).linalg.inv(self.matrix)
        return AffineMap(matrix, -(self.bias[:, None] @ matrix)[:, 0])

    def choose(self, rows: Array) -> "AffineMap":
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

    def choose(self, rows: Array) -> "StyleMaps":
        """Return the maps of the given rows (M,), which may repeat."""
        return StyleMaps(self.normalize.choose(rows), self.restain.choose(rows))


def both_ways(normalize: AffineMap) -> StyleMaps:
    """Return maps toward the reference stain with their exact inverses."""
    return StyleMaps(normalize, normalize.inverse())


def join_maps(parts: list[AffineMap]) -> AffineMap:
    """Return all the maps as one batch."""
    xp = array_namespace(parts[0].matrix)
    return AffineMap(xp.concat([part.matrix for part in parts]), xp.concat([part.bias for part in parts]))
