"""The messages between server and clients, however they travel: through Flower, in files, or as function calls."""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from torch import Tensor

from bottlegan.core.errors import BottleGANError, FederationError
from bottlegan.onboarding.verdict import Verdict

Kind = Literal["join", "contribute", "styles", "keys", "shares", "train", "unmask", "evaluate"]
Scalar = bool | int | float | str

LABELED, UNLABELED, TEST, VERDICT, LOSS = "labeled", "unlabeled", "test", "verdict", "loss"
"""Numbers in a reply: how many images of each kind there are, the style's verdict as an index of VERDICTS, the loss."""
VERDICTS = tuple(Verdict)
CLASS, TEST_CLASS = "class/", "test_class/"
"""Prefixes of the counts of pixels or patches per class id that a lab trains or tests on."""
REFUSES = "cannot take part:"
"""Begins the reason of a client that cannot take part with these settings, however often it is asked."""


class RefusalError(FederationError):
    """Why a client cannot take part. The text is for both sides and reveals nothing about the client's files.

    The underlying error, for the client's own log, is its cause.
    """

    def __init__(self, reason: str) -> None:
        """Give the reason, with the remedy."""
        super().__init__(f"{REFUSES} {reason}")
        self.reason = reason


@dataclass(frozen=True)
class Request:
    """A request of the server to one client."""

    kind: Kind
    arrays: dict[str, Tensor] = field(default_factory=dict)
    settings: dict[str, Scalar] = field(default_factory=dict)


@dataclass(frozen=True)
class Stamp:
    """The sender of a reply, and the request that it answers.

    So no reply can be replayed in a later round or another run, or sent in the name of another lab.
    """

    client: str
    request: str
    """The digest of the request, which includes its round."""


def digest_request(request: Request) -> str:
    """Return the SHA-256 of a request's content."""
    sha = hashlib.sha256(json.dumps([request.kind, request.settings], sort_keys=True).encode())
    for name, tensor in sorted(request.arrays.items()):
        sha.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        sha.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return sha.hexdigest()


@dataclass(frozen=True)
class Reply:
    """A client's answer: tensors and numbers, never pixels, paths or file names."""

    arrays: dict[str, Tensor] = field(default_factory=dict)
    numbers: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Absence:
    """The reason why a client has not replied."""

    reason: str


Answer = Callable[[Request], Reply]


class Exchange(Protocol):
    """How the server reaches its clients."""

    def clients(self) -> list[str]:
        """Return the names of the clients that are connected now."""
        ...

    def most(self) -> int | None:
        """Return the largest possible number of clients; None if unknown."""
        ...

    def ask(self, requests: Mapping[str, Request], deadline: float) -> dict[str, Reply | Absence]:
        """Return each client's reply, or its absence after `deadline` seconds."""
        ...


class LocalExchange:
    """Clients in this process, asked one after the other: no deadline, no overhead, always the same result."""

    def __init__(self, answers: Mapping[str, Answer]) -> None:
        """Set the function that answers for each client, by name."""
        self.answers = dict(answers)

    def clients(self) -> list[str]:
        """Return all clients."""
        return list(self.answers)

    def most(self) -> int:
        """Return how many clients there are."""
        return len(self.answers)

    def ask(self, requests: Mapping[str, Request], deadline: float) -> dict[str, Reply | Absence]:
        """Ask one client after the other; an error costs only that client's reply."""
        return {name: self._ask(name, request) for name, request in requests.items()}

    def _ask(self, name: str, request: Request) -> Reply | Absence:
        try:
            return self.answers[name](request)
        except BottleGANError as error:
            return Absence(str(error))
