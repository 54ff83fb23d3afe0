"""Stores: what a method keeps from round to round beside the model, as named arrays.

On the server a key is a client's id, at a client it is a name of the method's own. One entry belongs to
one round, so a round that is done again after a crash writes the same entry again and none is counted twice.

    DIRECTORY/KEY/key.txt            the key as it was given
    DIRECTORY/KEY/0000000017.npz     the arrays of round 17
"""

import hashlib
import shutil
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from unlearning.errors import CheckpointError
from unlearning.runtime.archive import pack_arrays_into, unpack_arrays
from unlearning.runtime.durable_files import durable_file, overwrite, sync_directory, write_atomically

Arrays = Mapping[str, NDArray[Any]]

_LONGEST_NAME = 150


class Store(Protocol):
    """Named arrays by key and round. What a call has written or erased is durable when it returns."""

    def list_keys(self) -> list[str]:
        """Return the keys that have an entry, sorted."""

    def rounds(self, key: str) -> list[int]:
        """Return the rounds that `key` has entries of, ascending."""

    def save(self, key: str, number: int, arrays: Arrays) -> None:
        """Write an entry, over one of the same round if there is one."""

    def load(self, key: str, number: int) -> Arrays:
        """Return the entry of a round that `rounds` lists."""

    def erase(self, key: str) -> None:
        """Erase all entries of `key`."""

    def erase_rounds(self, key: str, *, until: int = -1, beyond: int | None = None) -> None:
        """Erase the entries of `key` up to the round `until` and those after the round `beyond`."""

    def num_bytes(self) -> int:
        """Return how much room all entries take."""


class DirectoryStore:
    """A store in a directory of its own; it need not exist until something is written."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def list_keys(self) -> list[str]:
        """Return the keys that have an entry, sorted."""
        return sorted(path.read_text(encoding="utf-8") for path in self.directory.glob("*/key.txt"))

    def rounds(self, key: str) -> list[int]:
        """Return the rounds that `key` has entries of, ascending."""
        return sorted(int(path.stem) for path in self._folder(key).glob("[0-9]*.npz"))

    def save(self, key: str, number: int, arrays: Arrays) -> None:
        """Write an entry, over one of the same round if there is one.

        Raises:
            OSError: the directory cannot be written to.
        """
        folder = self._folder(key)
        if not (folder / "key.txt").exists():
            write_atomically(folder / "key.txt", key.encode())
        with durable_file(folder / f"{number:010d}.npz") as file:
            pack_arrays_into(file, arrays)

    def load(self, key: str, number: int) -> Arrays:
        """Return the entry of a round that `rounds` lists.

        Raises:
            CheckpointError: it is not there or damaged.
        """
        path = self._folder(key) / f"{number:010d}.npz"
        try:
            with path.open("rb") as file:
                return unpack_arrays(file)
        except (OSError, CheckpointError) as exc:
            raise CheckpointError(f"{path}, kept for {key!r}, cannot be read: {exc}.") from exc

    def erase(self, key: str) -> None:
        """Overwrite and erase all entries of `key`; those that `erase_rounds` erased are not overwritten."""
        if self._folder(key).exists():
            for path in self._folder(key).glob("*.npz"):
                overwrite(path)
            shutil.rmtree(self._folder(key))
            sync_directory(self.directory)

    def erase_rounds(self, key: str, *, until: int = -1, beyond: int | None = None) -> None:
        """Erase the entries of `key` up to the round `until` and those after the round `beyond`."""
        gone = [
            number
            for number in self.rounds(key)
            if number <= until or (beyond is not None and number > beyond)
        ]
        for number in gone:
            (self._folder(key) / f"{number:010d}.npz").unlink(missing_ok=True)
        if gone:
            sync_directory(self._folder(key))

    def num_bytes(self) -> int:
        """Return how much room all entries take on disk."""
        return sum(path.stat().st_size for path in self.directory.glob("*/*.npz"))

    def _folder(self, key: str) -> Path:
        name = quote(key, safe="").replace(".", "%2E") or "%"
        if len(name) > _LONGEST_NAME:
            name = f"{name[:_LONGEST_NAME]}-{hashlib.sha256(key.encode()).hexdigest()[:16]}"
        return self.directory / name


class MappedStore:
    """A store in a mapping from key and round to the arrays of an entry."""

    def __init__(self, entries: MutableMapping[tuple[str, int], Arrays]) -> None:
        self._entries = entries

    def list_keys(self) -> list[str]:
        """Return the keys that have an entry, sorted."""
        return sorted({key for key, _ in self._entries})

    def rounds(self, key: str) -> list[int]:
        """Return the rounds that `key` has entries of, ascending."""
        return sorted(number for known, number in self._entries if known == key)

    def save(self, key: str, number: int, arrays: Arrays) -> None:
        """Write an entry, over one of the same round if there is one."""
        self._entries[key, number] = {name: np.array(array) for name, array in arrays.items()}

    def load(self, key: str, number: int) -> Arrays:
        """Return the entry of a round that `rounds` lists.

        Raises:
            CheckpointError: it is not there.
        """
        try:
            return self._entries[key, number]
        except KeyError as exc:
            raise CheckpointError(f"Nothing of round {number} is kept for {key!r}.") from exc

    def erase(self, key: str) -> None:
        """Erase all entries of `key`."""
        self.erase_rounds(key, beyond=-1)

    def erase_rounds(self, key: str, *, until: int = -1, beyond: int | None = None) -> None:
        """Erase the entries of `key` up to the round `until` and those after the round `beyond`."""
        for number in self.rounds(key):
            if number <= until or (beyond is not None and number > beyond):
                del self._entries[key, number]

    def num_bytes(self) -> int:
        """Return how much room all entries take."""
        return sum(array.nbytes for arrays in self._entries.values() for array in arrays.values())


class MemoryStore(MappedStore):
    """A store that lives as long as this object."""

    def __init__(self, entries: Mapping[tuple[str, int], Arrays] = MappingProxyType({})) -> None:
        super().__init__(dict(entries))

    def copy(self) -> "MemoryStore":
        """Return a store with the same entries, which goes its own way; the arrays are the same ones."""
        return MemoryStore(self._entries)


def newest(store: Store, key: str, *, before: int | None = None) -> tuple[int, Arrays] | None:
    """Return the newest entry of `key` (of a round before `before`) with its round, or None if there is none."""
    rounds = [number for number in store.rounds(key) if before is None or number < before]
    return (rounds[-1], store.load(key, rounds[-1])) if rounds else None


def keep_newest(store: Store, key: str, number: int, arrays: Arrays, *, count: int = 2) -> None:
    """Write the entry of round `number` and keep no more than the newest `count`; none of a later round stays.

    Two are enough to do the last round again after a crash: it starts from the entry of the round before.
    """
    store.save(key, number, arrays)
    store.erase_rounds(key, beyond=number)
    older = store.rounds(key)[:-count]
    if older:
        store.erase_rounds(key, until=older[-1])
