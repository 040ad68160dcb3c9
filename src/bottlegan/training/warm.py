"""The warm start of training: codes and linear layers hold each style's affine maps from the first step on.

Each style has two maps of 12 numbers each, one per direction. Their principal components become the style codes, so
the linear layers that read the codes can reproduce the numbers without any training.
"""

import math

import torch
from torch import Tensor

from bottlegan.models.code_maps import list_numbers
from bottlegan.models.paradigms import BottleGAN, StyleModel
from bottlegan.models.pixel import PixelGenerator
from bottlegan.stain.affine import StyleMaps

OUTLYING = 30.0  # a map's numbers are clipped at so many median deviations


@torch.no_grad()
def begin_at_maps(model: StyleModel, maps: StyleMaps, generators: bool = True) -> None:
    """Set the model's codes and, as far as its form allows, its `generators` to the maps, one per style."""
    if not model.codes.table.requires_grad:
        return
    numbers = tame(list_numbers(maps))
    codes = describe(numbers, model.codes.size)
    model.codes.table.copy_(codes)
    if not isinstance(model, BottleGAN) or not generators:
        return  # a generator for both directions has one linear layer, which cannot hold two maps per code
    for generator, part in zip((model.normalizer, model.restainer), numbers.chunk(2, dim=1), strict=True):
        if isinstance(generator, PixelGenerator) and generator.linear is not None:
            solved = torch.linalg.lstsq(torch.cat([codes, torch.ones(len(codes), 1)], dim=1), part, driver="gelsd")
            generator.linear.weight.copy_(solved.solution[:-1].T)
            generator.linear.bias.copy_(solved.solution[-1])


def tame(numbers: Tensor) -> Tensor:
    """Return the numbers (S, M) of all maps, with outliers clipped.

    A map that can hardly be inverted has huge numbers in one direction, which would crowd all other maps together.
    """
    middle = numbers.median(0).values
    spread = (numbers - middle).abs().median(0).values.clamp(min=1e-3)
    return middle + ((numbers - middle) / spread).clamp(-OUTLYING, OUTLYING) * spread


def describe(numbers: Tensor, size: int) -> Tensor:
    """Return codes (S, size): the principal components of the maps' numbers (S, M).

    All components have unit variance, so that training learns them equally fast.
    """
    centered = numbers - numbers.mean(0)
    spread = centered.abs().median(0).values.clamp(min=1e-3)
    left, values, _ = torch.linalg.svd(centered / spread, full_matrices=False)
    codes = torch.zeros(len(numbers), size)
    count = min(size, int((values > 1e-5 * values[0]).sum()))
    codes[:, :count] = left[:, :count] * math.sqrt(len(numbers))
    return codes
