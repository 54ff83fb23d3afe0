"""Checkpoints: the whole state of the live federation in one file, atomic and with checksums.

A file is named `SEQUENCE-TOKEN.npz`. TOKEN is the fencing token of the process that wrote it. The newest one by (token,
sequence) counts. A damaged file is passed over with a message: all that is read of an .npz has a CRC-32 in it.

Beside them, `AskedRound`: the round of secure aggregation that was asked last, for sites answer none twice, whatever
becomes of it.
"""

import re
from dataclasses import dataclass, replace
from logging import getLogger
from pathlib import Path

from server.federation.state import FederationState
from unlearning.errors import CheckpointError, VersionMismatch
from unlearning.runtime.archive import pack_into, unpack
from unlearning.runtime.durable_files import durable_file, make_private, sync_directory, write_atomically

_log = getLogger(__name__)
_NAME = re.compile(r"(\d{10})-(\d{6})(?:-[0-9a-f]{16})?\.npz")  # earlier ones end in a hash


@dataclass(frozen=True, slots=True, order=True)
class _Entry:
    token: int
    sequence: int
    path: Path


class CheckpointStore:
    """The checkpoints in one directory; `keep` of them are kept."""

    def __init__(self, directory: Path, *, keep: int = 3) -> None:
        self._directory = directory
        self._keep = keep
        make_private(directory)

    def save(self, state: FederationState, *, token: int) -> Path:
        """Write `state`; when this returns it survives a crash."""
        sequence = max((entry.sequence for entry in self._entries()), default=0) + 1
        path = self._directory / f"{sequence:010d}-{token:06d}.npz"
        with durable_file(path) as file:
            pack_into(file, state)
        for entry in sorted(self._entries())[: -self._keep]:
            entry.path.unlink(missing_ok=True)
        return path

    def newest(self) -> FederationState | None:
        """Return the newest readable state, or None if there is none at all.

        Raises:
            CheckpointError: there are checkpoints and none can be read.
            VersionMismatch: a newer version of this program wrote the newest; an older one would not be the state.
        """
        entries = sorted(self._entries(), reverse=True)
        for entry in entries:
            try:
                return self._read(entry)
            except FileNotFoundError:
                if entry in self._entries():  # a link to nothing
                    raise
                return self.newest()  # the run that goes on has written another, and erased this one
            except CheckpointError as exc:
                _log.error("%s: %s", entry.path, exc)
            except VersionMismatch as exc:
                raise VersionMismatch(f"The checkpoint {entry.path} cannot be read. {exc}") from exc
        if entries:
            raise CheckpointError(
                f"None of the {len(entries)} checkpoints in {self._directory} can be read. "
                "Restore the directory from a backup."
            )
        return None

    def newest_file(self) -> Path | None:
        """Return where the newest state lies, read or not."""
        return max(self._entries()).path if self._entries() else None

    def erase_older(self) -> int:
        """Erase all but the newest; older ones still carry what was forgotten. Returns how many."""
        old = sorted(self._entries())[:-1]
        for entry in old:
            entry.path.unlink(missing_ok=True)
        sync_directory(self._directory)
        return len(old)

    def _read(self, entry: _Entry) -> FederationState:
        with entry.path.open("rb") as file:
            return unpack(FederationState, file)

    def _entries(self) -> list[_Entry]:
        found = []
        for path in self._directory.glob("*.npz"):
            match = _NAME.fullmatch(path.name)
            if match:
                found.append(_Entry(int(match[2]), int(match[1]), path))
        return found


class AskedRound:
    """The number of a round, in a file from its first message until a checkpoint has what came of it.

    What is not in a checkpoint (this process died, nothing could be saved, a deletion's attempt failed) is asked for
    again under the next number, for sites may have answered this one.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._number = 0

    def resume(self, state: FederationState) -> None:
        """Read the file, before going on from a checkpoint's `state`: where there is one its round was not ended."""
        if self._path.exists():
            text = self._path.read_text(encoding="ascii", errors="replace")
            self._number = max(state.round + 1, int(text) if text.isdecimal() else 0)

    def begin(self, number: int) -> None:
        """Note that the round `number` is asked from now on.

        Raises:
            OSError: the file cannot be written.
        """
        write_atomically(self._path, str(number).encode())
        self._number = number

    def end(self, saved: FederationState) -> None:
        """Erase the file of a round, if the `saved` state has what came of it."""
        if 0 < self._number <= saved.round:
            self._path.unlink(missing_ok=True)
            self._number = 0

    def skip(self, state: FederationState) -> FederationState:
        """Return `state` with a number after which none was asked yet."""
        return state if state.round >= self._number else replace(state, round=self._number)
