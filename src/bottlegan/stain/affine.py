"""Affine maps of optical densities. They describe a staining style, except for bent tone curves and clipped white."""

from typing import Any, NamedTuple

from array_api_compat import array_namespace

Array = Any
"""A NumPy array or a torch tensor."""


class AffineMap(NamedTuple):
    """S maps of densities, which are row vectors: x -> x @ matrix + bias."""

    matrix: Array
    """(S, 3, 3)."""
    bias: Array
    """(S, 3)."""

    def __call__(self, density: Array) -> Array:
        """Return the mapped densities (S, P, 3). A single map applies to any number of sets."""
        return density @ self.matrix + self.bias[:, None]

    def then(self, following: "AffineMap") -> "AffineMap":
        """Return the maps that apply these first and `following` after them."""
        return AffineMap(self.matrix @ following.matrix, following(self.bias[:, None])[:, 0])

    def inverse(self) -> "AffineMap":
        """Return the inverse maps."""
        matrix = array_namespace(self.matrix).linalg.inv(self.matrix)
        return AffineMap(matrix, -(self.bias[:, None] @ matrix)[:, 0])

    def choose(self, rows: Array) -> "AffineMap":
        """Return the maps at `rows` (M,), which may repeat."""
        return AffineMap(self.matrix[rows], self.bias[rows])


class StyleMaps(NamedTuple):
    """The maps of S styles in both directions. They need not be exact inverses, which would amplify noise."""

    normalize: AffineMap
    """From the style to the reference stain."""
    restain: AffineMap
    """From the reference stain to the style."""

    def relative_to(self, other: "StyleMaps") -> "StyleMaps":
        """Return these maps with the other style, of one lab or of S labs, as the reference stain."""
        return StyleMaps(self.normalize.then(other.restain), other.normalize.then(self.restain))

    def choose(self, rows: Array) -> "StyleMaps":
        """Return the maps at `rows` (M,), which may repeat."""
        return StyleMaps(self.normalize.choose(rows), self.restain.choose(rows))


def both_ways(normalize: AffineMap) -> StyleMaps:
    """Return maps to the reference stain together with their exact inverses."""
    return StyleMaps(normalize, normalize.inverse())


def join_maps(parts: list[AffineMap]) -> AffineMap:
    """Return all the maps as one batch."""
    xp = array_namespace(parts[0].matrix)
    return AffineMap(xp.concat([part.matrix for part in parts]), xp.concat([part.bias for part in parts]))
