"""What Flower's SuperLink keeps of messages that have ended, and how it is erased when a deletion is completed.

The SuperLink stores each message in SQLite until it is fetched. Then the row goes, but its bytes stay: in free pages
of the database, and in the write-ahead log, which is overwritten later and never shortened. So the losses, posteriors
and updates of a forgotten client outlive the deletion. `erase_residue` rewrites the database without them and empties
the log, while the SuperLink runs; the supervisor does it at its first look after a completion.

Messages that were not fetched yet are no residue and stay. Blocks that the file system gives back are not
overwritten, and swap is not looked at (docs/reference-ports-and-files.md).
"""

import json
import sqlite3
import time
from contextlib import closing
from logging import getLogger
from pathlib import Path

from server.ledger import Event, Ledger
from server.state_directory.files import RESIDUE_FILE
from unlearning.errors import DeploymentError
from unlearning.requests import Status
from unlearning.runtime.durable_files import write_atomically

_log = getLogger(__name__)

# The SuperLink waits 5 s for its own writes, so the lock is held no longer than that.
_WAIT_S = 5.0


def erase_residue(database: Path) -> int:
    """Rewrite the SuperLink's database without what was deleted, and empty its log; return the bytes that are left.

    Raises:
        DeploymentError: there is no such database, or it is in use the whole time; try again.
    """
    if not database.is_file():
        raise DeploymentError(
            f"There is no database {database}; name the one that flower-superlink was started with.",
            code="no-database",
        )
    try:
        with closing(sqlite3.connect(database, timeout=_WAIT_S, isolation_level=None)) as connection:
            connection.execute("PRAGMA secure_delete = ON")
            connection.execute("VACUUM")
            is_busy, _, _ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    except sqlite3.Error as exc:
        raise DeploymentError(
            f"{database} cannot be rewritten now: {exc}. It is tried again; else look at it.",
            code="database-in-use",
        ) from exc
    if is_busy:
        raise DeploymentError(
            f"The log of {database} is being read and could not be emptied. Try again.", code="log-in-use"
        )
    return database.stat().st_size


def erase_after_deletions(database: Path, state_dir: Path, ledger: Ledger, *, always: bool = False) -> bool:
    """Erase residue if a deletion was completed since it last was, or always where asked; return whether it was done.

    `state_dir` remembers up to which event of the ledger that is so.

    Raises:
        DeploymentError: it could not be erased now.
        LedgerUnavailable: the ledger cannot be read.
    """
    before = last_erased_event(state_dir)
    completion = newest_completion(ledger, after=before)
    if completion is None and not always:
        return False
    newest = completion.sequence if completion else before
    began = time.monotonic()
    size_bytes = erase_residue(database)
    write_atomically(state_dir / RESIDUE_FILE, json.dumps({"event_sequence": newest}).encode())
    _log.info(
        "Erased what %s kept of messages up to event %d: %.1f s, %d bytes are left.",
        database,
        newest,
        time.monotonic() - began,
        size_bytes,
    )
    return True


def newest_completion(ledger: Ledger, *, after: int) -> Event | None:
    """Return the newest event after this one that completed a deletion."""
    completions = (event for event in ledger.events.all(after=after) if event.to_status is Status.COMPLETED)
    return max(completions, key=lambda event: event.sequence, default=None)


def last_erased_event(state_dir: Path) -> int:
    """Return the event up to which the residue was erased; 0 where that is not known."""
    try:
        return int(json.loads((state_dir / RESIDUE_FILE).read_text(encoding="utf-8"))["event_sequence"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0


def count_waiting_answers(database: Path) -> int:
    """Return how many answers of clients are in the SuperLink's database because they were not fetched.

    Raises:
        DeploymentError: the database cannot be read.
    """
    try:
        with closing(
            sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True, timeout=_WAIT_S)
        ) as connection:
            (count,) = connection.execute("SELECT COUNT(*) FROM message_res").fetchone()
    except sqlite3.Error as exc:
        raise DeploymentError(f"{database} cannot be read: {exc}.") from exc
    return int(count)
