"""Shamir's secret sharing of 32 bytes over the prime field of 2^521 − 1.

Source: Shamir, "How to Share a Secret", 1979.

    f(x) = s + a_1 x + … + a_{t−1} x^{t−1}      the share of the holder x ≥ 1 is f(x); t of them give s = f(0)

No library fits: PyCryptodome's, in GF(2^128), takes two polynomials a key and 10 ms for 20 of 30 shares, this 0.1 ms.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

from unlearning.errors import SecureAggregationError

PRIME = 2**521 - 1
SECRET_BYTES, SHARE_BYTES = 32, 66

Entropy = Callable[[int], bytes]
"""Returns so many unpredictable bytes, as `os.urandom`."""


def split(secret: bytes, holders: Sequence[int], threshold: int, entropy: Entropy) -> dict[int, bytes]:
    """Return a share (66 bytes) of a secret (32 bytes) for each of the holders, distinct numbers from 1."""
    assert len(secret) == SECRET_BYTES, "longer secrets would not come back"
    assert 1 <= threshold <= len(set(holders)) == len(holders), "no such sharing"
    factors = [int.from_bytes(secret, "big")]
    factors += [int.from_bytes(entropy(SHARE_BYTES), "big") % PRIME for _ in range(threshold - 1)]
    return {x: _value(factors, x).to_bytes(SHARE_BYTES, "big") for x in holders}


def join(shares: Mapping[int, bytes], threshold: int) -> bytes:
    """Return the secret of which `threshold` of the given shares are, those of the smallest holders.

    Raises:
        SecureAggregationError: they are too few, or do not belong together.
    """
    if len(shares) < threshold:
        raise SecureAggregationError(
            f"{len(shares)} shares of a secret came, {threshold} are needed.", code="too-few-shares"
        )
    holders = tuple(sorted(shares)[:threshold])
    values = [int.from_bytes(shares[x], "big") for x in holders]
    secret = sum(f * y for f, y in zip(_at_zero(holders), values, strict=True)) % PRIME
    if secret >> (8 * SECRET_BYTES):
        raise SecureAggregationError("Shares of a secret do not belong together.", code="unfit-shares")
    return secret.to_bytes(SECRET_BYTES, "big")


def _value(factors: Sequence[int], x: int) -> int:
    total = 0
    for factor in reversed(factors):
        total = (total * x + factor) % PRIME
    return total


@lru_cache(maxsize=4096)
def _at_zero(holders: tuple[int, ...]) -> tuple[int, ...]:
    """Return Lagrange's factors Π_{m≠j} m / (m − j) of each holder j at 0."""
    found = []
    for j in holders:
        above = below = 1
        for m in holders:
            if m != j:
                above, below = above * m % PRIME, below * (m - j) % PRIME
        found.append(above * pow(below, -1, PRIME) % PRIME)
    return tuple(found)
