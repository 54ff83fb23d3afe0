"""HF-online's options, and what its server keeps: a vector of each forgettable client and the records of all rounds.

key            entry of round n
client's id    its vector (d,) after round n, encrypted where there is a key; or a mark that it has none
""             the records of all rounds until n (`hf_online_records`)
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from pydantic import Field, model_validator

from unlearning.certified.sealed_vectors import read_key, unseal
from unlearning.certified.sensitivity import Weighting
from unlearning.methods.hf_online_records import KeptRound, rounds_of
from unlearning.methods.preparation import ClientPreparation, NoiseBudget
from unlearning.parameters import Vector
from unlearning.requests import Exclusions
from unlearning.runtime.stores import Store, newest

GIB = 2**30
LENGTHS_KEY = ""
"""The key of the records: no client has an empty id."""
_LOST = "lost"


class CarriedVectorOptions(ClientPreparation):
    """Who may be forgotten, and how the vectors are carried and kept."""

    weighting: Weighting = Field(
        default=Weighting.RENORMALISED, description="the others' weights in the retraining that is meant"
    )
    max_gib: float = Field(default=1.0, gt=0, description="one set of vectors may take so much")
    key_file: str = Field(default="", description="on the server: encrypts the kept vectors")
    feature_norm: float = Field(
        default=0.0,
        ge=0,
        description="no client trains where an input's ‖(x, 1)‖ is larger; for a proven bound",
    )
    sigma: float | None = Field(default=None, gt=0, description="noise on every unlearned model")
    epsilon: float | None = Field(default=None, gt=0, description="budget of all deletions together")
    delta: float | None = Field(default=None, gt=0, lt=1, description="δ of the noise")
    sensitivity: float | None = Field(
        default=None,
        gt=0,
        description="where no bound is proven: ‖unlearned − retrained‖, as measured elsewhere",
    )

    @model_validator(mode="after")
    def _whole_budget(self) -> "CarriedVectorOptions":
        if len({self.sigma is None, self.epsilon is None, self.delta is None}) > 1:
            raise ValueError("a budget needs sigma, epsilon and delta; give all three or none")
        if self.sensitivity is not None and self.sigma is None:
            raise ValueError("sensitivity is of use with sigma, epsilon and delta only; give all or none")
        return self

    @property
    def noise_budget(self) -> NoiseBudget | None:
        """Return the budget, where it is given."""
        if self.sigma is None or self.epsilon is None or self.delta is None:
            return None
        return NoiseBudget(
            sigma=self.sigma, epsilon=self.epsilon, delta=self.delta, sensitivity=self.sensitivity
        )

    def key(self) -> bytes | None:
        """Return what the kept vectors are encrypted with.

        Raises:
            ConfigurationError: the key file cannot be used.
        """
        return read_key(Path(self.key_file)) if self.key_file else None


def kept_vector(options: CarriedVectorOptions, store: Store, client: str) -> Vector | None:
    """Return the client's newest vector (d,); None where there is none, or a mark in its place.

    Raises:
        CheckpointError: it cannot be read, or not with this key.
        ConfigurationError: the key file cannot be used.
    """
    found = newest(store, client)
    if found is None or _LOST in found[1]:
        return None
    return unseal(found[1], client, options.key())


def kept_rounds(options: CarriedVectorOptions, store: Store) -> tuple[KeptRound, ...]:
    """Return all rounds so far of which there is a record, in their order.

    Raises:
        CheckpointError: they cannot be read, or not with this key.
        ConfigurationError: the key file cannot be used.
    """
    return rounds_of(kept_records(store, options.key()))


def kept_records(store: Store, key: bytes | None, *, before: int | None = None) -> str:
    """Return the text of all rounds' records (before a round); empty where there is none."""
    found = newest(store, LENGTHS_KEY, before=before)
    return "" if found is None else unseal(found[1], LENGTHS_KEY, key).tobytes().decode()


def kept_clients(store: Store) -> list[str]:
    """Return the clients of which something is kept."""
    return [key for key in store.list_keys() if key != LENGTHS_KEY]


def vectors_before(
    options: CarriedVectorOptions, number: int, store: Store, forgotten: Exclusions
) -> Mapping[str, Vector]:
    """Return the vectors with which the round `number` begins, in the order of client ids."""
    key, known = options.key(), {}
    for client in kept_clients(store):
        found = newest(store, client, before=number)
        if found is None or _LOST in found[1] or not options.has(client) or forgotten.is_forgotten(client):
            continue
        known[client] = unseal(found[1], client, key)
    return known


def mark_lost(store: Store, client: str, number: int) -> None:
    """Put a mark in the place of whatever is kept of the client; done twice it changes nothing."""
    found = newest(store, client, before=number + 1)
    if found is not None and _LOST in found[1]:
        number = found[0]
    else:
        store.save(client, number, {_LOST: np.array(1)})
    store.erase_rounds(client, until=number - 1)
