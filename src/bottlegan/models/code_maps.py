"""Codes and the affine maps that they hold: a generator's linear layer writes the code's map as 12 numbers."""

import torch
from torch import Tensor, nn

from bottlegan.errors import InputError
from bottlegan.models.paradigms import BottleGAN
from bottlegan.models.pixel import PixelGenerator
from bottlegan.stain.affine import AffineMap, StyleMaps

UNUSED = 1e-4  # of the largest singular value: directions of the code that the linear layers take no notice of


def linear_layers(model: BottleGAN) -> list[nn.Linear | None]:
    """Return the linear layers of the normalizer and the restainer, as far as they have one."""
    generators = (model.normalizer, model.restainer)
    return [generator.linear if isinstance(generator, PixelGenerator) else None for generator in generators]


def need_linear_layers(model: BottleGAN) -> list[nn.Linear]:
    """Return both linear layers; refuse a model without."""
    layers = [layer for layer in linear_layers(model) if layer is not None]
    if len(layers) < 2:
        raise InputError("this model's generators have no linear layer; a new style needs one trained with `default`")
    return layers


def encode_maps(model: BottleGAN, maps: StyleMaps) -> Tensor:
    """Return the codes (S, K) under which the linear layers of a model hold the maps; gradients pass."""
    layers = need_linear_layers(model)
    weight = torch.cat([layer.weight for layer in layers]).detach()
    offset = torch.cat([layer.bias for layer in layers]).detach()
    return (list_numbers(maps) - offset) @ torch.linalg.pinv(weight, rtol=UNUSED).T


def decode_maps(model: BottleGAN, codes: Tensor) -> StyleMaps:
    """Return the maps that the linear layers of a model hold under codes (S, K)."""
    there, back = (_read_numbers(layer(codes)) for layer in need_linear_layers(model))
    return StyleMaps(there, back)


def relate_codes(model: BottleGAN, code: Tensor, other: Tensor) -> Tensor:
    """Return the code (K,) that normalizes as `code` does, but to the style of the code `other` instead."""
    mine, theirs = (decode_maps(model, each[None]) for each in (code, other))
    return encode_maps(model, mine.relative_to(theirs))[0]


def list_numbers(maps: StyleMaps) -> Tensor:
    """Return the maps as the linear layers write them (S, 24): each the matrix beyond identity, and the bias."""
    parts = []
    for each in maps:
        beyond = each.matrix.transpose(1, 2) - torch.eye(3).to(each.matrix)
        parts.append(torch.cat([beyond.flatten(1), each.bias], dim=1))
    return torch.cat(parts, dim=1).float()


def _read_numbers(numbers: Tensor) -> AffineMap:
    beyond, bias = numbers.split([9, 3], dim=1)
    return AffineMap((beyond.reshape(-1, 3, 3) + torch.eye(3).to(beyond)).transpose(1, 2), bias)
