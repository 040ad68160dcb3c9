"""Converts requests and replies to Flower's records and back; the only file that knows the records' names.

| record | type | in |
| --- | --- | --- |
| `arrays` | ArrayRecord: tensors by name | every request and reply |
| `settings` | ConfigRecord: texts, numbers and switches by name | every request |
| `numbers` | MetricRecord: numbers by name | every reply |
| `stamp` | ConfigRecord: `client`, and `request`, the digest of what it answers | every reply |
| `failure` | ConfigRecord with one text, `reason` | a reply of a client that could not do what it was asked to |

Whatever arrives is hostile until it has been parsed here. Other records, other types, endless names and arrays that are
not plain numbers become an `InputError` (a request) or an `Absence` (a reply). Nothing is ever unpickled.
"""

import math
from collections.abc import Mapping
from io import BytesIO
from typing import TypeVar, get_args

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from numpy.lib import format as npy
from torch import Tensor

from bottlegan.core.errors import InputError
from bottlegan.federated.protocol.exchange import Absence, Kind, Reply, Request, Scalar, Stamp
from bottlegan.federated.protocol.validation import LONGEST_TEXT, check_names, printable

KINDS: tuple[Kind, ...] = get_args(Kind)
ARRAYS, SETTINGS, NUMBERS, FAILURE, STAMP = "arrays", "settings", "numbers", "failure", "stamp"
"""Names of records."""
REASON, CLIENT, REQUEST, PARTITION = "reason", "client", "request", "partition-id"
"""Names of entries in records."""
PARTITION_TYPE = "query.partition"
NUMPY = "numpy.ndarray"
DTYPES = tuple(np.dtype(name) for name in ("<f4", "<f8", "|u1", "<i4", "<i8", "|b1"))
MOST_DIMENSIONS = 8

Record = TypeVar("Record")


def message_type(kind: Kind) -> str:
    """Return the message type of a request: Flower needs one of its categories before the dot."""
    return f"train.{kind}"


def pack_request(request: Request) -> RecordDict:
    """Return a request as records."""
    return RecordDict({ARRAYS: _pack_arrays(request.arrays), SETTINGS: ConfigRecord(dict(request.settings))})


def unpack_request(kind: Kind, records: RecordDict) -> Request:
    """Parse the request in records, or raise `InputError` if they hold anything else."""
    _check_keys(records, {ARRAYS, SETTINGS})
    settings = _get(records, SETTINGS, ConfigRecord)
    check_names(settings)
    for name, value in settings.items():
        if not isinstance(value, Scalar) or (isinstance(value, str) and len(value) > LONGEST_TEXT):
            raise InputError(f"setting {name} is a {type(value).__name__} or too long, not a text, number or switch")
    return Request(kind, _unpack_arrays(_get(records, ARRAYS, ArrayRecord)), dict(settings))  # type: ignore[arg-type]


def pack_reply(reply: Reply, stamp: Stamp) -> RecordDict:
    """Return a reply as records."""
    numbers = MetricRecord({name: float(value) for name, value in reply.numbers.items()})
    stamped = ConfigRecord({CLIENT: stamp.client, REQUEST: stamp.request})
    return RecordDict({ARRAYS: _pack_arrays(reply.arrays), NUMBERS: numbers, STAMP: stamped})


def pack_failure(reason: str) -> RecordDict:
    """Return a client's failure as records; `reason` must reveal nothing about its files."""
    return RecordDict({FAILURE: ConfigRecord({REASON: reason})})


def unpack_reply(records: RecordDict, stamp: Stamp) -> Reply | Absence:
    """Parse the reply in records, which must have this stamp; anything else becomes an absence with the reason."""
    try:
        if FAILURE in records:
            return Absence(printable(str(_get(records, FAILURE, ConfigRecord).get(REASON, "no reason given"))))
        return _unpack_reply(records, stamp)
    # A client can put anything into a record, so any error costs that client's reply and nothing else.
    except Exception as error:
        return Absence(f"its reply cannot be used: {printable(str(error))}")


def pack_partition(partition: int) -> RecordDict:
    """Return a node's partition in a simulation as records."""
    return RecordDict({NUMBERS: MetricRecord({PARTITION: partition})})


def unpack_partition(records: RecordDict) -> int | None:
    """Parse a node's partition in a simulation; None if it does not say."""
    record = records.get(NUMBERS)
    number = record.get(PARTITION) if isinstance(record, MetricRecord) else None
    return number if isinstance(number, int) and number >= 0 else None


def _unpack_reply(records: RecordDict, stamp: Stamp) -> Reply:
    _check_keys(records, {ARRAYS, NUMBERS, STAMP})
    record = _get(records, STAMP, ConfigRecord)
    if record.get(CLIENT) != stamp.client:
        raise InputError(f"it is from {str(record.get(CLIENT))[:80]}, not from {stamp.client}")
    if record.get(REQUEST) != stamp.request:
        raise InputError("it answers another request, such as one of an earlier round")
    numbers = _get(records, NUMBERS, MetricRecord)
    check_names(numbers)
    for name, value in numbers.items():
        if not isinstance(value, int | float):
            raise InputError(f"number {name} is a {type(value).__name__}")
    arrays = _unpack_arrays(_get(records, ARRAYS, ArrayRecord))
    return Reply(arrays, {name: float(value) for name, value in numbers.items()})  # type: ignore[arg-type]


def _check_keys(records: RecordDict, wanted: set[str]) -> None:
    if odd := sorted(set(records) ^ wanted):
        raise InputError(f"record {printable(odd[0])} is {'missing' if odd[0] in wanted else 'unexpected'}")


def _get(records: RecordDict, name: str, cls: type[Record]) -> Record:
    record = records[name]
    if not isinstance(record, cls):
        raise InputError(f"record {name} is a {type(record).__name__}, not a {cls.__name__}")
    return record


def _pack_arrays(arrays: Mapping[str, Tensor]) -> ArrayRecord:
    # contiguous(), because Flower would write a transposed array in Fortran order, and reading accepts only C order.
    return ArrayRecord({name: Array(tensor.detach().cpu().contiguous().numpy()) for name, tensor in arrays.items()})


def _unpack_arrays(record: ArrayRecord) -> dict[str, Tensor]:
    check_names(record)
    return {name: _unpack_array(name, array) for name, array in record.items()}


def _unpack_array(name: str, array: Array) -> Tensor:
    """Parse an array as a tensor, without trusting its header.

    numpy.load would allocate whatever size a header claims before noticing that the data are shorter.
    """
    if array.stype != NUMPY:
        raise InputError(f"array {name} is not a {NUMPY}")
    buffer = BytesIO(array.data)
    try:
        if npy.read_magic(buffer) != (1, 0):
            raise ValueError("another version of the format")
        shape, fortran, dtype = npy.read_array_header_1_0(buffer)
    except ValueError as error:
        raise InputError(f"array {name} is not in NumPy's format ({printable(str(error))})") from None
    if dtype not in DTYPES or fortran or len(shape) > MOST_DIMENSIONS or min(shape, default=0) < 0:
        raise InputError(f"array {name} is not a plain array of numbers: {dtype} {shape}")
    if len(array.data) - buffer.tell() != dtype.itemsize * math.prod(shape):
        raise InputError(f"array {name} has another number of bytes than its shape {shape} says")
    values = np.frombuffer(array.data, dtype, offset=buffer.tell()).reshape(shape)
    return torch.from_numpy(values.copy())
