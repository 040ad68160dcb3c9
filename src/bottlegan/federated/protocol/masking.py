"""The parts that secure aggregation is made of (Bonawitz et al., 2017); the only file of it that knows cryptography.

Each lab has, for one round, two X25519 key pairs: one to seal what it sends to other labs through the server, one to
agree on masks with each of them; and a secret seed of a mask of its own. It gives a share of its seed and of its
masking key to every lab (Shamir), so that enough of them can make up for a lab that is gone: with shares of the seed
of a lab that replied, or of the masking key of one that did not, and never of both.
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
"""Of a share of one secret."""
SEALED_BYTES = 2 * SHARE_BYTES + TAG_BYTES
"""Of what one lab gives another: a share of its seed and one of its masking key."""
PUBLIC_BYTES = 3 * SECRET_BYTES
"""Of what a lab makes public: both public keys, and the SHA-256 of its seed."""
UNIFORM_BITS = 53


def draw_secret() -> bytes:
    """Return 32 random bytes, which are an X25519 key as well as a seed."""
    return secrets.token_bytes(SECRET_BYTES)


def publish(sealing: bytes, masking: bytes, seed: bytes) -> bytes:
    """Return what a lab makes public of its secrets."""
    return _public(sealing) + _public(masking) + hashlib.sha256(seed).digest()


def is_seed(seed: bytes, public: bytes) -> bool:
    """Return whether this is the seed of a lab."""
    return hmac.compare_digest(hashlib.sha256(seed).digest(), public[2 * SECRET_BYTES :])


def is_masking_key(masking: bytes, public: bytes) -> bool:
    """Return whether this is the masking key of a lab."""
    return hmac.compare_digest(_public(masking), public[SECRET_BYTES : 2 * SECRET_BYTES])


def seal(plain: bytes, own: bytes, other: bytes, words: bytes) -> bytes:
    """Return bytes that only the lab with the public words `other` can read; `words` say from whom to whom, when."""
    return ChaCha20Poly1305(_agree(own, other[:SECRET_BYTES], b"seal " + words)).encrypt(bytes(12), plain, words)


def unseal(sealed: bytes, own: bytes, other: bytes, words: bytes) -> bytes | None:
    """Return what a lab with the public words `other` has sealed; None if it has not, or it was changed."""
    try:
        return ChaCha20Poly1305(_agree(own, other[:SECRET_BYTES], b"seal " + words)).decrypt(bytes(12), sealed, words)
    except (InvalidTag, ValueError):
        return None


def agree_on_mask(masking: bytes, other: bytes, words: bytes) -> bytes:
    """Return the seed of the mask that two labs have in common, made of one's secret and the other's public words."""
    return _agree(masking, other[SECRET_BYTES : 2 * SECRET_BYTES], b"mask " + words)


def expand(seed: bytes, count: int) -> Whole:
    """Return a mask: numbers that nobody without the seed can tell from random ones."""
    return np.frombuffer(_stream(seed, 4 * count), "<u4").astype(np.uint32)


def draw_normal(seed: bytes, count: int) -> Floats:
    """Return standard normal numbers that nobody without the seed can tell from random ones."""
    from scipy.special import ndtri  # noqa: PLC0415 - every message to a lab would import it, and few need noise

    bits = np.frombuffer(_stream(seed, 8 * count), "<u8") >> np.uint64(64 - UNIFORM_BITS)
    found: Floats = ndtri((bits.astype(np.float64) + 0.5) / 2**UNIFORM_BITS)
    return found


def derive(key: bytes, words: bytes) -> bytes:
    """Return a seed that depends on a secret key and on words: the same for the same, and else unrelated."""
    return hmac.digest(key, words, "sha256")


def split(secret: bytes, needed: int, count: int) -> list[bytes]:
    """Return shares of a secret, of which `needed` give it back, and fewer tell nothing."""
    halves = [Shamir.split(needed, count, secret[at : at + BLOCK], ssss=False) for at in (0, BLOCK)]
    return [first[1] + second[1] for first, second in zip(*halves, strict=True)]


def combine(shares: Sequence[tuple[int, bytes]]) -> bytes:
    """Return the secret that shares are of, each with its place in the list that `split` returned."""
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
