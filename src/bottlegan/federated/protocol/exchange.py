"""What server and clients say to each other, whoever carries it: Flower, or a function call."""

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
"""Numbers in a reply: how many images there are of each kind, which of VERDICTS is that on a lab's style, its loss."""
VERDICTS = tuple(Verdict)
CLASS, TEST_CLASS = "class/", "test_class/"
"""Begin the names of numbers that say how many pixels or patches of each class, by its id, a lab trains or tests on."""
REFUSES = "cannot take part:"
"""Begins the reason of a client that cannot take part in what the server wants, however often it is asked."""


class RefusalError(FederationError):
    """Why a client cannot take part as it is. Its text tells nothing of the client's files: it is made for both sides.

    What is behind it, for the client's own log, is its cause.
    """

    def __init__(self, reason: str) -> None:
        """Take the reason, with the remedy."""
        super().__init__(f"{REFUSES} {reason}")
        self.reason = reason


@dataclass(frozen=True)
class Request:
    """What the server asks one client for."""

    kind: Kind
    arrays: dict[str, Tensor] = field(default_factory=dict)
    settings: dict[str, Scalar] = field(default_factory=dict)


@dataclass(frozen=True)
class Stamp:
    """What a reply that travels says of itself: who has made it, and to which request.

    So no reply can be sent again in a later round or another run, nor in the name of another lab.
    """

    client: str
    request: str
    """The request's digest, which covers its round."""


def digest_request(request: Request) -> str:
    """Return the SHA-256 of all that a request says."""
    sha = hashlib.sha256(json.dumps([request.kind, request.settings], sort_keys=True).encode())
    for name, tensor in sorted(request.arrays.items()):
        sha.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        sha.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return sha.hexdigest()


@dataclass(frozen=True)
class Reply:
    """What a client answers: tensors and numbers. Never pixels, paths or names of files."""

    arrays: dict[str, Tensor] = field(default_factory=dict)
    numbers: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Absence:
    """Why there is no reply of a client."""

    reason: str


Answer = Callable[[Request], Reply]


class Exchange(Protocol):
    """How the server reaches its clients."""

    def clients(self) -> list[str]:
        """Return the names of the clients that are connected now."""
        ...

    def most(self) -> int | None:
        """Return how many clients there can ever be; None if nobody knows."""
        ...

    def ask(self, requests: Mapping[str, Request], deadline: float) -> dict[str, Reply | Absence]:
        """Return an answer for each request, by client; after `deadline` seconds, absence is one."""
        ...


class LocalExchange:
    """Clients in this very process, asked one after the other: no deadline, no cost, the same result every time."""

    def __init__(self, answers: Mapping[str, Answer]) -> None:
        """Take what answers for each client, by name."""
        self.answers = dict(answers)

    def clients(self) -> list[str]:
        """Return all clients."""
        return list(self.answers)

    def most(self) -> int:
        """Return how many clients there are."""
        return len(self.answers)

    def ask(self, requests: Mapping[str, Request], deadline: float) -> dict[str, Reply | Absence]:
        """Ask one client after the other; a mistake of one costs only its own reply."""
        return {name: self._ask(name, request) for name, request in requests.items()}

    def _ask(self, name: str, request: Request) -> Reply | Absence:
        try:
            return self.answers[name](request)
        except BottleGANError as error:
            return Absence(str(error))
