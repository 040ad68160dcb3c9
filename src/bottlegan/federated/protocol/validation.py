"""What a client sends is hostile until it has passed here: names, shapes, types, finite numbers, bounded size."""

import math
from collections.abc import Mapping
from statistics import median

import torch
from torch import Tensor

from bottlegan.metrics.tally import Layout
from bottlegan.metrics.tally import find_bad_tally as find_bad_counts

Weights = Mapping[str, Tensor]


def find_fault(
    arrays: Weights, shapes: Mapping[str, tuple[int, ...]], dtype: torch.dtype = torch.float32
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


def find_bad_tally(arrays: Weights, name: str, layout: Layout) -> str | None:
    """Return what is wrong with a reply whose only tensor, called `name`, should hold what a client has counted."""
    return find_fault(arrays, {name: (layout.size,)}, torch.float64) or find_bad_counts(arrays[name], layout)


def find_negative(arrays: Weights) -> str | None:
    """Return the first variance of batch norm that is below zero, which no batch has."""
    bad = [name for name, tensor in arrays.items() if name.endswith("running_var") and bool((tensor < 0).any())]
    return f"tensor {bad[0]} holds a variance below zero" if bad else None


def find_oversized(replies: Mapping[str, Weights], start: Weights, bound: float) -> dict[str, str]:
    """Return the clients whose update is longer than `bound` times the median of all, and by how much.

    Of fewer than three updates nobody can tell which one is odd; none is left out then.
    """
    lengths = {name: update_length(weights, start) for name, weights in replies.items()}
    if len(lengths) < 3:
        return {}
    usual = median(lengths.values())
    return {
        name: f"its update is {length / max(usual, 1e-12):.1f} times the median's length, at most {bound:g} is allowed"
        for name, length in lengths.items()
        if length > bound * usual
    }


def limit_shares(examples: Mapping[str, int], bound: float) -> dict[str, float]:
    """Return what each client weighs: its images, but no more than `bound` times the median of all clients'.

    A client counts its images itself; one that says it has a billion must not outweigh all others.
    """
    most = bound * median(examples.values())
    return {name: min(float(count), most) for name, count in examples.items()}


def update_length(weights: Weights, start: Weights) -> float:
    """Return the Euclidean norm of what a client has changed."""
    return float(torch.stack([(weights[name] - start[name]).double().square().sum() for name in start]).sum().sqrt())


def printable(text: str) -> str:
    """Return a client's text fit for a log: one line, no control characters, not endless."""
    return "".join(character if character.isprintable() else "?" for character in text)[:200]
