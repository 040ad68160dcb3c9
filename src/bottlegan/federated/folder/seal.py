"""Signing and sealing: the only file of the exchange that knows cryptography.

Each side has two key pairs: Ed25519 to sign with, and X25519 for what others seal for it. Sealing is HPKE (RFC 9180)
with X25519, HKDF-SHA256 and ChaCha20-Poly1305: every bundle has its own key, agreed with the receiver's.
Only the receiver can open it, and only together with the words (`info`) that it was sealed with.
"""

from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite

KEY_BYTES, SIGNATURE_BYTES = 32, 64
SUITE = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.CHACHA20_POLY1305)


@dataclass(frozen=True)
class Secret:
    """A side's own keys, 32 bytes each."""

    signing: bytes
    sealing: bytes

    def __repr__(self) -> str:
        """Return nothing of the keys, which would else be in logs and tracebacks."""
        return "Secret()"

    def sign(self, message: bytes) -> bytes:
        """Return the signature under a message."""
        return Ed25519PrivateKey.from_private_bytes(self.signing).sign(message)

    def unseal(self, sealed: bytes, info: bytes) -> bytes | None:
        """Return what was sealed for this side with the same words; None if it was not, or has been changed."""
        try:
            return SUITE.decrypt(sealed, X25519PrivateKey.from_private_bytes(self.sealing), info)
        except (InvalidTag, ValueError):
            return None

    def publish(self) -> "Public":
        """Return the public halves."""
        return Public(
            Ed25519PrivateKey.from_private_bytes(self.signing).public_key().public_bytes_raw(),
            X25519PrivateKey.from_private_bytes(self.sealing).public_key().public_bytes_raw(),
        )


@dataclass(frozen=True)
class Public:
    """What others know of a side's keys, 32 bytes each."""

    signing: bytes
    sealing: bytes

    def has_signed(self, signature: bytes, message: bytes) -> bool:
        """Return whether it is this side's signature under this very message."""
        try:
            Ed25519PublicKey.from_public_bytes(self.signing).verify(signature, message)
        except InvalidSignature:
            return False
        return True

    def seal(self, content: bytes, info: bytes) -> bytes:
        """Return the content so that only this side can read it, and only with the same words."""
        return SUITE.encrypt(content, X25519PublicKey.from_public_bytes(self.sealing), info)


def make_secret() -> Secret:
    """Return new keys."""
    return Secret(Ed25519PrivateKey.generate().private_bytes_raw(), X25519PrivateKey.generate().private_bytes_raw())
