"""A channel to one other side: numbers bundles, keeps them until they arrive, and accepts each bundle at most once.

A bundle is identified by the number that its sender signed, not by its file's name or date. Only a number above all
accepted ones is accepted, so a bundle that is replayed or arrives late has no effect. The machine may go down at any
moment: files are written before the ledger that counts them, and the ledger is written atomically.
"""

import filecmp
import hashlib
import logging
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from bottlegan.core.config import document
from bottlegan.core.errors import InputError, MissingError
from bottlegan.core.files import keeping_private, make_folder, replacing, using_umask
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
READABLE = 0o022
"""Umask for published bundles: other accounts may read them, because they are sealed."""
KEPT = 32
"""Number of remembered requests and bundles, more than any round has."""
MOST_FILES = 1000
"""Most bundles read in one folder. Senders remove bundles that have arrived, so honest folders hold only a few."""
log = logging.getLogger(__name__)


@document
class Asked:
    """A request that was sent."""

    number: int
    time: float
    """Time of sending, in seconds since 1970."""


@document
class Ledger:
    """The state of a channel."""

    sent: int = 0
    heard: int = 0
    """Numbers of the last bundle that was sent, and of the last that was accepted."""
    acknowledged: int = 0
    """Number of the last bundle of ours that the other side says it has accepted."""
    taken: dict[str, str] = field(default_factory=dict)
    """Digests of the last accepted bundles by number. Their files may still lie in the folder; that is no replay."""
    asked: dict[str, Asked] = field(default_factory=dict)
    """The last sent requests by their SHA-256."""
    failed: bool = False
    """Whether answering the last request failed, so that it is kept for another try."""


@dataclass(frozen=True)
class Arrival:
    """A valid bundle that was not accepted before."""

    path: Path
    envelope: Envelope
    content: bytes
    digest: str


class Channel:
    """The messages between a home and a side that it trusts, through a folder that both can write to."""

    def __init__(self, home: Home, peer: Card, shared: Path) -> None:
        """Open or create the channel of `home` to `peer` in the folder `shared`."""
        if not shared.is_dir():
            raise MissingError(f"{shared}: there is no such folder; plug in the medium, or check the path")
        self.home, self.peer, self.shared = home, peer, shared
        self.folder = find_channel(home, peer)
        self.outbox, self.replies = self.folder / "outbox", self.folder / "replies"
        self.inbox = shared / f"{peer.name}-to-{home.card.name}"
        self.published = shared / f"{home.card.name}-to-{peer.name}"
        with keeping_private():
            for folder in (self.outbox, self.replies):
                make_folder(folder)
        self._refused: set[tuple[str, int, int]] = set()
        self.ledger = read_ledger(home, peer)

    # A bundle's number is in the ledger before the bundle is in the shared folder, so no number is used twice.
    def send(
        self, kind: Literal["request", "reply"], request: str, content: bytes, answered: Arrival | None = None
    ) -> None:
        """Send a bundle; if it answers one that arrived, accept that one in the same step."""
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
        with keeping_private():
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
        """Make the shared folder hold exactly those of our bundles that have not arrived yet."""
        waiting = {path.name: path for path in sorted(self.outbox.glob("*.bundle"))}
        for name, path in list(waiting.items()):
            if int(path.stem) <= self.ledger.acknowledged:
                path.unlink()
                del waiting[name]
        with using_umask(READABLE):
            make_folder(self.published)
            for old in self.published.glob("*"):
                if old.name not in waiting:
                    old.unlink(missing_ok=True)
            for name, path in waiting.items():
                there = self.published / name
                if not there.is_file() or not filecmp.cmp(path, there, shallow=False):
                    _copy(path, there)

    def arrivals(self, kind: Literal["request", "reply"]) -> Iterator[Arrival]:
        """Yield new bundles in the order of their numbers; after handling one, the caller must `accept` it."""
        for path in self._list():
            try:
                arrival = self._open(path, kind)
            except BundleError as error:
                self._refuse(path, str(error))
            else:
                if arrival is not None:
                    yield arrival

    def accept(self, arrival: Arrival) -> None:
        """Record a bundle as accepted."""
        with keeping_private():
            self._save(self._count(arrival))

    def reopen(self, path: Path) -> Arrival:
        """Open an accepted bundle that is kept at `path`."""
        envelope, content, digest = open_bundle(path, self.home.card, self.home.secret, {self.peer.identity: self.peer})
        return Arrival(path, envelope, content, digest)

    def keep(self, arrival: Arrival, path: Path) -> None:
        """Keep a bundle as it arrived: signed, so that damage is noticed, and sealed."""
        with keeping_private(), replacing(path, durable=True) as temporary:
            temporary.write_bytes(arrival.path.read_bytes())

    def mark(self, *, failed: bool) -> None:
        """Record whether the last request must be tried again."""
        with keeping_private():
            self._save(replace(self.ledger, failed=failed))

    def forget(self, request: str) -> None:
        """Forget a sent request, so that it is sent again."""
        with keeping_private():
            self._save(replace(self.ledger, asked={k: v for k, v in self.ledger.asked.items() if k != request}))

    def _list(self) -> list[Path]:
        """Return the files in the inbox, sorted by the numbers that they claim; invalid bundles come first."""
        bundles = sorted(self.inbox.glob("*.bundle"))[:MOST_FILES] if self.inbox.is_dir() else []
        return sorted((path for path in bundles if self._key(path) not in self._refused), key=_claimed_number)

    def _open(self, path: Path, kind: str) -> Arrival | None:
        arrival = self.reopen(path)
        number = arrival.envelope.number
        if self.ledger.taken.get(str(number)) == arrival.digest:
            return None  # its sender has not learned yet that it was accepted
        if number <= self.ledger.heard:
            raise BundleError(f"has the number {number}, but {self.ledger.heard} was accepted before: it is an old one")
        if arrival.envelope.kind != kind:
            raise BundleError(f"is a {arrival.envelope.kind}, but only a {kind} can come from {self.peer.name}")
        return arrival

    def _count(self, arrival: Arrival) -> Ledger:
        """Return the ledger with one more accepted bundle."""
        envelope, ledger = arrival.envelope, self.ledger
        taken = {**ledger.taken, str(envelope.number): arrival.digest}
        fields: dict[str, Json] = {
            "from": self.peer.name,
            "what": envelope.kind,
            "request": printable(envelope.request),
            "number": envelope.number,
            "digest": arrival.digest,
            "head": printable(envelope.audit),
        }
        with keeping_private():
            self.home.record("taken", **fields)
        return replace(
            ledger,
            heard=envelope.number,
            acknowledged=max(ledger.acknowledged, envelope.heard),
            # If this home was restored from a backup, the other side knows the last number it has used.
            sent=max(ledger.sent, envelope.heard),
            taken=dict(list(taken.items())[-KEPT:]),
        )

    def _refuse(self, path: Path, reason: str) -> None:
        log.warning("%s: %s", path, reason)
        with keeping_private():
            self.home.record("refused", **{"from": self.peer.name}, file=printable(path.name), reason=reason)
        self._refused.add(self._key(path))

    def _key(self, path: Path) -> tuple[str, int, int]:
        try:
            status = path.stat()
        except OSError:
            return path.name, 0, 0
        return path.name, status.st_size, status.st_mtime_ns

    def _save(self, ledger: Ledger) -> None:
        write_document(self.folder / LEDGER, ledger)
        self.ledger = ledger


def find_channel(home: Home, peer: Card) -> Path:
    """Return the folder for the state of a channel. New keys on either side start a new channel."""
    pair = hashlib.sha256(f"{home.card.identity} {peer.identity}".encode()).hexdigest()
    return home.folder / "channels" / f"{peer.name}.{pair[:16]}"


def read_ledger(home: Home, peer: Card) -> Ledger:
    """Read the ledger of the channel from a home to another side."""
    path = find_channel(home, peer) / LEDGER
    return read_document(Ledger, path) if path.exists() else Ledger()


def _claimed_number(path: Path) -> int:
    """Return the number in a file's envelope, or 0 if there is none."""
    try:
        with path.open("rb") as file:
            return read_envelope(file, path.stat().st_size)[0].number
    except (InputError, OSError):
        return 0


def _copy(path: Path, there: Path) -> None:
    """Copy a file atomically to a medium that may have no file owners and may be unplugged at any moment."""
    part = there.with_suffix(".part")
    try:
        with part.open("wb") as file:
            file.write(path.read_bytes())
            file.flush()
            os.fsync(file.fileno())
        part.replace(there)
    except OSError as error:
        raise InputError(
            f"{there}: cannot be written ({error.strerror}); make room, or check that the medium is writable"
        ) from None
