"""Shamir's secret sharing, against known values and a dense oracle."""

from itertools import combinations

import pytest

from tests.unit.unlearning.secure_aggregation.rounds import Entropy
from unlearning.errors import SecureAggregationError
from unlearning.secure_aggregation.shamir import PRIME, SHARE_BYTES, join, split


def constant(value: int) -> bytes:
    return value.to_bytes(SHARE_BYTES, "big")


def test_the_shares_of_a_known_polynomial() -> None:
    """f(x) = 1234 + 166 x + 94 x², the example of the literature, over this field."""
    factors = iter([166, 94])
    shares = split((1234).to_bytes(32, "big"), [1, 2, 3, 4, 5, 6], 3, lambda _: constant(next(factors)))
    assert [int.from_bytes(one, "big") for one in shares.values()] == [1494, 1942, 2578, 3402, 4414, 5614]


def test_any_threshold_of_the_shares_give_the_secret_and_fewer_do_not() -> None:
    """All subsets of 3 of 5, with coefficients as large as the field."""
    secret = Entropy("secret")(32)
    shares = split(secret, [1, 2, 5, 8, 9], 3, Entropy("coefficients"))
    for some in combinations(shares, 3):
        assert join({x: shares[x] for x in some}, 3) == secret
    with pytest.raises(SecureAggregationError, check=lambda exc: exc.code == "too-few-shares"):
        join({x: shares[x] for x in (1, 2)}, 3)


def test_the_oracle_that_solves_for_all_coefficients_agrees() -> None:
    """Gaussian elimination modulo the prime gives the same secret as Lagrange's factors."""
    secret, holders = Entropy("other")(32), [3, 4, 7, 11]
    shares = split(secret, holders, 4, Entropy("more"))
    rows = [
        [pow(x, power, PRIME) for power in range(4)] + [int.from_bytes(shares[x], "big")] for x in holders
    ]
    for column in range(4):
        inverse = pow(rows[column][column], -1, PRIME)
        rows[column] = [value * inverse % PRIME for value in rows[column]]
        for other in range(4):
            if other != column:
                rows[other] = [
                    (a - rows[other][column] * b) % PRIME
                    for a, b in zip(rows[other], rows[column], strict=True)
                ]
    assert rows[0][4].to_bytes(32, "big") == secret == join(shares, 4)


def test_shares_of_different_secrets_do_not_fit() -> None:
    """Mixed shares give a number beyond any secret, but for one case in 2^265."""
    one, other = (split(Entropy(name)(32), [1, 2], 2, Entropy(name + "x")) for name in "ab")
    with pytest.raises(SecureAggregationError, check=lambda exc: exc.code == "unfit-shares"):
        join({1: one[1], 2: other[2]}, 2)
