"""Requests and replies as bytes: safetensors with one JSON document in the metadata. No pickle, nothing to execute.

Whatever arrives is hostile until it has been parsed here, even from a lab whose identity is trusted.
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
from bottlegan.federated.protocol.validation import LONGEST_TEXT, check_names, printable

KEY = "bottlegan"
DTYPES = (torch.float32, torch.float64, torch.uint8, torch.int32, torch.int64, torch.bool)
LENGTH_BYTES, MOST_HEADER = 8, 2**23


@document
class RequestWords:
    """A request without its tensors."""

    run: str
    """The run of the federation, so that a new run does not reuse replies to an old one."""
    kind: Kind
    settings: dict[str, Scalar]


@document
class ReplyWords:
    """A reply without its tensors."""

    numbers: dict[str, float] = field(default_factory=dict)
    failure: str | None = None
    """Why there is no reply, without revealing anything about the lab's files."""


def pack_request(request: Request, run: str) -> bytes:
    """Return a request as bytes. The same request of the same run gives the same bytes."""
    return _pack(request.arrays, RequestWords(run=run, kind=request.kind, settings=request.settings))


def unpack_request(content: bytes) -> Request:
    """Parse a request from bytes, or raise `InputError`."""
    arrays, values = _unpack(content)
    words = parse(RequestWords, values, "request")
    check_names(words.settings)
    if any(isinstance(value, str) and len(value) > LONGEST_TEXT for value in words.settings.values()):
        raise InputError(f"a setting is longer than {LONGEST_TEXT:,} characters")
    return Request(words.kind, arrays, dict(words.settings))


def pack_reply(reply: Reply | Absence) -> bytes:
    """Return a reply or an absence as bytes."""
    if isinstance(reply, Absence):
        return _pack({}, ReplyWords(failure=reply.reason))
    if bad := [name for name, value in reply.numbers.items() if not math.isfinite(value)]:
        return pack_reply(Absence(f"number {bad[0]} is not finite"))
    return _pack(reply.arrays, ReplyWords(numbers={name: float(value) for name, value in reply.numbers.items()}))


def unpack_reply(content: bytes) -> Reply | Absence:
    """Parse a reply from bytes; anything else becomes an absence with the reason."""
    try:
        arrays, values = _unpack(content)
        words = parse(ReplyWords, values, "reply")
        check_names(words.numbers)
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
        # The library checks sizes, offsets and types before it makes a tensor, but does not return the metadata.
        arrays = load(content)
        header = json.loads(content[LENGTH_BYTES : LENGTH_BYTES + length])
        values = json.loads(header["__metadata__"][KEY])
    except (SafetensorError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(f"it is not a message ({type(error).__name__})") from None
    check_names(arrays)
    for name, tensor in arrays.items():
        if tensor.dtype not in DTYPES:
            raise InputError(f"array {name} is {tensor.dtype}, which messages never hold")
    return arrays, values
