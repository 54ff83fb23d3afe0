"""Clients that are left out of rounds for a while, because a round could be committed only without them.

The first time for 3 rounds, then for twice as many as the time before, 48 at most; after 48 rounds without such a round
a client begins again at 3. Its own deletions are carried out meanwhile, and its requests are taken.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

FIRST_ROUNDS, MOST_ROUNDS = 3, 48
FINDING = "clients that were left out of rounds"
"""What a deletion's report calls them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspension:
    """The round until which a client is left out, and for how many rounds that was."""

    until: int
    rounds: int


def suspend(known: Mapping[str, Suspension], client: str, number: int) -> dict[str, Suspension]:
    """Return the suspensions after round `number`, in which `client` was left out of the mean; none if it is empty."""
    left = {name: one for name, one in known.items() if number <= one.until + MOST_ROUNDS}
    if client:
        rounds = min(2 * left[client].rounds, MOST_ROUNDS) if client in left else FIRST_ROUNDS
        left[client] = Suspension(until=number + rounds, rounds=rounds)
    return left


def suspended(known: Mapping[str, Suspension], number: int) -> dict[str, Suspension]:
    """Return who is left out of the round `number`."""
    return {client: one for client, one in sorted(known.items()) if number <= one.until}


def sentences(known: Mapping[str, Suspension], number: int) -> dict[str, str]:
    """Say by client that it is left out of the round `number`, and until when."""
    return {
        client: f"It is left out of rounds until round {one.until}: a round could be committed only without it."
        for client, one in suspended(known, number).items()
    }


def with_left_out(
    findings: Mapping[str, Any], known: Mapping[str, Suspension], number: int
) -> dict[str, Any]:
    """Return a deletion's findings with those clients named that are left out of the round `number`."""
    said = sentences(known, number)
    return {**findings, FINDING: {**findings.get(FINDING, {}), **said}} if said else dict(findings)
