"""Messages as bytes, and hostile bytes as messages."""

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save

from bottlegan.core.errors import InputError
from bottlegan.federated.folder.payload import MOST_HEADER, pack_reply, pack_request, unpack_reply, unpack_request
from bottlegan.federated.protocol.exchange import Absence, Reply, Request

TENSORS = {"b": torch.arange(6.0).reshape(2, 3).T, "a": torch.ones(2, dtype=torch.float64), "none": torch.zeros(0, 3)}
REQUEST = Request("train", TENSORS, {"round": 3, "seed": 2**62, "config": "{}", "x": 1.5, "on": True})


def test_a_request_arrives_as_it_was_and_the_same_has_the_same_bytes() -> None:
    content = pack_request(REQUEST, "run")
    found = unpack_request(content)
    assert (found.kind, found.settings) == (REQUEST.kind, REQUEST.settings)
    assert [type(value) for value in found.settings.values()] == [
        type(REQUEST.settings[name]) for name in found.settings
    ]
    assert all(torch.equal(found.arrays[name], tensor) for name, tensor in TENSORS.items())
    assert content == pack_request(Request("train", dict(reversed(TENSORS.items())), REQUEST.settings), "run")
    assert content != pack_request(REQUEST, "another run")


def test_a_reply_and_a_failure_arrive_as_they_were() -> None:
    found = unpack_reply(pack_reply(Reply(TENSORS, {"loss": 0.5})))
    assert isinstance(found, Reply)
    assert found.numbers == {"loss": 0.5}
    assert unpack_reply(pack_reply(Absence("no\nreason"))) == Absence("no?reason")
    assert unpack_reply(pack_reply(Reply({}, {"loss": float("nan")}))) == Absence("number loss is not finite")


def message(words: object, tensors: dict[str, torch.Tensor] | None = None) -> bytes:
    return save(tensors or {}, {"bottlegan": words if isinstance(words, str) else json.dumps(words)})


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff" * 8,
        (MOST_HEADER + 1).to_bytes(8, "little") + b"{}",
        save({}, {}),
        message("["),
        message("[" * 100_000),
        message({"numbers": {"loss": "x"}}),
        message({"numbers": {"loss": None}}),
        message('{"numbers": {"loss": NaN}}'),
        message('{"numbers": {"loss": 1e999}}'),
        message({"numbers": {"": 1.0}}),
        message({"numbers": {"a\n": 1.0}}),
        message({"numbers": {str(i): 1.0 for i in range(10_001)}}),
        message({"numbers": {}, "more": 1}),
        message({"numbers": {}}, {"half": torch.ones(1, dtype=torch.float16)}),
        message({"numbers": {}}, {"x" * 301: torch.ones(1)}),
    ],
)
def test_hostile_bytes_are_an_absence_and_nothing_worse(content: bytes) -> None:
    found = unpack_reply(content)
    assert isinstance(found, Absence)
    assert found.reason.startswith("its reply cannot be used: ")
    assert len(found.reason) < 400
    with pytest.raises(InputError):
        unpack_request(content)


@given(place=st.integers(0, 10_000), value=st.integers(0, 255))
def test_a_changed_byte_is_a_reply_or_an_absence(place: int, value: int) -> None:
    content = bytearray(pack_reply(Reply(TENSORS, {"loss": 0.5})))
    content[place % len(content)] = value
    assert isinstance(unpack_reply(bytes(content)), Reply | Absence)
