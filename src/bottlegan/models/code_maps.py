"""Codes and the affine maps that they hold: a generator's linear layer writes the code's map as 12 numbers.

A model is a network of torch or its weights as arrays of numpy; what comes out is of the same kind.
"""

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from array_api_compat import array_namespace

from bottlegan.core.errors import InputError
from bottlegan.models.weights import ModelWeights
from bottlegan.stain.affine import AffineMap, StyleMaps

if TYPE_CHECKING:
    from bottlegan.models.paradigms import StyleModel

Array = Any
"""Of numpy or of torch."""

UNUSED = 1e-4  # of the largest singular value: directions of the code that the linear layers take no notice of


class MapLayers(NamedTuple):
    """The linear layers of the normalizer and the restainer, one below the other."""

    weight: Array
    """(24, K)."""
    bias: Array
    """(24,)."""


def find_layers(model: "ModelWeights | StyleModel") -> MapLayers:
    """Return both linear layers; refuse a model without."""
    ways = ("normalizer", "restainer")
    if isinstance(model, ModelWeights):
        parts = [model.part(f"{way}.linear.") for way in ways]
    else:
        layers = [getattr(getattr(model, way, None), "linear", None) for way in ways]
        parts = [{} if layer is None else dict(layer.named_parameters()) for layer in layers]
    if not all(parts):
        raise InputError("this model's generators have no linear layer; a new style needs one trained with `default`")
    xp = array_namespace(parts[0]["weight"])
    return MapLayers(*(xp.concat([part[name] for part in parts]) for name in MapLayers._fields))


def encode_maps(model: "ModelWeights | StyleModel", maps: StyleMaps) -> Array:
    """Return the codes (S, K) under which the linear layers of a model hold the maps; gradients of maps pass."""
    layers = find_layers(model)
    if not isinstance(layers.weight, np.ndarray):
        layers = MapLayers(layers.weight.detach(), layers.bias.detach())
    xp = array_namespace(layers.weight)
    return (list_numbers(maps) - layers.bias) @ xp.linalg.pinv(layers.weight, rtol=UNUSED).T


def decode_maps(model: "ModelWeights | StyleModel", codes: Array) -> StyleMaps:
    """Return the maps that the linear layers of a model hold under codes (S, K)."""
    layers = find_layers(model)
    numbers = codes @ layers.weight.T + layers.bias
    return StyleMaps(_read_numbers(numbers[:, :12]), _read_numbers(numbers[:, 12:]))


def relate_codes(model: "ModelWeights | StyleModel", code: Array, other: Array) -> Array:
    """Return the code (K,) that normalizes as `code` does, but to the style of the code `other` instead."""
    mine, theirs = (decode_maps(model, each[None]) for each in (code, other))
    return encode_maps(model, mine.relative_to(theirs))[0]


def list_numbers(maps: StyleMaps) -> Array:
    """Return the maps as the linear layers write them (S, 24): each the matrix beyond identity, and the bias."""
    xp = array_namespace(maps.normalize.matrix)
    parts = []
    for each in maps:
        beyond = each.matrix.mT - _identity(each.matrix)
        parts += [xp.reshape(beyond, (-1, 9)), each.bias]
    return xp.astype(xp.concat(parts, axis=1), xp.float32)


def read_reference(stains: Array, maps: Array) -> StyleMaps:
    """Return the maps between a model's reference stain and the encoder's, as of a style; refuse a model without.

    Args:
        stains: (2, 3) of the reference stain; 0 if nothing is known.
        maps: (2, 4, 3) there and back: a matrix and a bias each.
    """
    if not bool((stains != 0).any()):
        raise InputError("this model knows nothing of its reference set, so it cannot learn a style; use another")
    there, back = (AffineMap(part[None, :3], part[None, 3]) for part in maps)
    return StyleMaps(there, back)


def _read_numbers(numbers: Array) -> AffineMap:
    beyond = array_namespace(numbers).reshape(numbers[:, :9], (-1, 3, 3))
    return AffineMap((beyond + _identity(beyond)).mT, numbers[:, 9:])


def _identity(like: Array) -> Array:
    return array_namespace(like).eye(3, dtype=like.dtype)
