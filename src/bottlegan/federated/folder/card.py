"""Cards: a side's name and public keys, signed by itself, which it gives the others once in a way that they trust."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path

from bottlegan.core.config import document, load, to_toml, to_values
from bottlegan.core.errors import ConfigError, InputError
from bottlegan.federated.folder.seal import KEY_BYTES, SIGNATURE_BYTES, Public, Secret
from bottlegan.federated.protocol.names import check_lab

MOST_BYTES = 10_000


@document
class Card:
    """A side's name and public keys, in hexadecimal."""

    name: str
    signing: str
    """Ed25519."""
    sealing: str
    """X25519."""
    signature: str = ""
    """Signature of all of the above with the signing key, so that nobody can exchange the sealing key."""

    def __post_init__(self) -> None:
        """Check the name, and the form of the keys."""
        check_lab(self.name)
        lengths = ((self.signing, KEY_BYTES), (self.sealing, KEY_BYTES), (self.signature or "00" * 64, SIGNATURE_BYTES))
        for text, length in lengths:
            try:
                key = bytes.fromhex(text)
            except ValueError:
                key = b""
            if len(key) != length or text != key.hex():
                raise ConfigError("a key or signature in a card is not hexadecimal, or has the wrong length")

    @property
    def public(self) -> Public:
        """The public keys."""
        return Public(bytes.fromhex(self.signing), bytes.fromhex(self.sealing))

    @property
    def identity(self) -> str:
        """SHA-256 of both keys, which identifies the side."""
        return hashlib.sha256(self.public.signing + self.public.sealing).hexdigest()

    @property
    def fingerprint(self) -> str:
        """The first half of the identity, short enough to compare on the telephone."""
        return " ".join(self.identity[i : i + 4] for i in range(0, 32, 4))


def write_card(name: str, secret: Secret) -> Card:
    """Make the card of a side."""
    public = secret.publish()
    card = Card(name=name, signing=public.signing.hex(), sealing=public.sealing.hex())
    return replace(card, signature=secret.sign(_words(card)).hex())


def read_card(path: Path) -> Card:
    """Read the card in a file, or raise `InputError` if it is not a card or was changed."""
    if path.is_file() and path.stat().st_size > MOST_BYTES:
        raise InputError(f"{path}: is too large for a card; ask for the file that `exchange init` wrote")
    card = load(Card, path)
    if not card.signature or not card.public.has_signed(bytes.fromhex(card.signature), _words(card)):
        raise InputError(f"{path}: was changed after it was made; ask for it again, in a way that you trust")
    return card


def format_card(card: Card) -> str:
    """Return the content of a card's file."""
    return to_toml(card)


def _words(card: Card) -> bytes:
    values = {key: value for key, value in to_values(card).items() if key != "signature"}
    return b"bottlegan card 1 " + json.dumps(values, sort_keys=True).encode()
