"""What a client sends is hostile until it has passed here: names, shapes, types, finite numbers, possible counts."""

import math
from collections.abc import Mapping, Sequence
from statistics import median_low

import torch
from torch import Tensor

from bottlegan.metrics.tally import MOST, Layout, find_changed_tally
from bottlegan.metrics.tally import find_bad_tally as find_bad_counts

Tensors = Mapping[str, Tensor]
Trained = dict[str, Tensor]


def find_fault(
    arrays: Tensors, shapes: Mapping[str, tuple[int, ...]], dtype: torch.dtype = torch.float32
) -> str | None:
    """Return what is wrong with tensors that should be finite, of one type, and of exactly these names and shapes."""
    if missing := sorted(shapes.keys() - arrays.keys()):
        return f"tensor {missing[0]} is missing"
    if extra := sorted(arrays.keys() - shapes.keys()):
        return f"unexpected tensor {printable(extra[0])}"
    for name, tensor in arrays.items():
        if tensor.dtype != dtype:
            return f"tensor {name} is {tensor.dtype}, not {dtype}"
        if tuple(tensor.shape) != shapes[name]:
            return f"tensor {name} has shape {tuple(tensor.shape)}, not {shapes[name]}"
        if not bool(tensor.isfinite().all()):
            return f"tensor {name} holds NaN or infinity"
    return None


def find_bad_number(numbers: Mapping[str, float], wanted: frozenset[str]) -> str | None:
    """Return what is wrong with numbers that should be finite, not negative, and of exactly these names."""
    if numbers.keys() != wanted:
        odd = sorted(numbers.keys() ^ wanted)
        return f"number {printable(odd[0])} is {'missing' if odd[0] in wanted else 'unexpected'}"
    bad = [name for name, value in numbers.items() if not (math.isfinite(value) and value >= 0)]
    return f"number {bad[0]} is {numbers[bad[0]]}" if bad else None


def find_bad_count(numbers: Mapping[str, float], wanted: frozenset[str]) -> str | None:
    """Return what is wrong with numbers that should be counts, and of exactly these names."""
    bad = [name for name, value in numbers.items() if not (float(value).is_integer() and value <= MOST)]
    return find_bad_number(numbers, wanted) or (f"number {bad[0]} is {numbers[bad[0]]}, no count" if bad else None)


def find_bad_tally(arrays: Tensors, name: str, layout: Layout, announced: Sequence[int]) -> str | None:
    """Return what is wrong with a reply whose only tensor, called `name`, should hold what a client has counted.

    It must be of the images that the client has announced, with so many pixels or patches of each class.
    """
    fault = find_fault(arrays, {name: (layout.size,)}, torch.float64) or find_bad_counts(arrays[name], layout)
    return fault or find_changed_tally(arrays[name], layout, announced)


def find_negative(arrays: Tensors) -> str | None:
    """Return the first variance of batch norm that is below zero, which no batch has."""
    bad = [name for name, tensor in arrays.items() if name.endswith("running_var") and bool((tensor < 0).any())]
    return f"tensor {bad[0]} holds a variance below zero" if bad else None


def clip_updates(replies: Mapping[str, Trained], start: Tensors, bound: float) -> dict[str, Trained]:
    """Return what clients have trained, with updates no longer than `bound` times the median of those that are any.

    A lab without labels changes nothing as long as it is sure of nothing: were half of the labs like that, a median of
    all would be zero, and so would everybody's update. Of two, the shorter one is the median: of so few nobody can tell
    which one is odd.
    """
    lengths = {name: update_length(weights, start) for name, weights in replies.items()}
    most = bound * median_low([length for length in lengths.values() if length > 0] or [0.0])
    return {
        name: weights if lengths[name] <= most else shorten(weights, start, most / lengths[name])
        for name, weights in replies.items()
    }


def shorten(weights: Tensors, start: Tensors, share: float) -> Trained:
    """Return weights that went only a share of the way."""
    return {name: (begun + share * (weights[name].double() - begun)).to(begun.dtype) for name, begun in start.items()}


def limit_shares(counts: Mapping[str, float], bound: float) -> dict[str, float]:
    """Return what each client weighs: what it has counted, but no more than `bound` times the median of all clients'.

    A client counts its images itself; one that says it has a billion must not outweigh all others.
    """
    most = bound * median_low(counts.values())
    return {name: min(float(count), most) for name, count in counts.items()}


def update_length(weights: Tensors, start: Tensors) -> float:
    """Return the Euclidean norm of what a client has changed."""
    return float(
        torch.stack([(weights[name].double() - start[name].double()).square().sum() for name in start]).sum().sqrt()
    )


def printable(text: str) -> str:
    """Return a client's text fit for a log: one line, no control characters, not endless."""
    return "".join(character if character.isprintable() else "?" for character in text)[:200]
