"""A bundle: one message in one file, signed by its sender and sealed for its receiver.

| bytes | what |
| --- | --- |
| 8 | `BGBUNDL1` |
| 4, 8 | lengths of envelope and content, little endian |
| | envelope: JSON that anybody can read |
| 64 | the sender's signature (Ed25519) of the first field, the envelope and the SHA-256 of the sealed content |
| | content, sealed for the receiver (HPKE) with the envelope as its info |

So neither part can be changed, exchanged, or forwarded under another name or to another receiver.
"""

import hashlib
import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO, Literal

from bottlegan.core.config import document, parse, to_values
from bottlegan.core.errors import ConfigError, InputError
from bottlegan.federated.folder.card import Card
from bottlegan.federated.folder.seal import SIGNATURE_BYTES, Secret

MAGIC = b"BGBUNDL1"
LENGTHS = struct.Struct("<IQ")
MOST_ENVELOPE, MOST_CONTENT = 2_000, 2**28
"""Largest sizes in bytes: no honest envelope is longer, and 256 MiB are 64 million weights."""
MOST_NUMBER, DIGITS = 10**8 - 1, 8


class BundleError(InputError):
    """A bundle that cannot be trusted. The text says why, and never quotes the content."""


@document
class Envelope:
    """The readable part of a bundle."""

    kind: Literal["request", "reply"]
    sender: str
    receiver: str
    """Identities: see `Card`."""
    number: int
    """Number of this bundle among those from this sender to this receiver, from 1."""
    heard: int
    """Number of the last bundle that the sender has accepted from the receiver."""
    request: str
    """SHA-256 of the request in this bundle, or of the request that it answers."""
    audit: str
    """Head of the sender's log. The receiver logs it, and can later prove if that log was rewritten."""

    def __post_init__(self) -> None:
        """Check the numbers."""
        if not (1 <= self.number <= MOST_NUMBER and 0 <= self.heard <= MOST_NUMBER):
            raise ConfigError(f"a bundle's numbers must be from 1 to {MOST_NUMBER}")


def seal_bundle(envelope: Envelope, content: bytes, secret: Secret, receiver: Card) -> bytes:
    """Return a bundle."""
    words = json.dumps(to_values(envelope), sort_keys=True).encode()
    if len(content) > MOST_CONTENT:
        raise InputError(
            f"a message has {len(content):,} bytes, but a bundle holds {MOST_CONTENT:,}; use a smaller network"
        )
    sealed = receiver.public.seal(content, words)
    signature = secret.sign(_signed(words, hashlib.sha256(sealed).digest()))
    return MAGIC + LENGTHS.pack(len(words), len(sealed)) + words + signature + sealed


def read_envelope(file: BinaryIO, size: int) -> tuple[Envelope, bytes, int]:
    """Return the envelope of a bundle of `size` bytes, parsed and as bytes, and the length of the sealed content.

    Nothing in it can be trusted yet. The signature comes next in the file, then the content.
    """
    start = file.read(len(MAGIC) + LENGTHS.size)
    if len(start) < len(MAGIC) + LENGTHS.size and MAGIC.startswith(start[: len(MAGIC)]):
        raise BundleError(f"holds only {size} bytes: it was copied in part; copy it again")
    if not start.startswith(MAGIC):
        raise BundleError("is not a bundle of `bottlegan exchange`")
    length, sealed = LENGTHS.unpack(start[len(MAGIC) :])
    if length > MOST_ENVELOPE or sealed > MOST_CONTENT + MOST_ENVELOPE:
        raise BundleError(f"claims {length:,} and {sealed:,} bytes, which no bundle has")
    whole = len(start) + length + SIGNATURE_BYTES + sealed
    if size != whole:
        more = "it was copied in part" if size < whole else "something was added to it"
        raise BundleError(f"holds {size:,} bytes instead of {whole:,}: {more}; copy it again")
    words = file.read(length)
    try:
        return parse(Envelope, json.loads(words), "envelope"), words, sealed
    except (ValueError, RecursionError):
        raise BundleError("has an envelope that cannot be read; it was damaged, or made by another version") from None


def open_bundle(path: Path, own: Card, secret: Secret, trusted: Mapping[str, Card]) -> tuple[Envelope, bytes, str]:
    """Return the envelope, the content and the digest of a bundle to this side from a trusted sender.

    Raises:
        BundleError: It is from somebody else, for somebody else, or was changed.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            envelope, words, length = read_envelope(file, size)
            sender = trusted.get(envelope.sender)
            if sender is None:
                raise BundleError("is from a sender that is not, or no longer, trusted here")
            if envelope.receiver != own.identity:
                raise BundleError("is for another receiver, or for keys that were replaced here")
            signature, sealed = file.read(SIGNATURE_BYTES), file.read(length)
    except OSError as error:
        raise BundleError(f"cannot be read ({error.strerror}); copy it again") from None
    if not sender.public.has_signed(signature, _signed(words, hashlib.sha256(sealed).digest())):
        raise BundleError(f"was changed after {sender.name} wrote it: the signature does not match; copy it again")
    content = secret.unseal(sealed, words)
    if content is None:
        raise BundleError(f"is signed by {sender.name}, but was not sealed for this receiver with this envelope")
    return envelope, content, hashlib.sha256(words + signature).hexdigest()


def name_bundle(number: int) -> str:
    """Return the file name of a bundle. It is for people only; the program reads the envelope."""
    return f"{number:0{DIGITS}d}.bundle"


def _signed(words: bytes, digest: bytes) -> bytes:
    return MAGIC + words + digest
