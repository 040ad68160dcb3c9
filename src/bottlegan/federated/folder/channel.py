"""One way to one other side: numbers what is sent, keeps it until it has arrived, and takes each bundle at most once.

A bundle counts by its number, which its sender signed, not by the name or the date of its file. Only a number above
all that were taken before is taken, so a bundle that is shown again, or comes after a later one, has no effect. The
machine may go down at any moment: files are written before the ledger that counts them, and the ledger in one piece.
"""

import filecmp
import hashlib
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from bottlegan.core.config import document
from bottlegan.core.errors import InputError, MissingError
from bottlegan.core.files import make_folder, replacing
from bottlegan.core.progress import Json
from bottlegan.core.state import read_document, write_document
from bottlegan.federated.folder.bundle import (
    BundleError,
    Envelope,
    name_bundle,
    open_bundle,
    read_envelope,
    seal_bundle,
)
from bottlegan.federated.folder.card import Card
from bottlegan.federated.folder.home import Home
from bottlegan.federated.protocol.validation import printable

LEDGER = "ledger.json"
KEPT = 32
"""Requests and bundles that are remembered: more than any round has."""
MOST_FILES = 1000
"""Bundles looked at in one folder; senders remove what has arrived, so honest folders hold a few."""
log = logging.getLogger(__name__)


@document
class Asked:
    """A request that was sent."""

    number: int
    time: float
    """When, in seconds since 1970."""


@document
class Ledger:
    """How far a channel got."""

    sent: int = 0
    heard: int = 0
    """Numbers of the last bundle that was sent, and taken."""
    acknowledged: int = 0
    """Number of the last bundle of ours that the other side has taken, as it says."""
    taken: dict[str, str] = field(default_factory=dict)
    """Digests of the last bundles that were taken, by number: these may lie around without being a replay."""
    asked: dict[str, Asked] = field(default_factory=dict)
    """The last requests that were sent, by their SHA-256."""
    failed: bool = False
    """Whether the last request could not be answered, and is kept to be tried again."""


@dataclass(frozen=True)
class Arrival:
    """A bundle that may be believed, and was not taken before."""

    path: Path
    envelope: Envelope
    content: bytes
    digest: str


class Channel:
    """All that goes between a home and one that it trusts, through a folder that both can write to."""

    def __init__(self, home: Home, peer: Card, shared: Path) -> None:
        """Go on with the channel of `home` to `peer` in the folder `shared`, or begin it."""
        if not shared.is_dir():
            raise MissingError(f"{shared}: there is no such folder; plug in the medium, or check the path")
        self.home, self.peer, self.shared = home, peer, shared
        self.folder = find_channel(home, peer)
        self.outbox, self.replies = self.folder / "outbox", self.folder / "replies"
        self.inbox = shared / f"{peer.name}-to-{home.card.name}"
        self.published = shared / f"{home.card.name}-to-{peer.name}"
        with home.writing():
            for folder in (self.outbox, self.replies):
                make_folder(folder)
        self._refused: set[tuple[str, int, int]] = set()
        self.ledger = read_ledger(home, peer)

    # The number that the next bundle gets is in the ledger before it is in the shared folder, so none is used twice.
    def send(
        self, kind: Literal["request", "reply"], request: str, content: bytes, answered: Arrival | None = None
    ) -> None:
        """Send a bundle; if it answers one that arrived, that one is taken with it."""
        before = self.ledger if answered is None else self._count(answered)
        number = before.sent + 1
        envelope = Envelope(
            kind=kind,
            sender=self.home.card.identity,
            receiver=self.peer.identity,
            number=number,
            heard=before.heard,
            request=request,
            audit=self.home.audit_head(),
        )
        bundle = seal_bundle(envelope, content, self.home.secret, self.peer)
        with self.home.writing():
            with replacing(self.outbox / name_bundle(number), durable=True) as temporary:
                temporary.write_bytes(bundle)
            after = replace(before, sent=number)
            if kind == "request":
                asked = {**before.asked, request: Asked(number=number, time=time.time())}
                after = replace(after, asked=dict(list(asked.items())[-KEPT:]))
            self._save(after)
            self.home.record("sent", to=self.peer.name, number=number, what=kind, request=request, bytes=len(bundle))
        self.publish()

    def publish(self) -> None:
        """See that all that has not arrived yet is in the shared folder, and that nothing else of ours is."""
        waiting = {path.name: path for path in sorted(self.outbox.glob("*.bundle"))}
        for name, path in list(waiting.items()):
            if int(path.stem) <= self.ledger.acknowledged:
                path.unlink()
                del waiting[name]
        with _readable():
            make_folder(self.published)
            for old in self.published.glob("*"):
                if old.name not in waiting:
                    old.unlink(missing_ok=True)
            for name, path in waiting.items():
                there = self.published / name
                if not there.is_file() or not filecmp.cmp(path, there, shallow=False):
                    _copy(path, there)

    def arrivals(self, kind: Literal["request", "reply"]) -> Iterator[Arrival]:
        """Yield what has arrived, in the order of its numbers; whoever has dealt with one must `accept` it."""
        for path in self._list():
            try:
                arrival = self._open(path, kind)
            except BundleError as error:
                self._refuse(path, str(error))
            else:
                if arrival is not None:
                    yield arrival

    def accept(self, arrival: Arrival) -> None:
        """Count a bundle as taken."""
        with self.home.writing():
            self._save(self._count(arrival))

    def reopen(self, path: Path) -> Arrival:
        """Return a bundle that was taken before and is kept at `path`."""
        envelope, content, digest = open_bundle(path, self.home.card, self.home.secret, {self.peer.identity: self.peer})
        return Arrival(path, envelope, content, digest)

    def keep(self, arrival: Arrival, path: Path) -> None:
        """Keep a bundle as it arrived: signed, so that damage shows, and sealed."""
        with self.home.writing(), replacing(path, durable=True) as temporary:
            temporary.write_bytes(arrival.path.read_bytes())

    def mark(self, *, failed: bool) -> None:
        """Note whether the last request is to be tried again."""
        with self.home.writing():
            self._save(replace(self.ledger, failed=failed))

    def forget(self, request: str) -> None:
        """Forget that a request was sent, so that it is sent again."""
        with self.home.writing():
            self._save(replace(self.ledger, asked={k: v for k, v in self.ledger.asked.items() if k != request}))

    def _list(self) -> list[Path]:
        """Return the bundles in the inbox, sorted by the number that they claim, those that are none first."""
        found = sorted(self.inbox.glob("*.bundle"))[:MOST_FILES] if self.inbox.is_dir() else []
        return sorted((path for path in found if self._key(path) not in self._refused), key=_claimed_number)

    def _open(self, path: Path, kind: str) -> Arrival | None:
        arrival = self.reopen(path)
        number = arrival.envelope.number
        if self.ledger.taken.get(str(number)) == arrival.digest:
            return None  # it lies around until its sender knows that it was taken
        if number <= self.ledger.heard:
            raise BundleError(f"has the number {number}, but {self.ledger.heard} was taken already: it is an old one")
        if arrival.envelope.kind != kind:
            raise BundleError(f"is a {arrival.envelope.kind}, and only a {kind} can come from {self.peer.name}")
        return arrival

    def _count(self, arrival: Arrival) -> Ledger:
        """Return the ledger with one more bundle taken."""
        said, now = arrival.envelope, self.ledger
        taken = {**now.taken, str(said.number): arrival.digest}
        fields: dict[str, Json] = {"from": self.peer.name, "what": said.kind, "request": printable(said.request)}
        with self.home.writing():
            self.home.record("taken", **fields, number=said.number, digest=arrival.digest, head=printable(said.audit))
        return replace(
            now,
            heard=said.number,
            acknowledged=max(now.acknowledged, said.heard),
            # If this home was restored from a backup, the other side knows how far it had got.
            sent=max(now.sent, said.heard),
            taken=dict(list(taken.items())[-KEPT:]),
        )

    def _refuse(self, path: Path, reason: str) -> None:
        log.warning("%s: %s", path, reason)
        with self.home.writing():
            self.home.record("refused", **{"from": self.peer.name}, file=printable(path.name), reason=reason)
        self._refused.add(self._key(path))

    def _key(self, path: Path) -> tuple[str, int, int]:
        try:
            found = path.stat()
        except OSError:
            return path.name, 0, 0
        return path.name, found.st_size, found.st_mtime_ns

    def _save(self, ledger: Ledger) -> None:
        write_document(self.folder / LEDGER, ledger)
        self.ledger = ledger


def find_channel(home: Home, peer: Card) -> Path:
    """Return where a home keeps how far it got with another side; new keys of either begin anew."""
    pair = hashlib.sha256(f"{home.card.identity} {peer.identity}".encode()).hexdigest()
    return home.folder / "channels" / f"{peer.name}.{pair[:16]}"


def read_ledger(home: Home, peer: Card) -> Ledger:
    """Return how far a home got with another side."""
    path = find_channel(home, peer) / LEDGER
    return read_document(Ledger, path) if path.exists() else Ledger()


def _claimed_number(path: Path) -> int:
    """Return the number that a file claims to have, 0 if none."""
    try:
        with path.open("rb") as file:
            return read_envelope(file, path.stat().st_size)[0].number
    except (InputError, OSError):
        return 0


@contextmanager
def _readable() -> Iterator[None]:
    """Let others read what is written in the block: it is sealed, and they may have other accounts."""
    before = os.umask(0o022)
    try:
        yield
    finally:
        os.umask(before)


def _copy(path: Path, there: Path) -> None:
    """Copy a file, whole or not at all, to a medium that may know nothing of owners and be pulled out any moment."""
    part = there.with_suffix(".part")
    try:
        with part.open("wb") as file:
            file.write(path.read_bytes())
            file.flush()
            os.fsync(file.fileno())
        part.replace(there)
    except OSError as error:
        raise InputError(
            f"{there}: cannot be written ({error.strerror}); make room, or see that the medium may be written to"
        ) from None
