"""The warm start of training: codes and linear layers that hold each style's closed-form map from the first step on.

A closed-form map is 24 numbers, 12 in each direction. Their principal components are the style codes, so the linear
layers, which read the codes, can give the numbers back without having learned anything.
"""

import math

import torch
from torch import Tensor, nn

from bottlegan.errors import InputError
from bottlegan.models.paradigms import BottleGAN, StyleModel
from bottlegan.models.pixel import PixelGenerator
from bottlegan.stain.macenko import DensityMap

OUTLYING = 30.0  # median deviations from which on a number of a map counts as this far off and no farther
UNUSED = 1e-4  # of the largest singular value: directions of the code that the linear layers take no notice of


@torch.no_grad()
def begin_at_maps(model: StyleModel, maps: DensityMap) -> None:
    """Let the model's codes, and as far as its form allows its generators, begin at the maps, one a style."""
    if not model.codes.table.requires_grad:
        return
    numbers = tame(torch.cat([list_numbers(maps), list_numbers(maps.inverse())], dim=1))
    codes = describe(numbers, model.codes.size)
    model.codes.table.copy_(codes)
    if not isinstance(model, BottleGAN):
        return  # one generator for both directions has one linear layer, which cannot hold two maps of a code
    for layer, part in zip(linear_layers(model), numbers.chunk(2, dim=1), strict=True):
        if layer is not None:
            solved = torch.linalg.lstsq(torch.cat([codes, torch.ones(len(codes), 1)], dim=1), part, driver="gelsd")
            layer.weight.copy_(solved.solution[:-1].T)
            layer.bias.copy_(solved.solution[-1])


def linear_layers(model: BottleGAN) -> list[nn.Linear | None]:
    """Return the linear layers of the normalizer and the restainer, as far as they have one."""
    generators = (model.normalizer, model.restainer)
    return [generator.linear if isinstance(generator, PixelGenerator) else None for generator in generators]


def normalize_density(model: BottleGAN, density: Tensor, code: Tensor) -> Tensor:
    """Return densities (N, P, 3) in the reference stain, not clipped, given codes (N, K); gradients pass."""
    if not isinstance(model.normalizer, PixelGenerator):
        raise InputError("this model has no pixel generators; a new style needs one trained with `default`")
    return model.normalizer.density(density.transpose(1, 2)[:, :, None], code)[:, :, 0].transpose(1, 2)


def encode_maps(model: BottleGAN, maps: DensityMap) -> Tensor:
    """Return the codes (S, K) under which the linear layers of a trained model hold the maps; gradients pass."""
    layers = [layer for layer in linear_layers(model) if layer is not None]
    if len(layers) < 2:
        raise InputError("this model's generators have no linear layer; a new style needs one trained with `default`")
    weight = torch.cat([layer.weight for layer in layers]).detach()
    offset = torch.cat([layer.bias for layer in layers]).detach()
    numbers = torch.cat([list_numbers(maps), list_numbers(maps.inverse())], dim=1)
    return (numbers - offset) @ torch.linalg.pinv(weight, rtol=UNUSED).T


def list_numbers(maps: DensityMap) -> Tensor:
    """Return the maps as a generator's linear layer writes them (S, 12): the matrix beyond identity, and the offset."""
    beyond = maps.matrix.transpose(1, 2) - torch.eye(3).to(maps.matrix)
    return torch.cat([beyond.flatten(1), maps.bias], dim=1).float()


def tame(numbers: Tensor) -> Tensor:
    """Return the numbers (S, M) of all maps, those far from all other maps' cut off.

    A map that can hardly be turned around has huge numbers in one direction, which would push all others together.
    """
    middle = numbers.median(0).values
    spread = (numbers - middle).abs().median(0).values.clamp(min=1e-3)
    return middle + ((numbers - middle) / spread).clamp(-OUTLYING, OUTLYING) * spread


def describe(numbers: Tensor, size: int) -> Tensor:
    """Return codes (S, size) that tell the maps apart: their numbers (S, M), as principal components.

    All components have unit variance, so that training reaches each as fast as any other.
    """
    centered = numbers - numbers.mean(0)
    spread = centered.abs().median(0).values.clamp(min=1e-3)
    left, values, _ = torch.linalg.svd(centered / spread, full_matrices=False)
    codes = torch.zeros(len(numbers), size)
    count = min(size, int((values > 1e-5 * values[0]).sum()))
    codes[:, :count] = left[:, :count] * math.sqrt(len(numbers))
    return codes
