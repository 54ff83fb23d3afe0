"""The server's half of a round: it collects what clients send at each stage, and learns the sum of the last one.

    collect keys → collect shares → collect masked vectors → collect signatures → sum

At each stage the round goes on with those that answered; where they are too few it raises and nothing is revealed. It
is not kept: after a crash of the server a round is given up, and another one begins.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from unlearning.errors import SecureAggregationError, UpdateRefused
from unlearning.secure_aggregation.client_round import pair_seed
from unlearning.secure_aggregation.keys import private_of, public_of
from unlearning.secure_aggregation.ring import Ring, add_masks
from unlearning.secure_aggregation.shamir import SHARE_BYTES, join
from unlearning.secure_aggregation.terms import Advertisement, Cohort, RoundTerms, Unmasking


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerRound:
    """A round at the server, as far as it has come; each step raises `SecureAggregationError` where they are too few.

    sealed: by sender and receiver, shares that the server cannot read. survivors: whose vector is in `total` (d + e,).
    """

    terms: RoundTerms
    cohort: Cohort
    sealed: Mapping[str, Mapping[str, bytes]] = field(default_factory=dict)
    survivors: tuple[str, ...] = ()
    total: Ring = field(default_factory=lambda: np.zeros(0, dtype=np.uint64))

    @classmethod
    def begin(cls, terms: RoundTerms, advertised: Mapping[str, Advertisement]) -> "ServerRound":
        """Return the round of those that advertised keys."""
        cohort = Cohort.of(terms, advertised.values())
        cohort.check_survivors(list(cohort.members))
        return cls(terms=terms, cohort=cohort)

    def with_shares(self, sealed: Mapping[str, Mapping[str, bytes]]) -> "ServerRound":
        """Go on with those that sent shares for their neighbours."""
        complete = {
            sender: shares
            for sender, shares in sealed.items()
            if sender in self.cohort.members and set(shares) == set(self.cohort.neighbours(sender))
        }
        self.cohort.check_survivors(list(complete))
        return replace(self, sealed=complete)

    def shares_for(self, client: str) -> dict[str, bytes]:
        """Return what neighbours sealed for a client, by sender."""
        return {sender: shares[client] for sender, shares in self.sealed.items() if client in shares}

    def check_masked(self, client: str, values: Ring) -> Ring:
        """Return a client's masked vector where it can enter.

        Raises:
            UpdateRefused: it is of another length or kind, or not of a client that shared its secrets.
        """
        if client not in self.sealed:
            raise UpdateRefused("It shared no secrets in this round.", code="unknown-client")
        if values.shape != (self.terms.length,) or values.dtype != np.uint64:
            raise UpdateRefused(f"Its vector is {values.dtype} of {values.shape}.", code="wrong-length")
        return values

    def with_masked(self, masked: Mapping[str, Ring]) -> "ServerRound":
        """Go on with those whose masked vector came."""
        self.cohort.check_survivors(sorted(masked))
        total = np.zeros(self.terms.length, dtype=np.uint64)
        for values in masked.values():
            total += values
        return replace(self, survivors=tuple(sorted(masked)), total=total)

    def sum(self, unmasking: Mapping[str, Unmasking], work: bytes) -> Ring:
        """Return the sum (d + e,) of the survivors' vectors. work: the hash of what they were asked.

        Raises:
            SecureAggregationError: shares are too few, or do not give what was advertised.
        """
        dropped = sorted(set(self.sealed) - set(self.survivors))
        seeds = self._joined(unmasking, self.survivors, "seeds")
        keys = self._joined(unmasking, dropped, "mask_keys")
        masks = [(seed, True) for seed in seeds.values()]
        for client, seed in seeds.items():
            if hashlib.sha256(seed).digest() != self.cohort.members[client].seed_hash:
                raise _unfit(client)
        for client, key in keys.items():
            private = private_of(key)
            if public_of(private) != self.cohort.members[client].mask_key:
                raise _unfit(client)
            for other in set(self.cohort.neighbours(client)) & set(self.survivors):
                seed = pair_seed(private, self.cohort, client, other, work)
                masks.append((seed, client > other))  # `other` did the opposite of `client`
        total = self.total.copy()
        add_masks(total, masks)
        return total

    def _joined(
        self, unmasking: Mapping[str, Unmasking], clients: Iterable[str], kind: str
    ) -> dict[str, bytes]:
        """Return the secret of each of these clients, of the shares that its holders gave away."""
        found = {}
        for client in clients:
            given = {
                number: share
                for holder, number in self.cohort.holders(client).items()
                if holder in unmasking and (share := getattr(unmasking[holder], kind).get(client))
            }
            if any(len(share) != SHARE_BYTES for share in given.values()):
                raise _unfit(client)
            found[client] = join(given, self.cohort.shares_needed(client))
        return found


def _unfit(client: str) -> SecureAggregationError:
    return SecureAggregationError(
        f"A site sent a wrong share of client {client}'s secret.", code="unfit-shares"
    )
