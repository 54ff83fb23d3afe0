"""The memory of a virtual client, in Flower's `context.state`: it lives as long as the run."""

import json
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, RecordDict
from numpy.typing import NDArray

from client.memory import (
    LOCAL,
    ClientMemory,
    DirectoryMemory,
    erase_trained_with,
    rounds_from_json,
    rounds_to_json,
    state_dir_of,
)
from strategies.messages import records_of
from unlearning.certified.round_lengths import PrivateRounds
from unlearning.pseudonyms import merge_keyed
from unlearning.requests import NOTHING, Forget
from unlearning.runtime.json_codec import from_plain, to_plain
from unlearning.runtime.stores import Arrays, MappedStore, Store

_RECORD = "flower-unlearning"
_KEPT = f"{_RECORD}/kept/"
_PRIVACY = f"{_RECORD}/sample-privacy"


class ContextMemory:
    """A memory in Flower's `context.state`, for virtual clients."""

    def __init__(self, context: Context) -> None:
        self._state = context.state

    def tombstones(self) -> Forget:
        """Return what may not be trained on again in this run."""
        record = records_of(self._state, ConfigRecord).get(_RECORD)
        return from_plain(Forget, json.loads(str(record["tombstones"]))) if record is not None else NOTHING

    def keys(self) -> tuple[bytes, ...]:
        """Return the keys under which ids are hashed in this run."""
        record = records_of(self._state, ConfigRecord).get(_RECORD)
        return tuple(map(bytes.fromhex, json.loads(str(record["keys"])))) if record is not None else ()

    def add_tombstones(self, forget: Forget, key: bytes = b"") -> None:
        """Add to the tombstones."""
        known, keys = self.tombstones(), self.keys()
        keys = (*keys, key) if key and key not in keys else keys
        hashed, more = merge_keyed(known, forget, keys)
        if more:
            for name in [name for name in records_of(self._state, ArrayRecord) if name.startswith(_KEPT)]:
                if not name.startswith(f"{_KEPT}{LOCAL}/"):
                    del self._state[name]
            erase_trained_with(self.store(LOCAL), hashed)
        if hashed != known or keys != self.keys():
            self._state[_RECORD] = ConfigRecord(
                {
                    "tombstones": json.dumps(to_plain(hashed)),
                    "keys": json.dumps([item.hex() for item in keys]),
                }
            )

    def note_excluded(self, ledger: str, forget: Forget) -> bool:
        """Do nothing: no ledger is older than the run, and a virtual client forgets with it."""
        return False

    def store(self, method: str) -> Store:
        """Return what this virtual client keeps for a method, in its context."""
        return MappedStore(ContextEntries(self._state, method))

    def privacy(self) -> tuple[PrivateRounds, ...]:
        """Return the steps that are counted in this run."""
        record = records_of(self._state, ConfigRecord).get(_PRIVACY)
        return () if record is None else rounds_from_json(str(record["rounds"]))

    def count_privacy(self, rounds: tuple[PrivateRounds, ...]) -> None:
        """Keep them as long as the run."""
        self._state[_PRIVACY] = ConfigRecord({"rounds": rounds_to_json(rounds)})

    def outbox(self) -> list[dict[str, Any]]:
        """Return nothing: a virtual client has no site at which to file a request."""
        return []

    def confirm(self, answers: Mapping[str, str]) -> None:
        """Do nothing: nothing was filed."""

    def no_longer_there(self, usable: Sequence[str], present: NDArray[np.str_]) -> list[str]:
        """Return nothing: the data of a virtual site stays as it is while the run lasts."""
        return []

    def note_samples(self, ids: Iterable[str], removed: Sequence[str] = ()) -> None:
        """Do nothing: no command reads them at a virtual site."""

    def note_problem(self, text: str) -> None:
        """Do nothing: no command reads it at a virtual site."""


class ContextEntries(MutableMapping[tuple[str, int], Arrays]):
    """The entries of a method's store in Flower's `context.state`, one record each."""

    def __init__(self, state: RecordDict, method: str) -> None:
        self._state = state
        self._prefix = f"{_KEPT}{method}/"

    def __getitem__(self, entry: tuple[str, int]) -> Arrays:
        record = records_of(self._state, ArrayRecord)[self._name(entry)]
        return {name: array.numpy() for name, array in record.items()}

    def __setitem__(self, entry: tuple[str, int], arrays: Arrays) -> None:
        record = ArrayRecord({name: Array(np.asarray(value)) for name, value in arrays.items()})
        self._state[self._name(entry)] = record

    def __delitem__(self, entry: tuple[str, int]) -> None:
        del self._state[self._name(entry)]

    def __iter__(self) -> Iterator[tuple[str, int]]:
        for name in [one for one in records_of(self._state, ArrayRecord) if one.startswith(self._prefix)]:
            key, _, number = name.removeprefix(self._prefix).rpartition("/")
            yield key, int(number)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _name(self, entry: tuple[str, int]) -> str:
        return f"{self._prefix}{entry[0]}/{entry[1]}"


def memory_of(context: Context) -> ClientMemory:
    """Return the state directory where the node names one, else the run's context.

    Raises:
        ConfigurationError: the directory is not named by its whole path, or is another client's.
        VersionMismatch: a newer version of this program has used it.
    """
    directory = state_dir_of(context.node_config)
    if directory is None:
        return ContextMemory(context)
    memory = DirectoryMemory(directory)
    declared = context.node_config.get("client-id", context.node_config.get("partition-id"))
    if declared is not None:
        memory.claim(str(declared))
    return memory
