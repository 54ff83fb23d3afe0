"""Keys between two clients of a round, what they seal for each other, and signatures (X25519, HKDF, Ed25519)."""

from functools import lru_cache

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from unlearning.errors import SecureAggregationError

_NONCE = bytes(12)  # a key seals one message only: of one round and one direction between two fresh key pairs


def private_of(key: bytes) -> X25519PrivateKey:
    """Return the private X25519 key of 32 bytes, ready for use: that takes as long as an exchange."""
    return X25519PrivateKey.from_private_bytes(key)


def public_of(private: X25519PrivateKey) -> bytes:
    """Return the public X25519 key (32 bytes) of a private one."""
    return private.public_key().public_bytes_raw()


def agreed(private: X25519PrivateKey, public: bytes, info: bytes) -> bytes:
    """Return the 32 bytes that two key pairs share; `info` says what for, in which round and for whom.

    Raises:
        SecureAggregationError: the public key is none.
    """
    try:
        secret = private.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError as exc:
        raise SecureAggregationError("A client's public key is no key.", code="no-key") from exc
    return HKDF(algorithm=hashes.SHA256(), length=32, salt=None, info=info).derive(secret)


def seal(key: bytes, text: bytes) -> bytes:
    """Return `text` encrypted under a key that is used once."""
    return ChaCha20Poly1305(key).encrypt(_NONCE, text, None)


def unseal(key: bytes, sealed: bytes) -> bytes:
    """Return what `seal` encrypted.

    Raises:
        SecureAggregationError: it was not sealed with this key.
    """
    try:
        return ChaCha20Poly1305(key).decrypt(_NONCE, sealed, None)
    except (InvalidTag, ValueError) as exc:
        raise SecureAggregationError("Shares came that do not decrypt.", code="sealed-otherwise") from exc


@lru_cache(maxsize=2**16)
def is_signed(public: bytes, signature: bytes, text: bytes) -> bool:
    """Tell whether the owner of the public Ed25519 key (32 bytes) has signed `text`."""
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, text)
    except (InvalidSignature, ValueError):
        return False
    return True
