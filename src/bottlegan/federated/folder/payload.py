"""Requests and replies as bytes: safetensors, with one JSON document in its metadata. No pickle, nothing to execute.

What arrives is hostile until it has been taken apart here, even from a lab that is trusted to be who it says.
"""

import json
import math
from dataclasses import field
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from bottlegan.core.config import document, parse, to_values
from bottlegan.core.errors import InputError
from bottlegan.federated.protocol.exchange import Absence, Kind, Reply, Request, Scalar
from bottlegan.federated.protocol.validation import printable

KEY = "bottlegan"
DTYPES = (torch.float32, torch.float64, torch.uint8, torch.int32, torch.int64, torch.bool)
MOST_NAMES, LONGEST_NAME, LONGEST_TEXT = 10_000, 300, 1_000_000
LENGTH_BYTES, MOST_HEADER = 8, 2**23


@document
class RequestWords:
    """All of a request but its tensors."""

    run: str
    """Which run of the federation it belongs to: a new one asks anew, even for the same."""
    kind: Kind
    settings: dict[str, Scalar]


@document
class ReplyWords:
    """All of a reply but its tensors."""

    numbers: dict[str, float] = field(default_factory=dict)
    failure: str | None = None
    """Why there is no reply, in words that tell nothing of the lab's files."""


def pack_request(request: Request, run: str) -> bytes:
    """Return a request as bytes: the same request of the same run gives the same bytes."""
    return _pack(request.arrays, RequestWords(run=run, kind=request.kind, settings=request.settings))


def unpack_request(content: bytes) -> Request:
    """Return the request in these bytes, or raise `InputError`."""
    arrays, values = _unpack(content)
    words = parse(RequestWords, values, "request")
    _check_names(words.settings)
    if any(isinstance(value, str) and len(value) > LONGEST_TEXT for value in words.settings.values()):
        raise InputError("a setting is endless")
    return Request(words.kind, arrays, dict(words.settings))


def pack_reply(reply: Reply | Absence) -> bytes:
    """Return a reply, or why there is none, as bytes."""
    if isinstance(reply, Absence):
        return _pack({}, ReplyWords(failure=reply.reason))
    if bad := [name for name, value in reply.numbers.items() if not math.isfinite(value)]:
        return pack_reply(Absence(f"number {bad[0]} is not finite"))
    return _pack(reply.arrays, ReplyWords(numbers={name: float(value) for name, value in reply.numbers.items()}))


def unpack_reply(content: bytes) -> Reply | Absence:
    """Return the reply in these bytes; what is not one becomes an absence that says why."""
    try:
        arrays, values = _unpack(content)
        words = parse(ReplyWords, values, "reply")
        _check_names(words.numbers)
    except InputError as error:
        return Absence(f"its reply cannot be used: {printable(str(error))}")
    if words.failure is not None:
        return Absence(printable(words.failure))
    return Reply(arrays, dict(words.numbers))


def _pack(arrays: dict[str, Tensor], words: object) -> bytes:
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in sorted(arrays.items())}
    return save(tensors, {KEY: json.dumps(to_values(words), sort_keys=True, allow_nan=False)})


def _unpack(content: bytes) -> tuple[dict[str, Tensor], Any]:
    length = int.from_bytes(content[:LENGTH_BYTES], "little")
    if length > MOST_HEADER:
        raise InputError(f"its header claims {length:,} bytes, at most {MOST_HEADER:,} are read")
    try:
        # The library checks sizes, offsets and types before it makes a tensor, but does not hand out the metadata.
        arrays = load(content)
        header = json.loads(content[LENGTH_BYTES : LENGTH_BYTES + length])
        values = json.loads(header["__metadata__"][KEY])
    except (SafetensorError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(f"it is no message ({type(error).__name__})") from None
    _check_names(arrays)
    for name, tensor in arrays.items():
        if tensor.dtype not in DTYPES:
            raise InputError(f"array {name} is {tensor.dtype}, which no message holds")
    return arrays, values


def _check_names(values: dict[str, Any]) -> None:
    if len(values) > MOST_NAMES:
        raise InputError(f"it holds {len(values)} names, at most {MOST_NAMES} are allowed")
    for name in values:
        if not (0 < len(name) <= LONGEST_NAME and name.isprintable()):
            raise InputError(f"a name is empty, not printable or longer than {LONGEST_NAME}: {name[:40]!r}")
