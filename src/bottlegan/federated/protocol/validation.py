"""Validation of everything a client sends: names, shapes, types, finite numbers, possible counts."""

import math
from collections.abc import Mapping, Sequence
from statistics import median_low

import torch
from torch import Tensor

from bottlegan.core.errors import InputError
from bottlegan.metrics.tally import MOST, Layout, find_changed_tally
from bottlegan.metrics.tally import find_bad_tally as find_bad_counts

MOST_NAMES, LONGEST_NAME, LONGEST_TEXT = 10_000, 300, 1_000_000
"""Limits of a message: names in a part of it, and characters of a name and of a text."""
Tensors = Mapping[str, Tensor]
Trained = dict[str, Tensor]


def find_fault(
    arrays: Tensors, shapes: Mapping[str, tuple[int, ...]], dtype: torch.dtype = torch.float32
) -> str | None:
    """Return what is wrong with tensors that should be finite, of one type, with exactly these names and shapes."""
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
    """Return what is wrong with numbers that should be finite and not negative, with exactly these names."""
    if numbers.keys() != wanted:
        odd = sorted(numbers.keys() ^ wanted)
        return f"number {printable(odd[0])} is {'missing' if odd[0] in wanted else 'unexpected'}"
    bad = [name for name, value in numbers.items() if not (math.isfinite(value) and value >= 0)]
    return f"number {bad[0]} is {numbers[bad[0]]}" if bad else None


def find_bad_count(numbers: Mapping[str, float], wanted: frozenset[str]) -> str | None:
    """Return what is wrong with numbers that should be counts, with exactly these names."""
    bad = [name for name, value in numbers.items() if not (float(value).is_integer() and value <= MOST)]
    return find_bad_number(numbers, wanted) or (f"number {bad[0]} is {numbers[bad[0]]}, no count" if bad else None)


def find_bad_tally(arrays: Tensors, name: str, layout: Layout, announced: Sequence[int]) -> str | None:
    """Return what is wrong with a reply whose only tensor, called `name`, should hold a client's counts.

    They must add up to the numbers of pixels or patches per class that the client announced when it joined.
    """
    fault = find_fault(arrays, {name: (layout.size,)}, torch.float64) or find_bad_counts(arrays[name], layout)
    return fault or find_changed_tally(arrays[name], layout, announced)


def find_negative(arrays: Tensors) -> str | None:
    """Return the first variance of batch norm that is negative, which no batch can have."""
    bad = [name for name, tensor in arrays.items() if name.endswith("running_var") and bool((tensor < 0).any())]
    return f"tensor {bad[0]} holds a variance below zero" if bad else None


def clip_updates(replies: Mapping[str, Trained], start: Tensors, bound: float) -> dict[str, Trained]:
    """Clip the clients' updates to `bound` times the median length of those that are not zero.

    A lab without labels changes nothing until it is confident of some pixels. If half of the labs were like that, the
    median of all lengths would be zero, and so would every update. Of two lengths the shorter is the median, because
    nobody can tell which of the two is odd.
    """
    lengths = {name: update_length(weights, start) for name, weights in replies.items()}
    most = bound * median_low([length for length in lengths.values() if length > 0] or [0.0])
    return {
        name: weights if lengths[name] <= most else shorten(weights, start, most / lengths[name])
        for name, weights in replies.items()
    }


def shorten(weights: Tensors, start: Tensors, share: float) -> Trained:
    """Return the weights after only a share of the change."""
    return {name: (begun + share * (weights[name].double() - begun)).to(begun.dtype) for name, begun in start.items()}


def limit_shares(counts: Mapping[str, float], bound: float) -> dict[str, float]:
    """Return each client's weight: its count, but at most `bound` times the median of all clients.

    A client counts its images itself; one that claims a billion must not outweigh all others.
    """
    most = bound * median_low(counts.values())
    return {name: min(float(count), most) for name, count in counts.items()}


def update_length(weights: Tensors, start: Tensors) -> float:
    """Return the Euclidean norm of a client's change of the weights."""
    return float(
        torch.stack([(weights[name].double() - start[name].double()).square().sum() for name in start]).sum().sqrt()
    )


def check_names(part: Mapping[str, object]) -> None:
    """Refuse endless or unprintable names in a part of a message."""
    if len(part) > MOST_NAMES:
        raise InputError(f"it holds {len(part)} names, at most {MOST_NAMES} are allowed")
    for name in part:
        if not (0 < len(name) <= LONGEST_NAME and name.isprintable()):
            raise InputError(f"a name is empty, not printable or longer than {LONGEST_NAME}: {name[:40]!r}")


def printable(text: str) -> str:
    """Make a client's text safe for a log: one line, no control characters, at most 200 characters."""
    return "".join(character if character.isprintable() else "?" for character in text)[:200]
