"""What is agreed before a round, what clients say in it, and what both sides compute of that alike."""

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache

from unlearning.errors import SecureAggregationError

COMPLETE_UP_TO = 50
"""Clients of a larger cohort share masks with some of the others only."""
SMALLEST_COHORT = 3
"""No client takes part among fewer, whatever the settings say."""
LEAVING = "leaving"
"""The value of an instruction that names the clients that the sum lacks because all of theirs is forgotten."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundTerms:
    """What a round is of; every key and signature is bound to all of it.

    run: of Flower. sequence: grows with every round that a client is asked for, and none is ever answered twice.
    purpose: what kind of work is summed. min_cohort: the fewest clients. threshold: over this share of the clients are
        needed to the end. length: of the vector, with what is counted (d + e,).
    clip_norm, max_weight, num_clients: what the fixed point is made for (`ring`).
    """

    federation: str
    run: int
    sequence: int
    purpose: str
    length: int
    num_clients: int
    min_cohort: int = SMALLEST_COHORT
    threshold: float = 2 / 3
    clip_norm: float = 1.0
    max_weight: float = 1.0

    def bytes_for(self, what: str, *parts: str | bytes) -> bytes:
        """Return the bytes that bind a key or a signature to `what` it is for in this round, and to `parts`."""
        texts = [part if isinstance(part, str) else part.hex() for part in parts]
        return json.dumps(["flower-unlearning secure aggregation 1", what, _hash_of(self), *texts]).encode()

    def needed(self, count: int) -> int:
        """Return how many of `count` clients are needed, of a cohort or of those that hold a secret's shares."""
        return math.floor(self.threshold * count + 1e-9) + 1


@lru_cache(maxsize=64)
def _hash_of(terms: RoundTerms) -> str:
    return hashlib.sha256(json.dumps(asdict(terms), sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Advertisement:
    """A client's public keys of a round and the hash of its own mask's seed, signed with its registered key."""

    client: str
    mask_key: bytes
    channel_key: bytes
    seed_hash: bytes
    signature: bytes = b""

    def signed_text(self, terms: RoundTerms) -> bytes:
        """Return what the signature is of."""
        return terms.bytes_for("keys", self.client, self.mask_key, self.channel_key, self.seed_hash)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unmasking:
    """Shares that a client gives away: of the seeds of survivors, of the mask keys of those that dropped out."""

    seeds: Mapping[str, bytes] = field(default_factory=dict)
    mask_keys: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Cohort:
    """The clients whose keys were advertised in a round, sorted, and who shares masks with whom."""

    terms: RoundTerms
    members: Mapping[str, Advertisement]
    digest: bytes
    _ring: Sequence[str]

    @classmethod
    def of(cls, terms: RoundTerms, advertised: Iterable[Advertisement]) -> "Cohort":
        """Return the cohort of these advertisements.

        The graph comes of all clients' fresh keys, so that none chooses a client's neighbours.
        """
        return _cohort(terms, tuple(sorted(advertised, key=lambda one: one.client)))

    def neighbours(self, client: str) -> list[str]:
        """Return those with which a client shares masks, sorted: all others, or the nearest on a random ring."""
        count = len(self._ring)
        if degree(count) == count - 1:
            return [other for other in self.members if other != client]
        at, reach = self._ring.index(client), degree(count) // 2
        return sorted(self._ring[(at + step) % count] for step in range(-reach, reach + 1) if step)

    def holders(self, client: str) -> dict[str, int]:
        """Return those that hold shares of a client's secrets, itself among them, with the number of each."""
        numbers = {name: number for number, name in enumerate(self.members, start=1)}
        return {name: numbers[name] for name in sorted([client, *self.neighbours(client)])}

    def shares_needed(self, client: str) -> int:
        """Return how many shares give a client's secret."""
        return self.terms.needed(len(self.holders(client)))

    def info(self, what: str, *parts: str | bytes) -> bytes:
        """Return what a key of two of its clients is bound to."""
        return self.terms.bytes_for(what, self.digest, *parts)

    def survivors_text(self, survivors: Iterable[str]) -> bytes:
        """Return what clients sign of the survivors."""
        return self.terms.bytes_for("survivors", self.digest, *sorted(survivors))

    def check_survivors(self, survivors: Sequence[str], min_cohort: int = 0) -> None:
        """Refuse survivors that are too few, or not of the cohort.

        Raises:
            SecureAggregationError: says which.
        """
        if len(set(survivors)) != len(survivors) or not set(survivors) <= set(self.members):
            raise SecureAggregationError(
                "Clients are named that are not of the cohort.", code="unknown-client"
            )
        fewest = max(self.terms.needed(len(self.members)), self.terms.min_cohort, min_cohort, SMALLEST_COHORT)
        if len(survivors) < fewest:
            found = f"{len(survivors)} of {len(self.members)} clients are left, {fewest} are needed"
            raise SecureAggregationError(f"{found}; nothing is revealed.", code="too-few-clients")


@lru_cache(maxsize=4)
def _cohort(terms: RoundTerms, members: tuple[Advertisement, ...]) -> Cohort:
    texts = [one.signed_text(terms) for one in members]
    digest = hashlib.sha256(b"".join(hashlib.sha256(text).digest() for text in texts)).digest()
    by_client = {one.client: one for one in members}
    ring = sorted(by_client, key=lambda name: hashlib.sha256(digest + name.encode()).digest())
    return Cohort(terms, by_client, digest, ring)


def degree(count: int) -> int:
    """Return with how many others each of `count` clients shares masks.

    All up to 50. Above, 12.8 log₂ n: where a third of the clients works with the server, or a tenth drops out, any
    client's secrets are found, or any is lost, with a probability below 2^−40 for 300 to 1,000 clients.
    Source: Bell et al., Section 4, with the exact hypergeometric tails.
    """
    return count - 1 if count <= COMPLETE_UP_TO else min(count - 1, 2 * math.ceil(6.4 * math.log2(count)))


def check_repeated(
    before: Iterable[str], now: Iterable[str], *, leaving: Iterable[str] = (), fewest: int
) -> None:
    """Refuse a sum of data whose difference to the one before would show what a client holds.

    A sum of updates is another one in each round, as the model is. A sum of data (the Gram matrices of exact ridge) is
    the same in each, so two of them differ by what the clients hold that only one of them is over.

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
