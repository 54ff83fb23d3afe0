"""Whole rounds without any network, for tests: clients that drop out at a stage, or do as a test says."""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from unlearning.secure_aggregation import client_round as at_client
from unlearning.secure_aggregation.client_round import ClientRound, Identity
from unlearning.secure_aggregation.ring import Ring
from unlearning.secure_aggregation.server_round import ServerRound
from unlearning.secure_aggregation.terms import Advertisement, RoundTerms, Unmasking

WORK = b"the work"


class Entropy:
    """A reproducible source of bytes."""

    def __init__(self, seed: object) -> None:
        self.state = str(seed).encode()

    def __call__(self, count: int) -> bytes:
        found = b""
        while len(found) < count:
            self.state = hashlib.sha256(self.state).digest()
            found += self.state
        return found[:count]


def identities(names: Sequence[str], min_cohort: int = 3) -> dict[str, Identity]:
    """Return the identities of clients that know each other."""
    keys = {name: hashlib.sha256(name.encode()).digest() for name in names}
    roster = {
        name: Ed25519PrivateKey.from_private_bytes(key).public_key().public_bytes_raw()
        for name, key in keys.items()
    }
    return {
        name: Identity(client=name, key=key, roster=roster, min_cohort=min_cohort)
        for name, key in keys.items()
    }


def terms_of(count: int, length: int = 8, **changes: Any) -> RoundTerms:
    """Return the terms of a round of so many clients."""
    given = {"federation": "test", "run": 1, "sequence": 5, "purpose": "train"}
    return RoundTerms(**{**given, "length": length, "num_clients": count, "threshold": 0.5, **changes})


def values_of(name: str, length: int = 8) -> Ring:
    """Return a client's vector: any numbers of the ring."""
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big")
    return np.random.default_rng(seed).integers(0, 2**64, size=length, dtype=np.uint64)


class Round:
    """A round of clients, stage by stage; `drop` are clients that are gone from then on."""

    def __init__(self, count: int = 4, *, length: int = 8, **changes: Any) -> None:
        self.names = [f"c{number:04}" for number in range(count)]
        self.identities = identities(self.names)
        self.terms = terms_of(count, length, **changes)
        self.clients: dict[str, ClientRound] = {}
        self.members: list[Advertisement] = []
        self.masked: dict[str, Ring] = {}
        self.signatures: dict[str, str] = {}
        self.unmasking: dict[str, Unmasking] = {}

    def alive(self, drop: Collection[str]) -> list[str]:
        self.names = [name for name in self.names if name not in drop]
        return self.names

    def advertise(self, drop: Collection[str] = ()) -> None:
        for name in self.alive(drop):
            self.clients[name], own = at_client.advertise(
                self.identities[name], self.terms, answered=0, entropy=Entropy(name)
            )
            self.members.append(own)
        self.server = ServerRound.begin(self.terms, {one.client: one for one in self.members})

    def share(self, drop: Collection[str] = ()) -> None:
        sealed = {}
        for name in self.alive(drop):
            self.clients[name], sealed[name] = at_client.share(
                self.clients[name], self.identities[name], self.members, Entropy(f"{name} shares")
            )
        self.server = self.server.with_shares(sealed)

    def mask(self, drop: Collection[str] = (), work: Mapping[str, bytes] | None = None) -> None:
        for name in self.alive(drop):
            self.clients[name], self.masked[name] = at_client.mask(
                self.clients[name],
                self.identities[name],
                self.server.shares_for(name),
                (work or {}).get(name, WORK),
                values_of(name, self.terms.length),
            )
        self.server = self.server.with_masked(self.masked)

    def confirm(self, drop: Collection[str] = ()) -> None:
        for name in self.alive(drop):
            self.clients[name], self.signatures[name] = at_client.confirm(
                self.clients[name], self.identities[name], self.server.survivors
            )

    def unmask(self, drop: Collection[str] = ()) -> Ring:
        for name in self.alive(drop):
            self.clients[name], self.unmasking[name] = at_client.unmask(
                self.clients[name], self.identities[name], self.signatures
            )
        return self.server.sum(self.unmasking, WORK)

    def until(self, stage: str) -> "Round":
        """Go through the stages before one."""
        for name in ("advertise", "share", "mask", "confirm", "unmask"):
            if name == stage:
                return self
            getattr(self, name)()
        return self

    def expected(self) -> Ring:
        return sum(
            (values_of(name, self.terms.length) for name in self.server.survivors),
            start=np.zeros(self.terms.length, dtype=np.uint64),
        )


def forged(member: Advertisement, name: str) -> Advertisement:
    """Return a participant whom the server has invented."""
    return replace(member, client=name)
