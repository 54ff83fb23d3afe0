"""The memory of a virtual client, in Flower's `context.state`: it lives as long as the run."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, RecordDict

from unlearning.errors import CheckpointError
from unlearning.pseudonyms import merge_keyed
from unlearning.requests import NOTHING, Forget
from unlearning.runtime.json_codec import from_plain, to_plain
from unlearning.runtime.stores import Arrays, Store

_RECORD = "flower-unlearning"
_KEPT = f"{_RECORD}/kept/"


class ContextMemory:
    """A memory in Flower's `context.state`, for virtual clients."""

    def __init__(self, context: Context) -> None:
        self._state = context.state

    def tombstones(self) -> Forget:
        """Return what may not be trained on again in this run."""
        record = self._state.config_records.get(_RECORD)
        return from_plain(Forget, json.loads(str(record["tombstones"]))) if record is not None else NOTHING

    def keys(self) -> tuple[bytes, ...]:
        """Return the keys under which ids are hashed in this run."""
        record = self._state.config_records.get(_RECORD)
        return tuple(map(bytes.fromhex, json.loads(str(record["keys"])))) if record is not None else ()

    def add_tombstones(self, forget: Forget, key: bytes = b"") -> None:
        """Add to the tombstones."""
        known, keys = self.tombstones(), self.keys()
        keys = (*keys, key) if key and key not in keys else keys
        hashed, more = merge_keyed(known, forget, keys)
        if more:
            for name in [name for name in self._state.array_records if name.startswith(_KEPT)]:
                del self._state[name]
        if hashed != known or keys != self.keys():
            self._state[_RECORD] = ConfigRecord(
                {
                    "tombstones": json.dumps(to_plain(hashed)),
                    "keys": json.dumps([item.hex() for item in keys]),
                }
            )

    def store(self, method: str) -> Store:
        """Return what this virtual client keeps for a method, in its context."""
        return ContextStore(self._state, method)

    def outbox(self) -> list[dict[str, Any]]:
        """Return nothing: a virtual client has no site at which to file a request."""
        return []

    def confirm(self, answers: Mapping[str, str]) -> None:
        """Do nothing: nothing was filed."""

    def note_samples(self, ids: Iterable[str]) -> None:
        """Do nothing: no command reads them at a virtual site."""

    def note_problem(self, text: str) -> None:
        """Do nothing: no command reads it at a virtual site."""


class ContextStore:
    """A store in Flower's `context.state`, one record an entry."""

    def __init__(self, state: RecordDict, method: str) -> None:
        self._state = state
        self._prefix = f"{_KEPT}{method}/"

    def list_keys(self) -> list[str]:
        """Return the keys that have an entry, sorted."""
        return sorted({key for key, _ in self._entries()})

    def rounds(self, key: str) -> list[int]:
        """Return the rounds that `key` has entries of, ascending."""
        return sorted(number for known, number in self._entries() if known == key)

    def save(self, key: str, number: int, arrays: Arrays) -> None:
        """Write an entry, over one of the same round if there is one."""
        self._state[self._name(key, number)] = ArrayRecord(
            {name: Array(np.asarray(value)) for name, value in arrays.items()}
        )

    def load(self, key: str, number: int) -> Arrays:
        """Return the entry of a round that `rounds` lists.

        Raises:
            CheckpointError: it is not there.
        """
        record = self._state.array_records.get(self._name(key, number))
        if record is None:
            raise CheckpointError(f"Nothing of round {number} is kept for {key!r}.")
        return {name: array.numpy() for name, array in record.items()}

    def erase(self, key: str) -> None:
        """Erase all entries of `key`."""
        self.erase_rounds(key, beyond=-1)

    def erase_rounds(self, key: str, *, until: int = -1, beyond: int | None = None) -> None:
        """Erase the entries of `key` up to the round `until` and those after the round `beyond`."""
        for number in self.rounds(key):
            if number <= until or (beyond is not None and number > beyond):
                del self._state[self._name(key, number)]

    def num_bytes(self) -> int:
        """Return the bytes that all entries take."""
        records = self._state.array_records
        return sum(records[self._name(key, number)].count_bytes() for key, number in self._entries())

    def _entries(self) -> list[tuple[str, int]]:
        names = [name for name in self._state.array_records if name.startswith(self._prefix)]
        parts = [name.removeprefix(self._prefix).rpartition("/") for name in names]
        return [(key, int(number)) for key, _, number in parts]

    def _name(self, key: str, number: int) -> str:
        return f"{self._prefix}{key}/{number}"
