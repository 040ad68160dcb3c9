"""Requests and replies as records: nothing is lost, and nothing hostile gets through."""

import pickle
from dataclasses import replace
from io import BytesIO

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st

from bottlegan.core.errors import InputError
from bottlegan.federated.flower.messages import (
    pack_failure,
    pack_partition,
    pack_reply,
    pack_request,
    unpack_partition,
    unpack_reply,
    unpack_request,
)
from bottlegan.federated.protocol.exchange import Absence, Reply, Request, Stamp, digest_request
from bottlegan.federated.protocol.validation import LONGEST_NAME, MOST_NAMES

STAMP = Stamp("lab-1", "0" * 64)
STAMPED = ConfigRecord({"client": STAMP.client, "request": STAMP.request})

TENSORS = {
    "float32": torch.tensor([[1.5, -0.0, float("inf"), 1e-40]]),
    "float64": torch.tensor([0.1, float("nan")], dtype=torch.float64),
    "uint8": torch.arange(256, dtype=torch.uint8).reshape(16, 16),
    "transposed": torch.arange(6.0).reshape(2, 3).T,
    "scalar": torch.tensor(3.25),
    "empty": torch.zeros(0, 4),
    "column": torch.arange(3.0)[:, None],
}


def through_the_wire(records: RecordDict) -> RecordDict:
    """Return records as the other side gets them: serialized and parsed again, as by a SuperLink."""
    inflated = {}
    for name, record in records.items():
        if isinstance(record, ArrayRecord):
            arrays = {key: Array(a.dtype, a.shape, a.stype, bytes(a.data)) for key, a in record.items()}
            inflated[name] = ArrayRecord(arrays)
        else:
            inflated[name] = type(record).inflate(record.deflate())
    return RecordDict(inflated)


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors have the same type, shape and bytes, including NaN."""
    equal = one.contiguous().numpy().tobytes() == other.contiguous().numpy().tobytes()
    return one.dtype == other.dtype and one.shape == other.shape and equal


def test_a_request_arrives_as_it_was_sent() -> None:
    request = Request("train", TENSORS, {"round": 3, "rate": 0.1, "name": "lab ä", "on": True, "none": ""})
    found = unpack_request("train", through_the_wire(pack_request(request)))
    assert found.kind == "train"
    assert found.settings == request.settings
    assert list(map(type, found.settings.values())) == list(map(type, request.settings.values()))
    assert list(found.arrays) == list(TENSORS)
    assert all(same(found.arrays[name], tensor) for name, tensor in TENSORS.items())


def test_a_reply_arrives_as_it_was_sent() -> None:
    found = unpack_reply(through_the_wire(pack_reply(Reply(TENSORS, {"labeled": 3, "loss": 0.1}), STAMP)), STAMP)
    assert isinstance(found, Reply)
    assert found.numbers == {"labeled": 3.0, "loss": 0.1}
    assert all(same(found.arrays[name], tensor) for name, tensor in TENSORS.items())


def test_what_arrives_can_be_written_to() -> None:
    found = unpack_reply(pack_reply(Reply({"a": torch.zeros(2)}), STAMP), STAMP)
    assert isinstance(found, Reply)
    found.arrays["a"] += 1


def test_a_failure_arrives_as_an_absence_fit_for_a_log() -> None:
    assert unpack_reply(through_the_wire(pack_failure("no\nmore " + "x" * 9999)), STAMP) == Absence(
        "no?more " + "x" * 192
    )


def test_a_partition_arrives() -> None:
    assert unpack_partition(through_the_wire(pack_partition(7))) == 7
    assert unpack_partition(RecordDict()) is None
    assert unpack_partition(pack_partition(-1)) is None


class Evil:
    """Kills the process that unpickles it."""

    def __reduce__(self) -> tuple[object, ...]:
        return (exit, (3,))


def npy(array: np.ndarray) -> bytes:
    buffer = BytesIO()
    np.save(buffer, array)  # writes objects as pickles, like a hostile client
    return buffer.getvalue()


GOOD = npy(np.zeros((2, 3), np.float32))
ODD_ARRAYS = {
    "objects": npy(np.array([Evil()], dtype=object)),
    "a bare pickle": pickle.dumps(Evil()),
    "texts": npy(np.array(["a"])),
    "a structure": npy(np.zeros(2, [("a", "<f4")])),
    "complex numbers": npy(np.zeros(2, np.complex64)),
    "big-endian": npy(np.zeros(2, ">f4")),
    "fortran's order": npy(np.asfortranarray(np.zeros((2, 3), np.float32))),
    "too many dimensions": npy(np.zeros((1,) * 9, np.float32)),
    "a size it does not have": GOOD.replace(b"(2, 3)", b"(2, 9)"),
    "a negative size": GOOD.replace(b"(2, 3)", b"(-2, -3)"),
    "a size of terabytes": GOOD.replace(b"(2, 3), }" + b" " * 10, b"(999999, 999999), }"),
    "bytes after its end": GOOD + b"x",
    "half of it": GOOD[: len(GOOD) - 3],
    "no header": b"\x93NUMPY\x01\x00",
    "nothing": b"",
    "a header that is code": GOOD.replace(b"'<f4'", b"f()  "),
}


@pytest.mark.parametrize("data", ODD_ARRAYS.values(), ids=ODD_ARRAYS)
def test_an_array_that_is_not_plain_numbers_is_refused(data: bytes) -> None:
    records = pack_reply(Reply({"a": torch.zeros(2)}), STAMP)
    records["arrays"] = ArrayRecord({"a": Array("float32", (2, 3), "numpy.ndarray", data)})
    found = unpack_reply(records, STAMP)
    assert isinstance(found, Absence)
    assert found.reason.startswith("its reply cannot be used: array a ")
    with pytest.raises(InputError, match="array a"):
        unpack_request("train", RecordDict({"arrays": records["arrays"], "settings": ConfigRecord()}))


@given(st.binary(max_size=200), st.integers(0, len(GOOD)))
def test_no_bytes_at_all_break_a_reply(junk: bytes, cut: int) -> None:
    for data in (junk, GOOD[:cut] + junk):
        array = Array("float32", (2, 3), "numpy.ndarray", data)
        records = RecordDict({"arrays": ArrayRecord({"a": array}), "numbers": MetricRecord(), "stamp": STAMPED})
        assert isinstance(unpack_reply(records, STAMP), Reply | Absence)


def many(count: int) -> MetricRecord:
    return MetricRecord({str(number): 1 for number in range(count)})


ODD_RECORDS = {
    "nothing": RecordDict(),
    "no numbers": RecordDict({"arrays": ArrayRecord()}),
    "one more record": RecordDict({"arrays": ArrayRecord(), "numbers": MetricRecord(), "pixels": ArrayRecord()}),
    "numbers of another type": RecordDict({"arrays": ArrayRecord(), "numbers": ConfigRecord({"a": "b"})}),
    "arrays of another type": RecordDict({"arrays": MetricRecord(), "numbers": MetricRecord()}),
    "a list as a number": RecordDict({"arrays": ArrayRecord(), "numbers": MetricRecord({"a": [1.0]})}),
    "an endless name": RecordDict({"arrays": ArrayRecord(), "numbers": MetricRecord({"a" * (LONGEST_NAME + 1): 1})}),
    "a name of two lines": RecordDict({"arrays": ArrayRecord(), "numbers": MetricRecord({"a\nb": 1})}),
    "endless names": RecordDict({"arrays": ArrayRecord(), "numbers": many(MOST_NAMES + 1)}),
    "another format": RecordDict(
        {"arrays": ArrayRecord({"a": Array("float32", (1,), "torch.pickle", b"")}), "numbers": MetricRecord()}
    ),
    "a number beyond floats": RecordDict({"arrays": ArrayRecord(), "numbers": MetricRecord({"a": 10**400})}),
}


@pytest.mark.parametrize("records", ODD_RECORDS.values(), ids=ODD_RECORDS)
def test_records_that_are_no_reply_become_an_absence(records: RecordDict) -> None:
    found = unpack_reply(RecordDict({**records, "stamp": STAMPED}), STAMP)
    assert isinstance(found, Absence)
    assert "stamp" not in found.reason
    assert found.reason.isprintable()
    assert len(found.reason) < 300


@pytest.mark.parametrize(
    ("stamp", "reason"),
    [
        (Stamp("lab-2", STAMP.request), "it is from lab-2, not from lab-1"),
        (Stamp(STAMP.client, "1" * 64), "it answers another request, such as one of an earlier round"),
        (Stamp("a\nb" * 99, STAMP.request), "a?b"),
    ],
)
def test_a_reply_to_another_request_or_of_another_lab_is_refused(stamp: Stamp, reason: str) -> None:
    found = unpack_reply(through_the_wire(pack_reply(Reply(), stamp)), STAMP)
    assert isinstance(found, Absence)
    assert reason in found.reason
    assert found.reason.isprintable()


def test_a_request_has_the_same_digest_on_both_sides_and_no_other_has_it() -> None:
    request = Request("train", TENSORS, {"round": 3, "rate": 0.1, "name": "lab ä", "on": True})
    arrived = unpack_request("train", through_the_wire(pack_request(request)))
    assert digest_request(arrived) == digest_request(request)
    others = [
        replace(request, kind="evaluate"),
        replace(request, settings={**request.settings, "round": 4}),
        replace(request, arrays={**TENSORS, "scalar": torch.tensor(3.5)}),
        replace(request, arrays={**TENSORS, "empty": torch.zeros(4, 0)}),
    ]
    assert len({digest_request(each) for each in (request, *others)}) == len(others) + 1


def test_a_failure_of_another_type_becomes_an_absence() -> None:
    assert isinstance(unpack_reply(RecordDict({"failure": MetricRecord({"reason": 1})}), STAMP), Absence)
    assert unpack_reply(RecordDict({"failure": ConfigRecord()}), STAMP) == Absence("no reason given")


@pytest.mark.parametrize("value", [b"bytes", [1, 2], "x" * 1_000_001])
def test_a_setting_that_is_no_scalar_is_refused(value: bytes | list[int] | str) -> None:
    with pytest.raises(InputError, match="setting a"):
        unpack_request("train", RecordDict({"arrays": ArrayRecord(), "settings": ConfigRecord({"a": value})}))
