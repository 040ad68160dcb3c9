"""Freezing a model's generator under one code into a map of colors: the step from a network to the kernel.

Everything that depends only on the code is computed once, in double precision, with each sum exactly rounded. The
resulting map is therefore identical to the bit on every machine.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import mul
from typing import Literal

import numpy as np

from bottlegan.colormap.levels import Floats
from bottlegan.colormap.limits import DARKEST_GLASS
from bottlegan.colormap.network import MIXED, ColorNetwork, Ink
from bottlegan.colormap.table import ColorMap
from bottlegan.core.errors import InputError
from bottlegan.models.config import KNOWN_CODES, GeneratorConfig
from bottlegan.models.weights import ModelWeights

Direction = Literal["normalize", "restain"]
Numbers = list[float]


def maps_colors(config: GeneratorConfig) -> bool:
    """Return whether generators of this form map a pixel only by its own color, without exponentials."""
    return config.kind == "pixel" and config.statistics == "frozen" and config.skip


def freeze(model: ModelWeights, code: Sequence[float] | Floats, direction: Direction) -> ColorNetwork:
    """Return a model's map of colors under a code (K,), in one direction. It maps ink, too."""
    form = model.document.model.generator
    if not maps_colors(form):
        raise InputError(
            "this model is not a map of colors: it uses more than one pixel, or has no linear part; "
            "use a model of pixel generators with frozen statistics and `skip`"
        )
    name, numbers_of_style = choose_generator(model, [float(number) for number in code], direction)
    weights = model.part(f"{name}.")
    numbers = linear(weights, "linear", numbers_of_style)
    matrix = [[numbers[3 * after + before] + (before == after) for after in range(3)] for before in range(3)]
    network = ColorNetwork(np.array(matrix, np.float32), np.array(numbers[9:], np.float32))
    return add_layers(network, weights, form, numbers_of_style) if form.depth else network


def choose_generator(model: ModelWeights, code: Numbers, direction: Direction) -> tuple[str, Numbers]:
    """Return the name of the generator for a direction, and the numbers that tell it the style."""
    there = direction == "normalize"
    match model.document.model.paradigm:
        case "many-one-many":
            return ("normalizer" if there else "restainer"), code
        case "many-many":
            return "generator", [float(n) for n in model.arrays["reference_code"]] if there else code
        case "many-one":
            return "generator", [*code, 1.0 if there else -1.0]
        case "many-one-one":
            row = max(range(len(code)), key=code.__getitem__)
            return f"{'normalizers' if there else 'restainers'}.{row}", [1.0]


def add_layers(
    network: ColorNetwork, weights: Mapping[str, Floats], form: GeneratorConfig, numbers_of_style: Numbers
) -> ColorNetwork:
    """Return the network with its hidden layers, whose scales and shifts depend on the code."""
    mapped = [min(max(number, -KNOWN_CODES), KNOWN_CODES) for number in numbers_of_style]
    if "mapping.0.weight" in weights:
        for index in (0, 2):
            mapped = [max(number, 0.0) for number in linear(weights, f"mapping.{index}", mapped)]
    layers = np.zeros((form.depth, max(form.width, 3), form.width), np.float32)
    shifts = np.zeros((form.depth, form.width), np.float32)
    for index in range(form.depth):
        modulation = np.array(linear(weights, f"modulations.{index}.affine", mapped))
        scale, shift = 1 + modulation[: form.width], modulation[form.width :]
        kernel = weights[f"convolutions.{index}.weight"][:, :, 0, 0].astype(np.float64)
        layers[index, : kernel.shape[1]] = (scale[:, None] * kernel).T
        shifts[index] = scale * weights[f"convolutions.{index}.bias"] + shift
    bias = network.bias.astype(np.float64) + weights["last.bias"]
    last = np.ascontiguousarray(weights["last.weight"][:, :, 0, 0].T)
    return replace(network, bias=bias.astype(np.float32), layers=layers, shifts=shifts, last=last)


def linear(weights: Mapping[str, Floats], name: str, values: Numbers) -> Numbers:
    """Return the output of a layer, with each sum rounded once."""
    rows, bias = weights[f"{name}.weight"].tolist(), weights[f"{name}.bias"].tolist()
    return [math.fsum([*map(mul, row, values), add]) for row, add in zip(rows, bias, strict=True)]


def describe_ink(model: ModelWeights, code: Floats, direction: Direction) -> Ink | None:
    """Return the data that distinguishes pen from the mapped tissue, or None if there is none.

    There is none for a model without a reference stain, and for images with dark glass.

    The network itself provides the glass and stains of a style, by restaining those of the reference.
    """
    stains = model.arrays["reference.stains"]
    if not stains.any():
        return None
    probes = model.glass + np.concatenate([np.zeros((1, 3), np.float32), MIXED * stains])
    if direction == "normalize":
        probes = ColorMap(freeze(model, code, "restain"), remembers=False).map_densities(probes)
        probes = np.clip(probes, 0, np.float32(math.log(256)))
    return None if probes[0].max() > DARKEST_GLASS else Ink.of(probes[0], probes[1:])


def make_map(
    model: ModelWeights, code: Floats, direction: Direction, *, everything: bool = False, remembers: bool = True
) -> ColorMap:
    """Return the map of colors of a style in one direction. Every caller gets this map.

    Args:
        model: A model whose generators map each pixel by itself.
        code: (K,) code of the style.
        direction: From the style to the reference stain, or back.
        everything: Map pen marks, too. Otherwise they stay unchanged.
        remembers: Whether to look up colors that were seen before.
    """
    network = freeze(model, code, direction)
    ink = None if everything else describe_ink(model, code, direction)
    return ColorMap(replace(network, ink=ink), remembers=remembers)
