"""SISA in training rounds: every client belongs to a shard and a slice, every shard is trained apart.

What the server keeps of each shard is its model before each slice, and how it was trained:

    key            entry of round n
    shard 3        parameters (d,): the shard model as it was before round n, the first one of a slice
    shard 3 log    rounds: in which the shard was trained, up to n; clients and since: who takes part, and
                   the round in which each first did (the newest two entries are kept)

A deletion rewrites the history of the shards that it touches and copies that of the others, into the store
that takes this one's place when the unlearned model is committed.

Source: Bourtoule et al., "Machine Unlearning", IEEE S&P 2021; the method itself is in `unlearning.methods.sisa`.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, cast

import numpy as np
from pydantic import Field

from unlearning.errors import DataError
from unlearning.methods.preparation import FederatedRound, LocalRound, Preparation
from unlearning.parameters import Models, Vector, weighted_mean
from unlearning.requests import Exclusions
from unlearning.runtime.stores import Store, keep_newest, newest
from unlearning.tasks.ensemble import part, shard_task
from unlearning.tasks.task import Task
from unlearning.training import Trained, train


class Sharding(Preparation):
    """Each shard is a federation of its own; the server keeps its model from before each slice."""

    from_the_start = True
    replaces_training = True
    has_own_retraining = True
    stands_alone = True
    fixed = frozenset({"shards", "slices", "slice_rounds"})
    keeps = "the server each shard's model as it was before each slice"

    shards: int = Field(default=2, ge=1, le=1000)
    slices: int = Field(default=1, ge=1, le=1000, description="of each shard")
    slice_rounds: int = Field(default=1, ge=1, description="rounds between a slice and the next")
    vote: Literal["majority", "mean"] = "majority"

    def place(self, client_id: str) -> tuple[int, int]:
        """Return a client's shard and slice: round robin by ids that are numbers, by a hash of other ids."""
        if client_id.isascii() and client_id.isdecimal():
            number = int(client_id)
        else:
            number = int.from_bytes(hashlib.sha256(client_id.encode()).digest()[:8], "big")
        return number % self.shards, number // self.shards % self.slices

    def slice_of(self, number: int) -> int:
        """Return the last slice that takes part in round `number`."""
        return min((number - 1) // self.slice_rounds, self.slices - 1)

    def train(self, work: LocalRound, ordinary: Callable[[], Trained]) -> Trained:
        """Train the client's own shard; the others go back as they came.

        Raises:
            DataError: the model is no ensemble.
        """
        where = part(work.model, self.place(work.client_id)[0], self.shards)
        trained = train(task_of_shard(work.task), work.model[where], work.examples, work.training)
        vector = work.model.copy()
        vector[where] = trained.parameters
        return replace(trained, parameters=vector)

    def combine(self, before: Vector, models: Models) -> Vector:
        """Average within each shard that was trained; the others stay. A shard that was trained votes."""
        after = before.copy()
        for shard in range(self.shards):
            where = part(before, shard, self.shards)
            own = {
                client: (count, model[where])
                for client, (count, model) in models.items()
                if count and self.place(client)[0] == shard
            }
            if own:
                after[where] = weighted_mean(own)
                after[shard] = 1
        return after

    def keep(self, done: FederatedRound, store: Store) -> None:
        """Keep the shard models at the first round of a slice, and who trained in which round."""
        for shard in range(self.shards):
            kept = [number for number in store.rounds(model_key(shard)) if number < done.number]
            if not kept or self.slice_of(kept[-1]) < self.slice_of(done.number):
                model = done.before[part(done.before, shard, self.shards)]
                store.save(model_key(shard), done.number, {"parameters": model})
            trained = [c for c, (count, _) in done.models.items() if count and self.place(c)[0] == shard]
            if trained:
                log = read_log(store, shard, before=done.number)
                write_log(store, shard, done.number, log.after(done.number, trained))

    def takes_part(self, client_id: str, number: int) -> bool:
        """Return whether its slice has begun."""
        return self.place(client_id)[1] <= self.slice_of(number)

    def prepared_task(self, task: Task) -> Task:
        """Return an ensemble of the same model."""
        return shard_task(task, self.shards, self.vote)

    def problems(self, task: Task, num_clients: int) -> list[str]:
        """Say where there is no client for every shard."""
        if self.shards <= num_clients:
            return []
        return [f"prepare: sisa: {self.shards} shards, and num-clients is {num_clients}; use fewer."]

    def erase(self, store: Store, forgotten: Exclusions, *, until: int, rewritten: bool) -> bool:
        """Erase nothing: only SISA itself can forget in a federation of shards, and it rewrites the history."""
        return True


def task_of_shard(task: Task) -> Task:
    """Return what one shard learns.

    Raises:
        DataError: the model is no ensemble.
    """
    if task.shard is None:
        raise DataError("SISA trains an ensemble of shards, and the model here is a single one.")
    return task.shard


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardLog:
    """How one shard was trained.

    rounds: the rounds in which it was, ascending. since: by client, the first round that it took part in.
    """

    rounds: tuple[int, ...] = ()
    since: Mapping[str, int] = field(default_factory=dict)

    def after(self, number: int, clients: list[str]) -> "ShardLog":
        """Return the log after a round in which `clients` trained."""
        return ShardLog(
            rounds=(*self.rounds, number),
            since={**dict.fromkeys(sorted(clients), number), **self.since},
        )

    def without(self, gone: set[str]) -> "ShardLog":
        """Return the log without the clients `gone`; the rounds stay."""
        return replace(self, since={client: n for client, n in self.since.items() if client not in gone})


def model_key(shard: int) -> str:
    """Return the key of a shard's models."""
    return f"shard {shard}"


def _log_key(shard: int) -> str:
    return f"shard {shard} log"


def read_log(store: Store, shard: int, *, before: int | None = None) -> ShardLog:
    """Return the newest log of a shard (of a round before `before`); an empty one where there is none."""
    found = newest(store, _log_key(shard), before=before)
    if found is None:
        return ShardLog()
    arrays = found[1]
    since = zip(arrays["clients"].tolist(), arrays["since"].tolist(), strict=True)
    return ShardLog(rounds=tuple(arrays["rounds"].tolist()), since=dict(since))


def write_log(store: Store, shard: int, number: int, log: ShardLog, *, count: int = 2) -> None:
    """Write the log of round `number`; the newest `count` are kept."""
    clients = sorted(log.since)
    arrays = {
        "rounds": np.array(log.rounds, dtype=np.int64),
        "clients": np.array(clients, dtype=np.str_),
        "since": np.array([log.since[client] for client in clients], dtype=np.int64),
    }
    keep_newest(store, _log_key(shard), number, arrays, count=count)


def rewrite_log(store: Store, shard: int, log: ShardLog, *, into: Store) -> None:
    """Write `log` in place of the newest one of `store`, into the store `into`; older ones are left out."""
    numbers = store.rounds(_log_key(shard))
    if numbers:
        write_log(into, shard, numbers[-1], log, count=1)


def model_before(store: Store, shard: int, number: int) -> Vector:
    """Return the shard model (d,) as it was before round `number`, one of those that are kept."""
    return cast(Vector, store.load(model_key(shard), number)["parameters"])


def copy_models(store: Store, shard: int, *, into: Store, until: int | None = None) -> None:
    """Copy the kept models of a shard, those of a round after `until` excepted."""
    for number in store.rounds(model_key(shard)):
        if until is None or number <= until:
            into.save(model_key(shard), number, store.load(model_key(shard), number))
