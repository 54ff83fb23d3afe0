"""How far one client may pull the mean of a round, and which client pulled it too far.

The *influence* of a client is its count of examples times the length of its change of the model. Count and length have
bounds of their own, ten times the median each, so that one client of ten could still weigh more than all others. Here
the client with the most influence is compared with the median influence of the others:

    bound    max-influence-factor times that median, but no more than a third of what all others have by it, and no
             less than the median itself: of ten clients 3 medians, of five 4/3, of three 1.
    held     over the bound it still counts in full where it does no harm: where the server's test loss with it is at
             most a hundredth over that without it. Without test examples, where its change points where those of the
             others point. Else its count is reduced until its influence is that of the bound.

So a site that really has nine times the data counts in full as long as it trains as the others do, and one that does
not keeps a vote.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Protocol

import numpy as np

from unlearning.parameters import Vector

FEWEST = 3
"""Of two clients it cannot be known which one is wrong."""
AGREEMENT = 0.1
"""The least cosine of two changes that point the same way: a random direction has 0.01 among 10,000 parameters."""
LOSS_SLACK = 0.01
"""So much higher, relatively, the test loss of one more honest client may be by chance."""
MOST_TRIED = 32
"""In a rejected round so many clients, those with the most influence, are left out in turn: each costs a test."""


class Judge(Protocol):
    """What the server's own test examples say of a round's model."""

    def loss(self, model: Vector) -> float | None:
        """Return the loss on the test examples; None where there are none."""

    def problem(self, model: Vector) -> str:
        """Say why the model may not be committed; empty if it may."""


@dataclass(frozen=True, slots=True)
class Excess:
    """A client whose influence is over its bound."""

    client: str
    influence: float
    bound: float


def influences(weights: Mapping[str, float], changes: Mapping[str, Vector]) -> dict[str, float]:
    """Compute the weight times ‖Δ_i‖ for each change Δ_i (d,), in float64."""
    return {
        client: weights[client] * float(np.linalg.norm(change.astype(np.float64)))
        for client, change in changes.items()
    }


def excess(found: Mapping[str, float], factor: float) -> Excess | None:
    """Return the client with the most influence if it is over its bound; None for a `factor` of 0, or too few clients.

    The most influential is furthest over its bound, as the median of the others is the lowest for it. A median of 0 is
    no bound: most clients had nothing to change.
    """
    if factor <= 0 or len(found) < FEWEST:
        return None
    client = max(sorted(found), key=lambda name: found[name])
    usual = median(value for name, value in found.items() if name != client)
    bound = usual * max(1.0, min(factor, (len(found) - 1) / 3))
    return Excess(client, found[client], bound) if 0 < bound < found[client] else None


def agrees(client: str, weights: Mapping[str, float], changes: Mapping[str, Vector]) -> bool:
    """Tell whether a client's change points where the weighted sum of the others' changes points."""
    own = changes[client].astype(np.float64)
    others = np.zeros_like(own)
    for other, change in sorted(changes.items()):
        if other != client:
            others += weights[other] * change.astype(np.float64)
    lengths = float(np.linalg.norm(own) * np.linalg.norm(others))
    return float(own @ others) >= AGREEMENT * lengths
