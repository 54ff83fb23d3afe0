"""What a backup says about itself: where the ledger stood, and the hash of every file."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from server.ledger import Event, Ledger
from server.state_directory.files import REPLACED, RESTORING
from server.state_directory.ledger_address import LEDGER_FILE
from unlearning.errors import BackupError, UpdateRefused
from unlearning.runtime.durable_files import write_atomically
from unlearning.runtime.foreign_files import open_plain, read_plain
from unlearning.runtime.json_codec import from_plain
from unlearning.untrusted import MAX_JSON_BYTES, json_object

FILE = "manifest.json"
FORMAT = 1
STATE = "state"
DUMPS = {"sqlite": "ledger.db", "postgresql": "ledger.dump"}
NOT_COPIED = (LEDGER_FILE, REPLACED, RESTORING)
"""How names in a state directory begin that are not copied as files: the ledger's own, and what restores left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What is in a backup.

    made_at: UTC, ISO 8601. ledger: `sqlite` or `postgresql`. event_sequence: of the ledger's newest event.
    last_event: what that event was, so that another federation's backup is recognised.
    sha256: by path inside the backup, the hex digest of each file.
    """

    made_at: str
    ledger: str
    event_sequence: int
    last_event: Mapping[str, Any]
    sha256: Mapping[str, str]

    def write(self, directory: Path) -> None:
        """Write it last: a directory without it is no backup."""
        text = json.dumps({"format": FORMAT, **asdict(self)}, indent=1, sort_keys=True)
        write_atomically(directory / FILE, text.encode())


def read_verified(directory: Path) -> Manifest:
    """Return the manifest of the backup in `directory`, whose files are all there and what they were.

    Raises:
        BackupError: it is no backup, or damaged.
    """
    try:
        values = json_object(read_plain(directory / FILE, MAX_JSON_BYTES))
        if values.pop("format") != FORMAT:
            raise BackupError(
                f"The backup {directory} has a format that this program does not know. Upgrade it."
            )
        manifest = from_plain(Manifest, values, exactly=True)
    except FileNotFoundError:
        raise BackupError(
            f"{directory} is no backup: it has no {FILE}. A backup that broke off has none."
        ) from None
    except (OSError, UpdateRefused, ValueError, KeyError, TypeError, AttributeError) as exc:
        raise BackupError(f"{directory / FILE} is damaged: {exc}. Use another backup.") from exc
    _check_values(manifest, directory)
    for name, digest in manifest.sha256.items():
        check_file(directory, name, digest)
    return manifest


def check_file(directory: Path, name: str, digest: str) -> None:
    """Refuse a file that is not a plain one below `directory`, reached without links, of this SHA-256.

    Raises:
        BackupError: says which file.
    """
    path = directory / name
    try:
        is_whole = sha256_of(path) == digest
    except OSError as exc:
        raise BackupError(
            f"{str(path)!r} is missing or no file of a backup: {exc.strerror}. Use another one."
        ) from exc
    if not is_whole:
        raise BackupError(f"{str(path)!r} is not what it was when the backup was made. Use another one.")


def _check_values(manifest: Manifest, directory: Path) -> None:
    """Refuse what `back_up` never writes, before any of it is believed."""
    wrong = ""
    if manifest.ledger not in DUMPS:
        wrong = f"the ledger is {manifest.ledger!r}"
    elif DUMPS[manifest.ledger] not in manifest.sha256:
        wrong = "it does not name the ledger, without which there is no federation"
    elif strange := [name for name in manifest.sha256 if not _is_ours(name, DUMPS[manifest.ledger])]:
        wrong = (
            f"it names {strange[0]!r}, which lies outside of the backup or is no file of a state directory"
        )
    if wrong:
        raise BackupError(f"{directory / FILE} was damaged or tampered with: {wrong}. Use another backup.")


def _is_ours(name: str, dump: str) -> bool:
    """Return whether a name is the ledger's, or `state/...` as a path inside of a state directory."""
    path = PurePosixPath(name)
    if name != path.as_posix() or path.is_absolute() or ".." in path.parts or "\0" in name or "\\" in name:
        return False
    inside = path.parts[0] == STATE and len(path.parts) > 1 and not path.parts[1].startswith(NOT_COPIED)
    return name == dump or inside


def position(ledger: Ledger) -> tuple[int, dict[str, Any]]:
    """Return the sequence number of the newest event of a request, and what it was; 0 and nothing if there is none."""
    newest = ledger.events.last_of_requests()
    return newest, event_at(ledger, newest)


def event_at(ledger: Ledger, sequence: int) -> dict[str, Any]:
    """Return what an event was, as JSON; nothing where there is none of this number."""
    found = ledger.events.page(after=sequence - 1, limit=1) if sequence > 0 else []
    return _event_values(found[0]) if found and found[0].sequence == sequence else {}


def sha256_of(path: Path) -> str:
    """Return the hex digest of a plain file, as `open_plain` opens it.

    Raises:
        OSError: it is none, or cannot be read.
    """
    with open_plain(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _event_values(event: Event) -> dict[str, Any]:
    return {
        "request_id": event.request_id,
        "kind": event.kind,
        "to_status": event.to_status and str(event.to_status),
        "actor": event.actor,
        "at": event.at.isoformat(),
    }
