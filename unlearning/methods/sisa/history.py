"""What SISA's server keeps of each shard: its model before each slice, and how it was trained.

    key            entry of round n
    shard 3        parameters (d,): the shard model as it was before round n, the first one of a slice
    shard 3 log    rounds: in which the shard was trained, up to n; clients and since: who takes part, and
                   the round in which each first did (the newest two entries are kept)

A deletion rewrites the history of the shards that it touches and copies that of the others, into the store
that takes this one's place when the unlearned model is committed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import cast

import numpy as np

from unlearning.parameters import Vector
from unlearning.runtime.stores import Store, keep_newest, newest


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


def log_key(shard: int) -> str:
    """Return the key of a shard's log."""
    return f"shard {shard} log"


def read_log(store: Store, shard: int, *, before: int | None = None) -> ShardLog:
    """Return the newest log of a shard (of a round before `before`); an empty one where there is none."""
    found = newest(store, log_key(shard), before=before)
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
    keep_newest(store, log_key(shard), number, arrays, count=count)


def rewrite_log(store: Store, shard: int, log: ShardLog, *, into: Store) -> None:
    """Write `log` in place of the newest one of `store`, into the store `into`; older ones are left out."""
    numbers = store.rounds(log_key(shard))
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
