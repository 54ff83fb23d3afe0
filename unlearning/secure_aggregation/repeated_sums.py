"""Sums of what clients hold, asked for again: which clients may be in the next one.

A sum of updates is another one in each round, as the model is. A sum of data (the Gram matrices of exact ridge) is the
same in each, so two of them differ by what the clients hold that only one of them is over.
"""

from collections.abc import Iterable

from unlearning.errors import SecureAggregationError

LEAVING = "leaving"
"""The value of an instruction that names the clients that the sum lacks because all of theirs is forgotten."""


def check_repeated(
    before: Iterable[str], now: Iterable[str], *, leaving: Iterable[str] = (), fewest: int
) -> None:
    """Refuse a sum of data whose difference to the one before would show what a client holds.

    before: the clients of the sum before, none where there was none. leaving: whose data the sum is to lack.
    fewest: so many clients may be new at once, or more: what they hold is a sum as well.

    Raises:
        SecureAggregationError: a client is missing, or too few are new.
    """
    before, now = set(before), set(now)
    if missing := sorted(before - now - set(leaving)):
        raise SecureAggregationError(
            f"The sum would lack client(s) {', '.join(missing)}, and beside the sum before it show what they hold. "
            "It waits until they are there, or until they are forgotten.",
            code="cohort-changed",
        )
    new = sorted(now - before)
    if before and 0 < len(new) < fewest:
        raise SecureAggregationError(
            f"Client(s) {', '.join(new)} are new, and the sum beside the one before would show what they hold. At "
            f"least {fewest} must be new at once.",
            code="cohort-changed",
        )
