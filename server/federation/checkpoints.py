"""Checkpoints: the whole state of the live federation in one file, atomic and content-hashed.

A file is named `SEQUENCE-TOKEN-HASH.npz`. TOKEN is the fencing token of the process that wrote it, HASH
the first 16 hex digits of the file's SHA-256. The newest one by (token, sequence) counts; a file whose
content is not what its name says is passed over with a warning.
"""

import hashlib
import json
import re
from dataclasses import dataclass
from logging import getLogger
from pathlib import Path
from typing import Any

from server.federation.state import FederationState
from unlearning.archive import Arrays, check_version, pack, unpack
from unlearning.durable_files import make_private, sync_directory, write_atomically
from unlearning.errors import CheckpointError, DataError, VersionMismatch
from unlearning.verification.observations import Outputs
from unlearning.verification.shadow_models import ShadowFits

_log = getLogger(__name__)
_NAME = re.compile(r"(\d{10})-(\d{6})-([0-9a-f]{16})\.npz")


@dataclass(frozen=True, slots=True, order=True)
class _Entry:
    token: int
    sequence: int
    digest: str
    path: Path


class CheckpointStore:
    """The checkpoints in one directory; `keep` of them are kept."""

    def __init__(self, directory: Path, *, keep: int = 3) -> None:
        self._directory = directory
        self._keep = keep
        make_private(directory)

    def save(self, state: FederationState, *, token: int) -> Path:
        """Write `state`; when this returns it survives a crash."""
        entries = self._entries()
        sequence = max((entry.sequence for entry in entries), default=0) + 1
        content = pack(state)
        digest = hashlib.sha256(content).hexdigest()[:16]
        path = self._directory / f"{sequence:010d}-{token:06d}-{digest}.npz"
        write_atomically(path, content)
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
        content = entry.path.read_bytes()
        if hashlib.sha256(content).hexdigest()[:16] != entry.digest:
            raise CheckpointError("It is damaged: its content is not what its name says.")
        return decode(content)

    def _entries(self) -> list[_Entry]:
        found = []
        for path in self._directory.glob("*.npz"):
            match = _NAME.fullmatch(path.name)
            if match:
                found.append(_Entry(int(match[2]), int(match[1]), match[3], path))
        return found


def decode(content: bytes) -> FederationState:
    """Return the state in a checkpoint's bytes, which `pack` has made of it.

    Raises:
        CheckpointError: the bytes are no checkpoint of a version that is known here.
        VersionMismatch: a newer version of this program wrote them.
    """
    return unpack(FederationState, content, _version_1)


def _version_1(arrays: Arrays) -> dict[str, Any]:
    """Return what a checkpoint of before archives holds: all but arrays in `meta`, these by names of their own."""
    meta: dict[str, Any] = json.loads(arrays["meta"].tobytes())
    check_version(meta.pop("version"), 1)
    meta["parameters"] = arrays["parameters"]
    batch = meta["deletion"] = meta.pop("batch")
    if batch is None:
        return meta
    if batch["method_state"] is not None:
        own = {"parameters": arrays["method.parameters"], "arrays": _below("method.arrays.", arrays)}
        batch["method_state"] |= own
    if batch.get("before") is not None:  # a still earlier version knows of no model to go back to
        batch["before"]["parameters"] = arrays["model_before"]
    posteriors = _below("before.posteriors.", arrays)
    batch["outputs_before"] = {
        name: Outputs(handles, posteriors[name])
        for name, handles in _below("before.handles.", arrays).items()
    }
    if batch.get("shadow_fits") is not None:
        try:
            fits = {
                name: ShadowFits.from_arrays(_below(f"shadow.{name}.", arrays))
                for name in batch["shadow_fits"]
            }
            batch["shadow_fits"] = fits
        except (
            DataError
        ) as exc:  # fits of an earlier version: the deletion goes on without LiRA, its report says why
            batch |= {"shadow_fits": None, "shadow_notes": {**batch.get("shadow_notes", {}), "": str(exc)}}
    return meta


def _below(prefix: str, arrays: Arrays) -> Arrays:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
