"""What all noised corrections that a peer knows of amount to: (ε, δ) over sequential deletions.

Each correction carries the release that its noise makes (`AccountedRelease`), so every peer can add up what it knows
of without asking anybody. Corrections of one request add up too: whoever has seen all models has seen all of them.
"""

from typing import Any

from client.peer.gossip import RELEASE, Kind
from client.peer.record import Record
from unlearning.certified.privacy_accountant import Account, AccountedRelease
from unlearning.runtime.json_codec import from_plain

_SHOWN = ("num_releases", "spent_epsilon", "spent_delta", "delta", "budget_epsilon", "basis", "unmet")


def spent_budget(record: Record, *, delta: float, epsilon: float) -> dict[str, Any] | None:
    """Return how much of (`epsilon`, `delta`) the known corrections with noise have used up; None without noise."""
    releases = [
        from_plain(AccountedRelease, account[RELEASE], exactly=True)
        for request in record.of(Kind.REQUEST)
        for correction in record.of(Kind.CORRECTION, request.subject)
        if RELEASE in (account := correction.values.get("account", {}))
    ]
    if not releases:
        return None
    values = Account(releases=tuple(releases), delta=delta, epsilon=epsilon or None).values()
    return {name: values[name] for name in _SHOWN}
