"""Signing and sealing: the exchange's only file with cryptography.

Each side has two key pairs: Ed25519 to sign, and X25519 to receive sealed content. Sealing is HPKE (RFC 9180) with
X25519, HKDF-SHA256 and ChaCha20-Poly1305: every bundle has its own key, agreed with the receiver's. Only the receiver
can open it, and only with the same `info` with which it was sealed.
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
        """Hide the keys, which would otherwise appear in logs and tracebacks."""
        return "Secret()"

    def sign(self, message: bytes) -> bytes:
        """Return the signature of a message."""
        return Ed25519PrivateKey.from_private_bytes(self.signing).sign(message)

    def unseal(self, sealed: bytes, info: bytes) -> bytes | None:
        """Open content that was sealed for this side with the same `info`; None if it was not, or was changed."""
        try:
            return SUITE.decrypt(sealed, X25519PrivateKey.from_private_bytes(self.sealing), info)
        except (InvalidTag, ValueError):
            return None

    def publish(self) -> "Public":
        """Return the public keys."""
        return Public(
            Ed25519PrivateKey.from_private_bytes(self.signing).public_key().public_bytes_raw(),
            X25519PrivateKey.from_private_bytes(self.sealing).public_key().public_bytes_raw(),
        )


@dataclass(frozen=True)
class Public:
    """A side's public keys, 32 bytes each."""

    signing: bytes
    sealing: bytes

    def has_signed(self, signature: bytes, message: bytes) -> bool:
        """Return whether this side has signed exactly this message."""
        try:
            Ed25519PublicKey.from_public_bytes(self.signing).verify(signature, message)
        except InvalidSignature:
            return False
        return True

    def seal(self, content: bytes, info: bytes) -> bytes:
        """Seal content so that only this side can open it, and only with the same `info`."""
        return SUITE.encrypt(content, X25519PublicKey.from_public_bytes(self.sealing), info)


def make_secret() -> Secret:
    """Return new keys."""
    return Secret(Ed25519PrivateKey.generate().private_bytes_raw(), X25519PrivateKey.generate().private_bytes_raw())
