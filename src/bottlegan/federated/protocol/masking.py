"""The building blocks of secure aggregation (Bonawitz et al., 2017), and its only file with cryptography.

For each round a lab has two X25519 key pairs, one to seal messages to other labs and one to agree on masks with them,
and a secret seed for a mask of its own. It gives every lab a share (Shamir) of its seed and of its masking key. With
enough shares the masks can be removed: by the seed of a lab that replied, or by the masking key of one that dropped
out. Both secrets of one lab are never revealed.
"""

import hashlib
import hmac
import secrets
from collections.abc import Sequence

import numpy as np
from Crypto.Protocol.SecretSharing import Shamir
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from bottlegan.federated.protocol.privacy import Floats, Whole

SECRET_BYTES, BLOCK, TAG_BYTES = 32, 16, 16
SHARE_BYTES = SECRET_BYTES
"""Size of a share of one secret."""
SEALED_BYTES = 2 * SHARE_BYTES + TAG_BYTES
"""Size of a sealed message between labs: a share of the seed and one of the masking key."""
PUBLIC_BYTES = 3 * SECRET_BYTES
"""Size of a lab's public part: both public keys, and the SHA-256 of its seed."""
UNIFORM_BITS = 53


def draw_secret() -> bytes:
    """Return 32 random bytes, for an X25519 key or a seed."""
    return secrets.token_bytes(SECRET_BYTES)


def publish(sealing: bytes, masking: bytes, seed: bytes) -> bytes:
    """Return the public part of a lab's secrets."""
    return _public(sealing) + _public(masking) + hashlib.sha256(seed).digest()


def is_seed(seed: bytes, public: bytes) -> bool:
    """Return whether a seed belongs to this public part."""
    return hmac.compare_digest(hashlib.sha256(seed).digest(), public[2 * SECRET_BYTES :])


def is_masking_key(masking: bytes, public: bytes) -> bool:
    """Return whether a masking key belongs to this public part."""
    return hmac.compare_digest(_public(masking), public[SECRET_BYTES : 2 * SECRET_BYTES])


def seal(plain: bytes, own: bytes, other: bytes, words: bytes) -> bytes:
    """Seal bytes for the lab with the public part `other`; `words` bind them to sender, receiver and round."""
    return ChaCha20Poly1305(_agree(own, other[:SECRET_BYTES], b"seal " + words)).encrypt(bytes(12), plain, words)


def unseal(sealed: bytes, own: bytes, other: bytes, words: bytes) -> bytes | None:
    """Open bytes sealed by the lab with the public part `other`; None if it did not seal them, or they were changed."""
    try:
        return ChaCha20Poly1305(_agree(own, other[:SECRET_BYTES], b"seal " + words)).decrypt(bytes(12), sealed, words)
    except (InvalidTag, ValueError):
        return None


def agree_on_mask(masking: bytes, other: bytes, words: bytes) -> bytes:
    """Return the seed of the mask shared by two labs, from one's masking key and the other's public part."""
    return _agree(masking, other[SECRET_BYTES : 2 * SECRET_BYTES], b"mask " + words)


def expand(seed: bytes, count: int) -> Whole:
    """Return a mask: numbers that look random to anybody without the seed."""
    return np.frombuffer(_stream(seed, 4 * count), "<u4").astype(np.uint32)


def draw_normal(seed: bytes, count: int) -> Floats:
    """Return standard normal numbers that look random to anybody without the seed."""
    from scipy.special import ndtri  # noqa: PLC0415 - every message to a lab would import it, and few need noise

    bits = np.frombuffer(_stream(seed, 8 * count), "<u8") >> np.uint64(64 - UNIFORM_BITS)
    normal: Floats = ndtri((bits.astype(np.float64) + 0.5) / 2**UNIFORM_BITS)
    return normal


def derive(key: bytes, words: bytes) -> bytes:
    """Derive a seed from a secret key and words; other words give an unrelated seed."""
    return hmac.digest(key, words, "sha256")


def split(secret: bytes, needed: int, count: int) -> list[bytes]:
    """Split a secret into shares: `needed` of them restore it, fewer reveal nothing."""
    halves = [Shamir.split(needed, count, secret[at : at + BLOCK], ssss=False) for at in (0, BLOCK)]
    return [first[1] + second[1] for first, second in zip(*halves, strict=True)]


def combine(shares: Sequence[tuple[int, bytes]]) -> bytes:
    """Restore a secret from shares, each with its place in the list that `split` returned."""
    return b"".join(
        Shamir.combine([(place + 1, share[at : at + BLOCK]) for place, share in shares], ssss=False)
        for at in (0, BLOCK)
    )


def _public(secret: bytes) -> bytes:
    return X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()


def _agree(own: bytes, other: bytes, words: bytes) -> bytes:
    shared = X25519PrivateKey.from_private_bytes(own).exchange(X25519PublicKey.from_public_bytes(other))
    return HKDF(SHA256(), SECRET_BYTES, None, words).derive(shared)


def _stream(seed: bytes, count: int) -> bytes:
    return Cipher(ChaCha20(seed, bytes(16)), None).encryptor().update(bytes(count))
