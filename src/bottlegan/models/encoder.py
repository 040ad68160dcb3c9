"""The encoder of onboarding: from a set of pixels of one lab to the affine maps of its style, with expected errors.

It does not estimate the maps directly. For each pixel it estimates how much hematoxylin and eosin the reference stain
would have there, from the pixel's color, its surroundings and the distribution of all colors. From these amounts and
the densities, least squares gives one map for each direction. Errors of single pixels average out.

It looks several times. The first look starts with amounts from a closed form. Each further look starts with the result
of the one before, where labs look nearly alike and small errors are visible.

If glass is visible, both maps are anchored there: it comes out white, or nearly so, whatever the looks estimate.

All functions use only operations that NumPy and torch share. torch trains them (`style_encoder`); NumPy alone runs
them.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from array_api_compat import array_namespace, device
from numpy.typing import NDArray

from bottlegan.models.pixel_sets import VIEWS
from bottlegan.stain.affine import AffineMap, StyleMaps

Array = Any
"""A NumPy array or a torch tensor."""
EncoderWeights = Mapping[str, Array]
"""The encoder's weights by name."""

LEVELS = (0.01, 0.03, 0.1, 0.25, 0.5, 0.75, 0.9, 0.97, 0.99)
"""Quantiles that describe a set."""
DIRECTIONS = ((1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 1, 0), (1, -1, 0), (1, -0.3, 0), (-0.3, 1, 0))
"""Directions of these quantiles, in amounts of hematoxylin, eosin and the rest."""
OPINIONS = 4
"""Number of opinions: the expected error of either map, how much of glass is stain, and whether this is H&E."""
READINGS = 5
"""Number of readings per pixel: three amounts, its weight, and whether it belongs to a nucleus."""
FURTHER_LOOKS = 1
RIDGE = 1e-3
"""Least variance of amounts of stain for a map to follow them."""
LEAST_SCALE = 0.02
"""Smallest range of densities that is scaled to 1."""
TAIL, STRONG, LEAST_ANGLE = 0.02, 0.97, math.radians(4)
"""For the first guess: the share of stain beyond its two directions, the quantile of an amount that counts as strong,
and half the smallest angle between the directions."""
MOST_VEIL = 0.06
"""Largest density of glass after normalization, which is that of the reference set: some glass has a trace of stain."""

DESCRIBED = len(DIRECTIONS) * len(LEVELS)
FEATURES = {"finder": 3 * VIEWS + 9, "first": 6 * VIEWS + 1, "further": 3 * VIEWS + 1}
"""Number of features of a pixel for each part."""
SUMMARIES = {"first": DESCRIBED + 3 * len(LEVELS) + 21, "further": DESCRIBED + 3}
"""Number of features of the whole set for each part."""


class Look(NamedTuple):
    """The encoder's estimates after one look."""

    maps: StyleMaps
    log_errors: Array
    """(B, 2) logarithm of the expected root mean square error of normalizing and of restaining, in [0, 1]."""
    is_he: Array
    """(B,) logit of whether this is H&E."""
    amounts: Array
    """(B, P, 3) amounts of stain that were read in each pixel."""
    nuclear: Array
    """(B, P) logit of whether the pixel belongs to a nucleus."""


class Sight(NamedTuple):
    """The encoder's input: pixels of B labs, and their glass."""

    density: Array
    """(B, P, VIEWS, 3)."""
    roughness: Array
    """(B, P)."""
    is_tissue: Array
    """(B, P) bool: which pixels count."""
    glass: Array
    """(B, 3) density of the glass; 0 if none is visible."""
    sees_glass: Array
    """(B,) bool."""


class View(NamedTuple):
    """The input of one look."""

    start: AffineMap
    """Map from densities to the amounts below."""
    amounts: Array
    """(B, P, 3) amounts of stain, as estimated before this look."""
    pixels: Array
    """(B, P, features) features of each pixel and its surroundings."""
    summary: Array
    """(B, summary) features of the distribution of all pixels."""


def look(weights: EncoderWeights, sight: Sight, every: int = 1) -> list[Look]:
    """Return the encoder's estimates after each look; the last is the best.

    All pixels describe the lab. Amounts are read in every `every`-th of them.
    """
    looks = [conclude(weights, "first", sight, view_first(sight), every)]
    for _ in range(FURTHER_LOOKS):
        looks.append(conclude(weights, "further", sight, view_again(weights["basis"], sight, looks[-1]), every))
    return looks


def find_glass(weights: EncoderWeights, density: Array, roughness: Array) -> Array:
    """Return logits (B, P) of which pixels, (B, P, VIEWS, 3) and (B, P) of all that labs show, are bare glass.

    Glass differs from pale tissue in brightness, flatness and surroundings.
    """
    xp = array_namespace(density)
    own, everything = density[:, :, 0], xp.ones_like(roughness, dtype=xp.bool)
    low = quantiles(own, everything, (0.005,))[:, :, 0]
    above = xp.mean(own - low[:, None], axis=2, keepdims=True)
    contrast = xp.clip(quantiles(above, everything, (0.99,))[:, 0, 0], 0.05, None)
    relative = (density - low[:, None, None]) / contrast[:, None, None, None]
    told = xp.concat([low, contrast[:, None]], axis=1)[:, None]
    features = [
        _flatten_last(relative),
        (roughness / contrast[:, None])[..., None],
        4 * own,
        20 * roughness[..., None],
        xp.broadcast_to(told, (*own.shape[:2], 4)),
    ]
    hidden = relu(linear(weights, "finder.layers.0", xp.concat(features, axis=2)))
    hidden = relu(linear(weights, "finder.layers.2", hidden))
    return linear(weights, "finder.layers.4", hidden)[..., 0]


def view_first(sight: Sight) -> View:
    """Return the densities, and amounts from a closed form."""
    xp = array_namespace(sight.density)
    own, counts = sight.density[:, :, 0], sight.is_tissue
    seen = sight.sees_glass[:, None]
    range_ = quantiles(own, counts, (0.01, 0.95))
    low = xp.where(seen, sight.glass, range_[:, :, 0])
    scale = xp.clip(range_[:, :, 1] - low, LEAST_SCALE, None)
    frame, spread = (as_like(each, own) for each in find_frame(to_numpy(own - low[:, None]), to_numpy(counts)))
    inverse = xp.linalg.inv(frame)
    start = AffineMap(inverse, -(low[:, None] @ inverse)[:, 0])
    amounts = _map_views(start, sight.density)
    scaled = (sight.density - low[:, None, None]) / scale[:, None, None]
    lengths = xp.sqrt(xp.sum(frame * frame, axis=2))
    summary = [
        describe(amounts, counts),
        _flatten(quantiles(scaled[:, :, 0], counts, LEVELS)),
        _flatten(frame / lengths[:, :, None]),
        xp.log(lengths[:, :2]),
        spread,
        low,
        xp.log(scale),
        xp.astype(seen, scale.dtype),
    ]
    pixels = [amounts, _flatten_last(scaled), (sight.roughness / xp.mean(scale, axis=1, keepdims=True))[..., None]]
    return View(start, amounts[..., :3], xp.concat(pixels, axis=2), xp.concat(summary, axis=1))


def view_again(basis: Array, sight: Sight, before: Look) -> View:
    """Return the amounts that the previous look's maps give for the densities."""
    xp = array_namespace(sight.density)
    # Each look learns from its own input, not through the look before.
    latest = AffineMap(*(as_like(to_numpy(part), basis) for part in before.maps.normalize))
    start = latest.then(AffineMap(xp.linalg.inv(basis)[None], xp.zeros_like(basis[:1])))
    amounts = _map_views(start, sight.density)
    gain = xp.sqrt(xp.mean(latest.matrix**2, axis=(1, 2)))[:, None]
    summary = [
        describe(amounts, sight.is_tissue),
        xp.astype(sight.sees_glass[:, None], amounts.dtype),
        xp.log(gain),
        xp.mean(sight.glass, axis=1, keepdims=True),
    ]
    pixels = xp.concat([amounts, (sight.roughness * gain)[..., None]], axis=2)
    return View(start, amounts[..., :3], pixels, xp.concat(summary, axis=1))


def conclude(weights: EncoderWeights, part: str, sight: Sight, view: View, every: int) -> Look:
    """Read amounts in every `every`-th pixel, and return the best maps between the guesses and these."""
    xp, basis = array_namespace(view.pixels), weights["basis"]
    guesses = view.amounts[:, ::every]
    amounts, weight, nuclear, opinions = read_amounts(
        weights, part, View(view.start, guesses, view.pixels[:, ::every], view.summary), sight.is_tissue[:, ::every]
    )
    to_density = AffineMap(basis[None], xp.zeros_like(basis[:1]))
    there, back = regress(guesses, amounts, weight), regress(amounts, guesses, weight)
    normalize = view.start.then(there).then(to_density)
    restain = to_density.inverse().then(back).then(view.start.inverse())
    maps = anchor(StyleMaps(normalize, restain), sigmoid(opinions[:, 2]), sight)
    return Look(maps, opinions[:, :2] - 3.5, opinions[:, 3], amounts, nuclear)


def read_amounts(weights: EncoderWeights, part: str, view: View, counts: Array) -> tuple[Array, Array, Array, Array]:
    """Return the readings of each pixel, and opinions (B, OPINIONS) on the whole.

    The readings are amounts (B, P, 3), weights (B, P), and logits (B, P) of belonging to a nucleus.

    A reading depends on the features of the pixel and on those of the whole set, which do not depend on the order or
    number of pixels.

    Args:
        weights: The encoder's weights.
        part: The part to use: that of the `first` look, or of a `further` one.
        view: The input of the look.
        counts: (B, P) bool: which pixels count.
    """
    xp = array_namespace(view.pixels)
    features = relu(linear(weights, f"{part}.pixel.2", relu(linear(weights, f"{part}.pixel.0", view.pixels))))
    counted = xp.astype(counts, features.dtype)
    share = (counted / xp.clip(xp.sum(counted, axis=1, keepdims=True), 1, None))[:, None]
    mean, square = (share @ features)[:, 0], (share @ (features * features))[:, 0]
    whole = xp.concat([mean, xp.sqrt(square + 1e-6), view.summary], axis=1)
    whole = relu(linear(weights, f"{part}.whole.2", relu(linear(weights, f"{part}.whole.0", whole))))
    mixed = relu(linear(weights, f"{part}.mixed", features) + linear(weights, f"{part}.context", whole)[:, None])
    read = linear(weights, f"{part}.amounts", relu(linear(weights, f"{part}.hidden", mixed)))
    change = linear(weights, f"{part}.change", whole)
    moved = view.amounts + view.amounts @ xp.reshape(change[:, :9], (-1, 3, 3)) + change[:, None, 9:]
    opinions = linear(weights, f"{part}.opinion", whole)
    return moved + read[..., :3], counted * sigmoid(read[..., 3]), read[..., 4], opinions


def describe(amounts: Array, counts: Array) -> Array:
    """Return quantiles (B, ...) of the amounts (B, P, ...) of pixels that count, along DIRECTIONS."""
    xp = array_namespace(amounts)
    directions = xp.asarray(DIRECTIONS, dtype=amounts.dtype, device=device(amounts))
    return _flatten(quantiles(amounts[..., :3] @ directions.T, counts, LEVELS))


def regress(sources: Array, wanted: Array, weight: Array) -> AffineMap:
    """Return the affine maps from amounts (B, P, 3) to others, by least squares with weights (B, P).

    Directions in which the pixels hardly vary stay unchanged.
    """
    xp = array_namespace(sources)
    # In double precision: with hardly any tissue, amounts reach the hundreds, and their squares differ widely.
    rows = xp.astype(xp.concat([sources, xp.ones_like(sources[..., :1])], axis=2), xp.float64)
    total = xp.clip(xp.sum(weight, axis=1, keepdims=True), 1e-6, None)
    share = xp.astype((weight / total)[..., None], xp.float64)
    ridge = np.diag([RIDGE, RIDGE, RIDGE, RIDGE / 10])
    moment = rows.mT @ (share * rows) + as_like(ridge, rows)
    follows = rows.mT @ (share * xp.astype(wanted, xp.float64)) + as_like(ridge[:, :3], rows)
    solved = xp.astype(xp.linalg.solve(moment, follows), sources.dtype)
    return AffineMap(solved[:, :3], solved[:, 3])


def find_frame(above: NDArray[np.float32], counts: NDArray[np.bool_]) -> tuple[NDArray[np.float32], ...]:
    """Return a first guess of the stains: that of Macenko's method, but never degenerate.

    Args:
        above: (B, P, 3) densities above those of glass.
        counts: (B, P) which of the pixels count.

    Returns:
        (B, 3, 3) densities of two strong stains, the redder one second, and of a direction that is neither; and (B, 3)
        spreads of the densities along their principal axes, the smallest first.
    """
    weight = counts.astype(np.float32)
    number = np.maximum(weight.sum(1), 1)[:, None, None]
    moment = (above * weight[..., None]).mT @ above / number
    variance, axes = np.linalg.eigh(moment + 1e-6 * np.eye(3, dtype=np.float32))
    # Densities are positive, so the first axis can point along them. The sign of the second does not matter.
    first = axes[..., 2] * np.where(axes[..., 2].sum(1, keepdims=True) < 0, np.float32(-1), np.float32(1))
    plane = np.stack([first, axes[..., 1]], axis=1)
    along, across = np.moveaxis(above @ plane.mT, 2, 0)
    # The angle of a pale pixel is mostly noise, so each pixel is weighted by its amount of stain.
    tails = weighted_quantile(np.arctan2(across, along), weight * np.maximum(along, 0), (TAIL, 1 - TAIL))
    middle, half = tails.mean(1), np.maximum((tails[:, 1] - tails[:, 0]) / 2, np.float32(LEAST_ANGLE))
    tails = np.stack([middle - half, middle + half], axis=1)
    stains = np.stack([np.cos(tails), np.sin(tails)], axis=2) @ plane
    redness = stains[..., 0] / np.maximum(np.abs(stains).sum(2), 1e-6)
    stains = np.where((redness[:, 0] < redness[:, 1])[:, None, None], stains[:, ::-1], stains)
    amounts = above @ np.linalg.pinv(stains)
    strong = [weighted_quantile(amounts[..., index], weight, (STRONG,)) for index in (0, 1)]
    strength = np.maximum(np.concatenate(strong, axis=1), np.float32(LEAST_SCALE))
    normal = np.cross(stains[:, :1], stains[:, 1:])
    length = np.maximum(np.linalg.norm(normal, axis=2, keepdims=True), 1e-9)
    normal = 0.25 * normal / length * strength.mean(1)[:, None, None]
    frame = np.concatenate([stains * strength[..., None], normal], axis=1)
    return frame.astype(np.float32), (np.log(np.maximum(variance, 1e-9)) / 2).astype(np.float32)


def weighted_quantile(
    values: NDArray[np.float32], weights: NDArray[np.float32], levels: tuple[float, ...]
) -> NDArray[np.float32]:
    """Return the quantiles (B, Q) of `values` (B, P) with `weights` (B, P) >= 0; 0 where all weights are 0."""
    order = np.argsort(np.where(weights > 0, values, np.inf), axis=1)
    below = np.cumsum(np.take_along_axis(weights, order, axis=1), axis=1, dtype=np.float64)
    wanted = below[:, -1:] * np.array(levels)
    places = [np.searchsorted(row, target) for row, target in zip(below, wanted, strict=True)]
    index = np.minimum(np.stack(places), values.shape[1] - 1)
    chosen = np.take_along_axis(values, np.take_along_axis(order, index, axis=1), axis=1)
    return np.where(below[:, -1:] > 0, chosen, np.float32(0))


def anchor(maps: StyleMaps, veil: Array, sight: Sight) -> StyleMaps:
    """Return maps that make visible glass white except for a share `veil` (B,) of its density, and back."""
    xp = array_namespace(veil)
    white = (veil * xp.clip(xp.mean(sight.glass, axis=1), 0, MOST_VEIL))[:, None] * xp.ones_like(sight.glass)
    seen = sight.sees_glass[:, None]

    def move(each: AffineMap, given: Array, wanted: Array) -> AffineMap:
        return AffineMap(each.matrix, xp.where(seen, wanted - (given[:, None] @ each.matrix)[:, 0], each.bias))

    return StyleMaps(move(maps.normalize, sight.glass, white), move(maps.restain, white, sight.glass))


def quantiles(values: Array, counts: Array, levels: tuple[float, ...]) -> Array:
    """Return the quantiles (B, C, Q) of values (B, P, C) over pixels with `counts` (B, P), without gradients.

    NumPy sorts several times faster than torch, and this is most of the work of a training step.
    """
    pixels, chosen = to_numpy(values), to_numpy(counts)
    number = chosen.sum(1)
    ordered = np.sort(np.where(chosen[..., None], pixels, np.float32(np.inf)).mT, axis=2)
    ordered[number == 0] = 0
    last = np.maximum(number - 1, 0)[:, None]
    place = last * np.array(levels)
    low = np.floor(place).astype(np.int64)
    shape = (*ordered.shape[:2], len(levels))
    below, above = (
        np.take_along_axis(ordered, np.broadcast_to(each[:, None], shape), axis=2)
        for each in (low, np.minimum(low + 1, last))
    )
    interpolated = below + (above - below) * (place - low)[:, None].astype(np.float32)
    return as_like(interpolated, values)


def linear(weights: EncoderWeights, name: str, values: Array) -> Array:
    """Return the output (..., O) of the layer `name` for values (..., I)."""
    return values @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


def relu(values: Array) -> Array:
    """Return positive values, and 0 for the others."""
    return array_namespace(values).clip(values, 0, None)


def sigmoid(values: Array) -> Array:
    """Return 1 / (1 + exp(-x)), without overflow in it or in its gradient."""
    return 0.5 * (1 + array_namespace(values).tanh(0.5 * values))


def as_like(values: Array, like: Array) -> Array:
    """Return values as an array of the kind, precision and device of `like`."""
    return array_namespace(like).asarray(values, dtype=like.dtype, device=device(like))


def to_numpy(values: Array) -> Any:
    """Return values as a NumPy array, without gradients."""
    return values if isinstance(values, np.ndarray) else values.detach().cpu().numpy()


def _map_views(mapped: AffineMap, density: Array) -> Array:
    """Return the mapped densities (B, P, VIEWS, 3) as (B, P, 3 * VIEWS)."""
    xp, (labs, pixels) = array_namespace(density), density.shape[:2]
    return xp.reshape(mapped(xp.reshape(density, (labs, -1, 3))), (labs, pixels, 3 * VIEWS))


def _flatten(values: Array) -> Array:
    return array_namespace(values).reshape(values, (values.shape[0], -1))


def _flatten_last(values: Array) -> Array:
    return array_namespace(values).reshape(values, (*values.shape[:2], -1))
