"""The messages of secure aggregation: a round's requests, in four steps, and the replies to them.

| request | to | carries | reply |
| --- | --- | --- | --- |
| `keys` | all drawn labs | the round | the lab's public keys |
| `shares` | labs with keys | the keys of all | for each lab, sealed: shares of seed and masking key |
| `train` | labs that have shared | the weights; who has shared | the masked update |
| `unmask` | labs that have trained | the shares sealed for it; who has trained | for each lab, a share of its seed |
| | | | if it has trained, of its masking key if not |
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
"""Names of tensors in requests and replies."""
NAMES, PARTNERS, TRAINED = "names", "partners", "trained"
"""Names of settings in requests, each a JSON list of labs: those with keys, those that shared, those that trained."""
MOST_LABS = 10_000


class Circle(NamedTuple):
    """The labs of one round whose updates are added: their names, sorted, and their public parts."""

    names: tuple[str, ...]
    public: tuple[bytes, ...]

    @property
    def needed(self) -> int:
        """Number of labs that must stay to the end."""
        return count_needed(len(self.names))

    @property
    def digest(self) -> bytes:
        """SHA-256 of the circle, which binds everything sealed or masked to it."""
        content = json.dumps([list(self.names), [public.hex() for public in self.public]])
        return hashlib.sha256(content.encode()).digest()

    def find(self, name: str) -> bytes:
        """Return a lab's public part."""
        return self.public[self.names.index(name)]

    def words(self, sender: str, receiver: str) -> bytes:
        """Return the words that bind a sealed message to its sender and receiver."""
        return self.digest + json.dumps([sender, receiver]).encode()

    def pair(self, one: str, other: str) -> bytes:
        """Return the words that bind a mask to its two labs."""
        return self.digest + json.dumps(sorted((one, other))).encode()


def make_circle(names: Sequence[str], public: Sequence[bytes]) -> Circle:
    """Return a circle, or raise `InputError` if it is too small to hide anybody."""
    if not LEAST_LABS <= len(names) <= MOST_LABS or len(set(names)) < len(names) or list(names) != sorted(names):
        raise InputError(f"{len(names)} labs cannot hide each other; {LEAST_LABS} with different names are needed")
    if len(public) != len(names) or any(len(key) != PUBLIC_BYTES for key in public):
        raise InputError("the number of keys is not that of the labs, or a key has the wrong length")
    return Circle(tuple(names), tuple(public))


def read_names(text: str) -> list[str]:
    """Parse a JSON list of names in a request."""
    try:
        names = json.loads(text)
    except (ValueError, RecursionError):
        names = None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise InputError("a setting that should be a list of names is not one")
    return names


def to_bytes(tensor: Tensor | None, rows: int, width: int) -> list[bytes]:
    """Return the rows of a tensor of bytes, or raise `InputError` if it has another form."""
    if tensor is None or tensor.dtype != torch.uint8 or tuple(tensor.shape) != (rows, width):
        raise InputError(f"it must be {rows} rows of {width} bytes")
    return [row.tobytes() for row in tensor.numpy()]


def from_bytes(rows: Sequence[bytes]) -> Tensor:
    """Stack rows of bytes as a tensor."""
    return torch.from_numpy(np.frombuffer(b"".join(rows), np.uint8).reshape(len(rows), -1).copy())
