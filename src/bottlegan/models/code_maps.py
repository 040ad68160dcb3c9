"""Codes and the affine maps that they hold: a generator's linear layer turns a code into the 12 numbers of a map.

A model is a torch network or its weights as NumPy arrays. Results have the same kind as the model.
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
"""A NumPy array or a torch tensor."""

UNUSED = 1e-4  # share of the largest singular value below which the linear layers ignore a direction of the code


class MapLayers(NamedTuple):
    """The linear layers of the normalizer and the restainer, stacked."""

    weight: Array
    """(24, K)."""
    bias: Array
    """(24,)."""


def find_layers(model: "ModelWeights | StyleModel") -> MapLayers:
    """Return both linear layers; refuse a model without them."""
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
    """Return the codes (S, K) with which a model's linear layers produce the maps. Gradients pass through."""
    layers = find_layers(model)
    if not isinstance(layers.weight, np.ndarray):
        layers = MapLayers(layers.weight.detach(), layers.bias.detach())
    xp = array_namespace(layers.weight)
    return (list_numbers(maps) - layers.bias) @ xp.linalg.pinv(layers.weight, rtol=UNUSED).T


def decode_maps(model: "ModelWeights | StyleModel", codes: Array) -> StyleMaps:
    """Return the maps that a model's linear layers produce for codes (S, K)."""
    layers = find_layers(model)
    numbers = codes @ layers.weight.T + layers.bias
    return StyleMaps(_read_numbers(numbers[:, :12]), _read_numbers(numbers[:, 12:]))


def relate_codes(model: "ModelWeights | StyleModel", code: Array, other: Array) -> Array:
    """Return the code (K,) that normalizes like `code`, but to the style of the code `other`."""
    mine, theirs = (decode_maps(model, one_code[None]) for one_code in (code, other))
    return encode_maps(model, mine.relative_to(theirs))[0]


def list_numbers(maps: StyleMaps) -> Array:
    """Return the maps in the form of the linear layers (S, 24): for each, the matrix minus identity, and the bias."""
    xp = array_namespace(maps.normalize.matrix)
    parts = []
    for one_map in maps:
        beyond = one_map.matrix.mT - _identity(one_map.matrix)
        parts += [xp.reshape(beyond, (-1, 9)), one_map.bias]
    return xp.astype(xp.concat(parts, axis=1), xp.float32)


def read_reference(stains: Array, maps: Array) -> StyleMaps:
    """Return the maps between a model's reference stain and the encoder's, like those of a style.

    Args:
        stains: (2, 3) stains of the reference; 0 if unknown, and then an error is raised.
        maps: (2, 4, 3) maps in both directions, each a matrix and a bias.
    """
    if not bool((stains != 0).any()):
        raise InputError("this model has no data on its reference set, so it cannot learn a style; use another model")
    there, back = (AffineMap(part[None, :3], part[None, 3]) for part in maps)
    return StyleMaps(there, back)


def _read_numbers(numbers: Array) -> AffineMap:
    beyond = array_namespace(numbers).reshape(numbers[:, :9], (-1, 3, 3))
    return AffineMap((beyond + _identity(beyond)).mT, numbers[:, 9:])


def _identity(like: Array) -> Array:
    return array_namespace(like).eye(3, dtype=like.dtype)
