"""The client's half of a round: five stages, each answered once.

    advertise → share → mask → confirm → unmask

Every function returns the round as it stands afterwards and what to send. A `ClientRound` is all that a client has to
keep between two stages; it holds secrets, and none once the round is unmasked. What the server says is checked here:
who takes part, that they are enough, what it sends of others, and that the others were told of the same survivors.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from unlearning.errors import SecureAggregationError
from unlearning.secure_aggregation.keys import agreed, is_signed, private_of, public_of, seal, unseal
from unlearning.secure_aggregation.ring import Ring, add_masks
from unlearning.secure_aggregation.shamir import SECRET_BYTES, SHARE_BYTES, Entropy, split
from unlearning.secure_aggregation.terms import (
    SMALLEST_COHORT,
    Advertisement,
    Cohort,
    RoundTerms,
    Unmasking,
)

ClientStage: TypeAlias = Literal["advertised", "shared", "masked", "confirmed", "unmasked"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What a client brings to every round.

    key: its registered Ed25519 key (32 bytes). roster: the public keys (32 bytes) of all clients that it knows, itself
        among them, given to it by others than the server. min_cohort: the fewest clients that it is one of.
    """

    client: str
    key: bytes = field(repr=False)
    roster: Mapping[str, bytes]
    min_cohort: int = SMALLEST_COHORT

    def sign(self, text: bytes) -> bytes:
        """Return the client's signature of `text`."""
        return Ed25519PrivateKey.from_private_bytes(self.key).sign(text)

    def check(self, client: str, signature: bytes, text: bytes) -> None:
        """Refuse what no client of the roster has signed.

        Raises:
            SecureAggregationError: it is not in the roster, or has not signed it.
        """
        if client not in self.roster or not is_signed(self.roster[client], signature, text):
            code = "wrong-signature" if client in self.roster else "not-in-roster"
            why = (
                "has not signed what it should"
                if client in self.roster
                else "is not in this site's roster of keys"
            )
            raise SecureAggregationError(f"Client {client} {why}.", code=code, client=client)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientRound:
    """A round at a client, as far as it has come. mask_key, channel_key, seed, shares (by giver): secrets."""

    stage: ClientStage = "advertised"
    terms: RoundTerms
    client: str
    mask_key: bytes = field(default=b"", repr=False)
    channel_key: bytes = field(default=b"", repr=False)
    seed: bytes = field(default=b"", repr=False)
    members: tuple[Advertisement, ...] = ()
    shares: Mapping[str, tuple[bytes, bytes]] = field(default_factory=dict, repr=False)
    survivors: tuple[str, ...] = ()

    def _enter(self, stage: ClientStage, after: ClientStage, **found: object) -> "ClientRound":
        if self.stage != after:
            raise SecureAggregationError(
                f"The round {self.terms.sequence} is {self.stage!r} here; no stage is answered twice.",
                code="other-stage",
            )
        return replace(self, stage=stage, **found)  # type: ignore[arg-type]

    @property
    def cohort(self) -> Cohort:
        """The clients that share in the round."""
        return Cohort.of(self.terms, self.members)


def advertise(
    identity: Identity, terms: RoundTerms, *, answered: int, entropy: Entropy
) -> tuple[ClientRound, Advertisement]:
    """Begin a round with fresh keys.

    answered: the largest sequence number that this client has sent a masked vector for.

    Raises:
        SecureAggregationError: it has answered this round, or a later one; or the terms protect nothing.
    """
    if terms.sequence <= answered:
        raise SecureAggregationError(
            f"This site has answered the round {answered} and answers none up to it again; {terms.sequence} is asked "
            "for. The server goes on with a later one; if it was set up from scratch, see "
            "docs/how-to-use-secure-aggregation.md.",
            code="answered-before",
        )
    if not 0.5 <= terms.threshold < 1:
        raise SecureAggregationError("threshold: below 0.5 it protects nothing.", code="low-threshold")
    mask, channel, seed = entropy(SECRET_BYTES), entropy(SECRET_BYTES), entropy(SECRET_BYTES)
    own = Advertisement(
        client=identity.client,
        mask_key=public_of(private_of(mask)),
        channel_key=public_of(private_of(channel)),
        seed_hash=hashlib.sha256(seed).digest(),
    )
    own = replace(own, signature=identity.sign(own.signed_text(terms)))
    begun = ClientRound(
        terms=terms,
        client=identity.client,
        members=(own,),
        mask_key=mask,
        channel_key=channel,
        seed=seed,
    )
    return begun, own


def share(
    state: ClientRound, identity: Identity, members: Sequence[Advertisement], entropy: Entropy
) -> tuple[ClientRound, dict[str, bytes]]:
    """Check who takes part; return shares of this client's secrets for each neighbour, encrypted.

    Raises:
        SecureAggregationError: a participant is invented or doubled, this client is changed, or they are too few.
    """
    if state.members[0] not in members or len({one.client for one in members}) < len(members):
        raise SecureAggregationError("The list of participants is not of this round.", code="wrong-members")
    for one in members:
        identity.check(one.client, one.signature, one.signed_text(state.terms))
    cohort = Cohort.of(state.terms, members)
    cohort.check_survivors(list(cohort.members), identity.min_cohort)
    holders, needed = cohort.holders(state.client), cohort.shares_needed(state.client)
    secrets = (state.seed, state.mask_key)
    of_seed, of_key = (split(one, list(holders.values()), needed, entropy) for one in secrets)
    channel = private_of(state.channel_key)
    sealed = {
        other: seal(_channel(state, channel, cohort, other, sends=True), of_seed[x] + of_key[x])
        for other, x in holders.items()
        if other != state.client
    }
    own = holders[state.client]
    kept = {state.client: (of_seed[own], of_key[own])}
    members = tuple(sorted(members, key=lambda one: one.client))
    return state._enter("shared", "advertised", members=members, shares=kept), sealed


def mask(
    state: ClientRound, identity: Identity, sealed: Mapping[str, bytes], work: bytes, values: Ring
) -> tuple[ClientRound, Ring]:
    """Return `values` (d + e,) under this client's own mask and those that it shares with the senders of `sealed`.

    work: the hash of what the server has asked; with a client that was asked something else no mask cancels.

    Raises:
        SecureAggregationError: shares come from no neighbour or do not decrypt; too few come; the length is another.
    """
    following = state._enter("masked", "shared")
    cohort = state.cohort
    if values.size != state.terms.length:
        raise SecureAggregationError(
            f"The round is of {state.terms.length:,} numbers, the work gave {values.size:,}.",
            code="wrong-length",
        )
    if not set(sealed) <= set(cohort.neighbours(state.client)):
        raise SecureAggregationError("Shares come from no neighbour of this round.", code="unknown-client")
    if len(sealed) + 1 < max(cohort.shares_needed(state.client), identity.min_cohort):
        raise SecureAggregationError("Shares of too few other clients came.", code="too-few-clients")
    shares = {**state.shares}
    seeds, channel, key = [(state.seed, False)], private_of(state.channel_key), private_of(state.mask_key)
    for other, text in sorted(sealed.items()):
        plain = unseal(_channel(state, channel, cohort, other, sends=False), text)
        if len(plain) != 2 * SHARE_BYTES:
            raise SecureAggregationError(f"The shares of client {other} are malformed.", code="unfit-shares")
        shares[other] = (plain[:SHARE_BYTES], plain[SHARE_BYTES:])
        seeds.append((pair_seed(key, cohort, state.client, other, work), other < state.client))
    masked = values.copy()
    add_masks(masked, seeds)
    return replace(following, shares=shares), masked


def confirm(state: ClientRound, identity: Identity, survivors: Sequence[str]) -> tuple[ClientRound, bytes]:
    """Sign whose vectors the server says that it has, once.

    Raises:
        SecureAggregationError: this client is not among them, or they are too few.
    """
    state.cohort.check_survivors(survivors, identity.min_cohort)
    if state.client not in survivors:
        raise SecureAggregationError("This client is not among the survivors.", code="unknown-client")
    following = state._enter("confirmed", "masked", survivors=tuple(sorted(survivors)))
    return following, identity.sign(state.cohort.survivors_text(survivors))


def unmask(
    state: ClientRound, identity: Identity, signatures: Mapping[str, bytes]
) -> tuple[ClientRound, Unmasking]:
    """Give away one share of each neighbour, once enough of the survivors have signed the same survivors.

    Raises:
        SecureAggregationError: too few have, or a signature is of other survivors.
    """
    done = state._enter("unmasked", "confirmed", mask_key=b"", channel_key=b"", seed=b"", shares={})
    cohort = state.cohort
    text = cohort.survivors_text(state.survivors)
    signed = {client: one for client, one in signatures.items() if client in state.survivors}
    for client, signature in signed.items():
        identity.check(client, signature, text)
    cohort.check_survivors(list(signed), identity.min_cohort)
    found = Unmasking(
        seeds={one: seed for one, (seed, _) in state.shares.items() if one in state.survivors},
        mask_keys={one: key for one, (_, key) in state.shares.items() if one not in state.survivors},
    )
    return done, found


def pair_seed(private: X25519PrivateKey, cohort: Cohort, one: str, other: str, work: bytes) -> bytes:
    """Return the seed of the mask that two clients share, from the mask key of `one`."""
    return agreed(private, cohort.members[other].mask_key, cohort.info("mask", *sorted((one, other)), work))


def _channel(
    state: ClientRound, private: X25519PrivateKey, cohort: Cohort, other: str, *, sends: bool
) -> bytes:
    """Return the key of one direction between this client and another one: it seals one message."""
    pair = (state.client, other) if sends else (other, state.client)
    return agreed(private, cohort.members[other].channel_key, cohort.info("channel", *pair))
