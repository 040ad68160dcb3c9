"""Secure aggregation, the words of it: what is asked in a round, in four steps, and in what form it is answered.

| request | to | carries | reply |
| --- | --- | --- | --- |
| `keys` | all that were drawn | the round | what a lab makes public |
| `shares` | those that have keys | the keys of all | for each of them, sealed: shares of seed and masking key |
| `train` | those that have shared | the weights; who has shared | the masked update |
| `unmask` | those that have trained | what was sealed for it; who has trained | a share of the seed of each that has |
| | | | trained, of the masking key of each that has not |
"""

import hashlib
import json
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from bottlegan.core.errors import InputError
from bottlegan.federated.protocol.masking import PUBLIC_BYTES
from bottlegan.federated.protocol.privacy import LEAST_LABS, count_needed

KEYS, SHARES, REVEALED = "keys", "shares", "revealed"
"""Tensors of requests and replies."""
NAMES, PARTNERS, TRAINED = "names", "partners", "trained"
"""Settings of requests: names as JSON, of whose keys, who has shared, and who has trained."""
MOST_LABS = 10_000


class Circle(NamedTuple):
    """The labs of one round whose updates are added up: their names, sorted, and what each has made public."""

    names: tuple[str, ...]
    public: tuple[bytes, ...]

    @property
    def needed(self) -> int:
        """How many labs must be there to the end."""
        return count_needed(len(self.names))

    @property
    def digest(self) -> bytes:
        """Stands for all of it: what is sealed or masked in one circle is worth nothing in another."""
        said = json.dumps([list(self.names), [public.hex() for public in self.public]])
        return hashlib.sha256(said.encode()).digest()

    def find(self, name: str) -> bytes:
        """Return what a lab has made public."""
        return self.public[self.names.index(name)]

    def words(self, sender: str, receiver: str) -> bytes:
        """Return what a sealed message from one lab to another is bound to."""
        return self.digest + json.dumps([sender, receiver]).encode()

    def pair(self, one: str, other: str) -> bytes:
        """Return what the mask of two labs is bound to."""
        return self.digest + json.dumps(sorted((one, other))).encode()


def make_circle(names: Sequence[str], public: Sequence[bytes]) -> Circle:
    """Return a circle, or raise `InputError` if nobody would be hidden in it."""
    if not LEAST_LABS <= len(names) <= MOST_LABS or len(set(names)) < len(names) or list(names) != sorted(names):
        raise InputError(f"{len(names)} labs cannot hide each other; {LEAST_LABS} with different names are needed")
    if len(public) != len(names) or any(len(each) != PUBLIC_BYTES for each in public):
        raise InputError("there are not as many keys as labs, or they are not whole")
    return Circle(tuple(names), tuple(public))


def read_names(text: str) -> list[str]:
    """Return names that a request lists as JSON."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
        raise InputError("a list of names in a request is none")
    return found


def to_bytes(tensor: Tensor | None, rows: int, width: int) -> list[bytes]:
    """Return the rows of a tensor of bytes, which must have this form, or raise `InputError`."""
    if tensor is None or tensor.dtype != torch.uint8 or tuple(tensor.shape) != (rows, width):
        raise InputError(f"it must be {rows} rows of {width} bytes")
    return [row.tobytes() for row in tensor.numpy()]


def from_bytes(rows: Sequence[bytes]) -> Tensor:
    """Return rows of bytes as a tensor."""
    return torch.from_numpy(np.frombuffer(b"".join(rows), np.uint8).reshape(len(rows), -1).copy())
