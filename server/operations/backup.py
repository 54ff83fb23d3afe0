"""Backup and restore of what a federation is: its ledger, its newest checkpoint, its reports.

A backup is taken while everything runs. It is what a crash at that moment would have left: the ledger is copied
while one and the same checkpoint is the newest, and the start after a restore brings the two together.

A restore goes back in time, and a deletion that was carried out since would be undone: the model would again
hold what it has forgotten. So it is refused where the present ledger has gone on, unless it is forced.
"""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from logging import getLogger
from pathlib import Path

import sqlalchemy as sa

from server.federation.checkpoints import CheckpointStore
from server.ledger import Ledger, LedgerUnavailable
from server.operations.backup_database import dump_postgresql, dump_sqlite
from server.operations.backup_manifest import (
    DUMPS,
    NOT_COPIED,
    STATE,
    Manifest,
    event_at,
    position,
    read_verified,
    sha256_of,
)
from server.operations.restore_steps import (
    JOURNAL,
    Swap,
    begin,
    end,
    finish,
    interrupted_restore,
    refuse_half_restored,
    stage,
)
from server.state_directory.files import CHECKPOINTS, REPLACED, SHADOWS, UNDONE_FILE
from unlearning.errors import BackupError
from unlearning.requests import Status
from unlearning.runtime.durable_files import copy_private, make_private, write_atomically

_log = getLogger(__name__)

_ATTEMPTS = 20


def back_up(directory: Path, *, state_dir: Path, ledger_url: str, now: datetime) -> Manifest:
    """Write a backup of the federation in `state_dir` into the new directory `directory`.

    Raises:
        BackupError: the directory is not empty or another account's; there is nothing to back up; a program is missing.
        LedgerUnavailable: the ledger cannot be read.
    """
    directory, state_dir, url = _absolute(directory, state_dir, ledger_url)
    refuse_half_restored(state_dir)
    if directory.exists() and (any(directory.iterdir()) or directory.stat().st_uid != os.geteuid()):
        raise BackupError(
            f"{directory} is not empty, or belongs to another account. Give each backup a new directory."
        )
    if url.get_backend_name() == "sqlite" and not Path(url.database or "").exists():
        raise BackupError(f"There is no ledger {url.database}; check --state-dir and --ledger.")
    make_private(directory)
    with closing(_open_ledger(url)) as ledger:
        sequence, last_event = _copy(directory, state_dir, url, ledger)
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    manifest = Manifest(
        made_at=now.isoformat(timespec="seconds"),
        ledger=url.get_backend_name(),
        event_sequence=sequence,
        last_event=last_event,
        sha256={path.relative_to(directory).as_posix(): sha256_of(path) for path in files},
    )
    manifest.write(directory)
    return manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """The result of a restore.

    made_at, event_sequence: of the backup that was put in place.
    undone: the deletions, and the requests, that the federation no longer knows of, one sentence each.
    replaced: where what was there before lies now; None where there was nothing.
    compared: whether there was a ledger to compare with.
    was_broken_off: this was an earlier restore, which is finished now; the backup that was named is not in place.
    """

    made_at: str
    event_sequence: int
    undone: tuple[str, ...]
    replaced: Path | None
    compared: bool
    was_broken_off: bool


def restore(
    directory: Path, *, state_dir: Path, ledger_url: str, now: datetime, force: bool = False
) -> Restored:
    """Put the backup in `directory` in the place of the federation in `state_dir`; all services are stopped.

    What was there is moved aside, not erased. A ServerApp that still runs is fenced off. A restore that was broken
    off is finished instead.

    Raises:
        BackupError: the backup is damaged, of another kind of database, or going back would undo something
            and `force` is not given.
        LedgerUnavailable: the present ledger cannot be read, and `force` is not given.
    """
    directory, state_dir, url = _absolute(directory, state_dir, ledger_url)
    broken_off = interrupted_restore(state_dir)
    if broken_off is not None:
        return _finish(state_dir, url, broken_off, now=now, was_broken_off=True)
    manifest = read_verified(directory)
    _refuse_other_kind(url, manifest.ledger)
    undone, token, compared = _compare(url, manifest, now=now, force=force)
    if undone and not force:
        raise BackupError(
            f"Restoring this backup of {manifest.made_at} would undo what happened since:\n"
            + "\n".join(f"  - {line}" for line in undone)
            + "\nUse a newer backup. If there is none, give --force and file these deletions again at once."
        )
    try:
        stage(directory, state_dir, manifest)
    except OSError as exc:
        raise BackupError(f"The backup could not be copied: {exc}. What is there was not touched.") from exc
    swap = Swap(
        made_at=manifest.made_at,
        ledger=manifest.ledger,
        event_sequence=manifest.event_sequence,
        aside=_free_name(state_dir, f"{REPLACED}{now:%Y%m%dT%H%M%S%f}"),
        token=token,
        undone=undone,
        compared=compared,
    )
    begin(state_dir, swap)
    return _finish(state_dir, url, swap, now=now, was_broken_off=False)


def _finish(state_dir: Path, url: sa.URL, swap: Swap, *, now: datetime, was_broken_off: bool) -> Restored:
    """Carry out what the journal says; every step of it can be done again."""
    _refuse_other_kind(url, swap.ledger)
    try:
        replaced = finish(state_dir, url, swap)
        with closing(_open_ledger(url)) as ledger:
            # Tokens that were handed out after the backup must stay worthless.
            while ledger.acquire_fence("restore", now=now) <= swap.token:
                pass
        if swap.undone:
            text = json.dumps({"restored_at": now.isoformat(), "undone": swap.undone}, indent=1)
            write_atomically(state_dir / UNDONE_FILE, text.encode())
        end(state_dir)
    except OSError as exc:
        raise BackupError(
            f"The restore was broken off: {exc}. Mend the cause and give the same command again, which goes on; "
            f"until then nothing starts on {state_dir} ({JOURNAL}). What was there before is in {swap.aside}."
        ) from exc
    return Restored(
        made_at=swap.made_at,
        event_sequence=swap.event_sequence,
        undone=swap.undone,
        replaced=replaced,
        compared=swap.compared,
        was_broken_off=was_broken_off,
    )


def _absolute(directory: Path, state_dir: Path, ledger_url: str) -> tuple[Path, Path, sa.URL]:
    """Return the two directories and the ledger as absolute places, wherever this process goes.

    Raises:
        BackupError: the backup would lie inside of what it saves.
    """
    directory, state_dir = directory.expanduser().resolve(), state_dir.expanduser().resolve()
    if directory.is_relative_to(state_dir):
        raise BackupError(
            f"{directory} lies inside of the state directory {state_dir}, and would be lost with it. "
            "Use a directory elsewhere, best on another disk."
        )
    url = sa.make_url(ledger_url)
    if url.get_backend_name() == "sqlite":
        database = Path(url.database or "").expanduser()
        url = url.set(database=str(database.parent.resolve() / database.name))
    return directory, state_dir, url


def _free_name(state_dir: Path, name: str) -> str:
    """Return `name`, or a longer one where an earlier restore took it: clocks are put back."""
    return _free_name(state_dir, f"{name}-again") if (state_dir / name).exists() else name


def _open_ledger(url: sa.URL) -> Ledger:
    return Ledger.open(url.render_as_string(hide_password=False))


def _refuse_other_kind(url: sa.URL, ledger: str) -> None:
    if url.get_backend_name() != ledger:
        raise BackupError(f"The backup holds a {ledger} ledger, --ledger is {url.get_backend_name()}.")


def _copy(directory: Path, state_dir: Path, url: sa.URL, ledger: Ledger) -> tuple[int, dict[str, object]]:
    """Copy everything at a moment at which the newest checkpoint and the ledger belong together."""
    store = CheckpointStore(state_dir / CHECKPOINTS)
    dump = directory / DUMPS[url.get_backend_name()]
    for _ in range(_ATTEMPTS):
        shutil.rmtree(directory / STATE, ignore_errors=True)
        before, newest = position(ledger), store.newest_file()
        try:
            for path in _state_files(state_dir):
                copy_private(path, directory / STATE / path.relative_to(state_dir))
            if newest is not None:
                copy_private(newest, directory / STATE / CHECKPOINTS / newest.name)
        except FileNotFoundError:  # a round has ended meanwhile
            continue
        if url.get_backend_name() == "sqlite":
            dump_sqlite(url, dump)
        else:
            dump_postgresql(url, dump)
        if position(ledger) == before and store.newest_file() == newest:
            return before
    raise BackupError(
        f"The federation moved on during each of {_ATTEMPTS} attempts. Try again, or stop the ServerApp for it."
    )


def _compare(
    url: sa.URL, manifest: Manifest, *, now: datetime, force: bool
) -> tuple[tuple[str, ...], int, bool]:
    """Return what a restore would undo, the newest fencing token, and whether there was a ledger to ask."""
    if url.get_backend_name() == "sqlite" and not Path(url.database or "").exists():
        return (), 0, False
    try:
        ledger = _open_ledger(url)
    except LedgerUnavailable:
        if force:
            return ("everything since then: the present ledger cannot be read",), 0, False
        raise
    with closing(ledger):
        lost = tuple(_events_to_undo(ledger, manifest))
        # Before anything is moved: a ServerApp that still runs writes nothing from here on.
        token = ledger.acquire_fence("restore", now=now) if force or not lost else 0
        return lost, token, True


def _events_to_undo(ledger: Ledger, manifest: Manifest) -> Iterator[str]:
    """Yield one sentence for each thing that the present ledger knows and the backup does not."""
    newest = ledger.events.last_of_requests()
    if newest and event_at(ledger, manifest.event_sequence) != manifest.last_event:
        yield "everything: the backup is of another federation, or the present ledger is older than it"
        return
    for event in ledger.events.all(after=manifest.event_sequence):
        if not event.request_id:
            continue
        target = ledger.requests.get(event.request_id).target.describe()
        if event.to_status is Status.VERIFYING:
            yield f"the deletion of {target} ({event.request_id}), carried out at {event.at.isoformat()}"
        elif event.from_status is None and event.kind == "submitted":
            yield f"the request {event.request_id} to delete {target}, filed at {event.at.isoformat()}"


def _state_files(state_dir: Path) -> Iterator[Path]:
    """Yield all plain files but the ledger's, checkpoints and shadow models (they carry what was forgotten, or will
    be), unfinished ones and what earlier restores left.
    """
    for path in sorted(state_dir.rglob("*")):
        first = path.relative_to(state_dir).parts[0]
        skipped = first in (CHECKPOINTS, SHADOWS) or first.startswith(NOT_COPIED)
        if skipped or path.name.startswith("."):
            continue
        if path.is_symlink():
            _log.warning("%s is a link: it is not in the backup.", path)
        elif path.is_file():
            yield path
