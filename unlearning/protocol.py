"""The version of what programs of this project send to each other and keep on disk.

One number for all of it: Flower messages, sessions, peers, the deletion service and state directories. Raise it with
every change that a program of a released version would misread; before the first release it is 1. Programs of
different versions do not work together: each refuses the other with one sentence that names both versions.

These must be readable in every version, for they carry the number: the JSON text `json` in the record `config` of a
Flower message and its key `PROTOCOL`, the answer to `query.whoami`, a session's Hello and a file's `version`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unlearning.errors import VersionMismatch
from unlearning.runtime.durable_files import write_atomically

PROTOCOL_VERSION = 1
PROTOCOL = "protocol-version"
"""Under this key JSON says its sender's version, and a call of the deletion service its caller's."""
VERSION_FILE = "version"
"""In a state directory: the highest version of the programs that have used it."""


def own_version() -> int:
    """Return the version that this process speaks."""
    return PROTOCOL_VERSION


def stamped(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return JSON that says the version of this process."""
    return {**values, PROTOCOL: own_version()}


def check_protocol(found: object, *, other: str, own: str) -> None:
    """Refuse what is of another version than this process.

    found: the number that came with it; anything but a whole number means that there was none.
    other, own: the two sides, as a sentence names them.

    Raises:
        VersionMismatch: names both versions, and the side to upgrade.
    """
    mine = own_version()
    if type(found) is int and found == mine:
        return
    theirs = found if type(found) is int and abs(found) < 10**9 else 0
    said = f"protocol version {theirs}" if theirs > 0 else "a protocol version before 1"
    older = other if theirs < mine else own
    sentence = f"{other} has {said} and {own} has {mine}: upgrade flower-unlearning at {older}."
    raise VersionMismatch(sentence[0].upper() + sentence[1:])


def claim_directory(directory: Path) -> None:
    """Refuse a state directory that a newer version has used; otherwise write this one down, if it is there.

    Raises:
        VersionMismatch: a newer version has used it, or its file says no version.
        OSError: it cannot be read or written.
    """
    path, mine = directory / VERSION_FILE, str(own_version())
    found = path.read_text(encoding="ascii", errors="replace").strip() if path.exists() else "0"
    if not found.isdecimal() or int(found) > own_version():
        raise VersionMismatch(
            f"{directory} was used by flower-unlearning of protocol version {found[:20]}, and this program has {mine}: "
            "upgrade flower-unlearning here, or restore the backup of before the upgrade."
        )
    if found != mine and directory.is_dir():
        write_atomically(path, mine.encode())
