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
from dataclasses import dataclass
from datetime import datetime
from logging import getLogger
from pathlib import Path

import sqlalchemy as sa

from server.backup_database import dump_postgresql, dump_sqlite, restore_postgresql
from server.backup_manifest import Manifest, event_at, position, sha256_of, verified
from server.checkpoints import CheckpointStore
from server.ledger import Ledger, LedgerUnavailable
from unlearning.durable_files import sync_directory, write_atomically
from unlearning.errors import BackupError
from unlearning.requests import Status

_log = getLogger(__name__)

STATE, CHECKPOINTS, LEDGER_FILE, REPLAY, SHADOWS = "state", "checkpoints", "ledger.db", "replay", "shadows"
REPLACED = "replaced-"
_ATTEMPTS = 20
_DUMPS = {"sqlite": "ledger.db", "postgresql": "ledger.dump"}


def back_up(directory: Path, *, state_dir: Path, ledger_url: str, now: datetime) -> Manifest:
    """Write a backup of the federation in `state_dir` into the new directory `directory`.

    Raises:
        BackupError: the directory is not empty, there is nothing to back up, or a program is missing.
        LedgerUnavailable: the ledger cannot be read.
    """
    _refuse_inside(directory, state_dir)
    if directory.exists() and any(directory.iterdir()):
        raise BackupError(f"{directory} is not empty. Give each backup a directory of its own.")
    url = sa.make_url(ledger_url)
    if url.get_backend_name() == "sqlite" and not Path(url.database or "").exists():
        raise BackupError(f"There is no ledger {url.database}; check --state-dir and --ledger.")
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    ledger = Ledger.open(ledger_url)
    try:
        sequence, last_event = _copied(directory, state_dir, url, ledger)
    finally:
        ledger.close()
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
    """What a restore did.

    undone: the deletions, and the requests, that the federation no longer knows of, one sentence each.
    replaced: where what was there before lies now; None where there was nothing.
    compared: whether there was a ledger to compare with.
    """

    manifest: Manifest
    undone: tuple[str, ...]
    replaced: Path | None
    compared: bool


def restore(
    directory: Path, *, state_dir: Path, ledger_url: str, now: datetime, force: bool = False
) -> Restored:
    """Put the backup in `directory` in the place of the federation in `state_dir`; all services are stopped.

    What was there is moved aside, not erased. A ServerApp that still runs is fenced off.

    Raises:
        BackupError: the backup is damaged, of another kind of database, or going back would undo something
            and `force` is not given.
        LedgerUnavailable: the present ledger cannot be read, and `force` is not given.
    """
    _refuse_inside(directory, state_dir)
    manifest = verified(directory)
    url = sa.make_url(ledger_url)
    if url.get_backend_name() != manifest.ledger:
        raise BackupError(
            f"The backup holds a {manifest.ledger} ledger, --ledger is {url.get_backend_name()}."
        )
    undone, token, compared = _compared(url, ledger_url, manifest, now=now, force=force)
    if undone and not force:
        raise BackupError(
            f"Restoring this backup of {manifest.made_at} would undo what happened since:\n"
            + "\n".join(f"  - {line}" for line in undone)
            + "\nUse a newer backup. If there is none, give --force and file these deletions again at once."
        )
    replaced = _moved_aside(state_dir, url, now)
    try:
        _put_in_place(directory, state_dir, url)
    except OSError as exc:
        raise BackupError(
            f"The backup could not be put in place: {exc}. What was there before is in {replaced}. "
            "Mend the cause and restore again; or erase what is there now and move that back."
        ) from exc
    ledger = Ledger.open(ledger_url)
    try:
        # Tokens that were handed out after the backup must stay worthless.
        while ledger.acquire_fence("restore", now=now) <= token:
            pass
    finally:
        ledger.close()
    if undone:
        text = json.dumps({"restored_at": now.isoformat(), "undone": undone}, indent=1)
        write_atomically(state_dir / "undone-by-restore.json", text.encode())
    return Restored(manifest=manifest, undone=undone, replaced=replaced, compared=compared)


def _refuse_inside(directory: Path, state_dir: Path) -> None:
    if directory.resolve().is_relative_to(state_dir.resolve()):
        raise BackupError(
            f"{directory} lies inside of the state directory {state_dir}, and would be lost with it. "
            "Use a directory elsewhere, best on another disk."
        )


def _copied(directory: Path, state_dir: Path, url: sa.URL, ledger: Ledger) -> tuple[int, dict[str, object]]:
    """Copy everything at a moment at which the newest checkpoint and the ledger belong together."""
    store = CheckpointStore(state_dir / CHECKPOINTS)
    dump = directory / _DUMPS[url.get_backend_name()]
    for _ in range(_ATTEMPTS):
        shutil.rmtree(directory / STATE, ignore_errors=True)
        before, newest = position(ledger), store.newest_file()
        try:
            for path in _state_files(state_dir):
                _copy(path, directory / STATE / path.relative_to(state_dir))
            if newest is not None:
                _copy(newest, directory / STATE / CHECKPOINTS / newest.name)
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


def _compared(
    url: sa.URL, ledger_url: str, manifest: Manifest, *, now: datetime, force: bool
) -> tuple[tuple[str, ...], int, bool]:
    """What a restore would undo, the newest fencing token, and whether there was a ledger to ask."""
    if url.get_backend_name() == "sqlite" and not Path(url.database or "").exists():
        return (), 0, False
    try:
        ledger = Ledger.open(ledger_url)
    except LedgerUnavailable:
        if force:
            return ("everything since then: the present ledger cannot be read",), 0, False
        raise
    try:
        lost = tuple(_since(ledger, manifest))
        # Before anything is moved: a ServerApp that still runs writes nothing from here on.
        token = ledger.acquire_fence("restore", now=now) if force or not lost else 0
        return lost, token, True
    finally:
        ledger.close()


def _since(ledger: Ledger, manifest: Manifest) -> Iterator[str]:
    """One sentence for each thing that the present ledger knows and the backup does not."""
    newest = ledger.last_event_sequence()
    if newest and event_at(ledger, manifest.event_sequence) != manifest.last_event:
        yield "everything: the backup is of another federation, or the present ledger is older than it"
        return
    for event in ledger.all_events(after=manifest.event_sequence):
        target = ledger.get(event.request_id).target.describe()
        if event.to_status is Status.RECOVERING:
            yield f"the deletion of {target} ({event.request_id}), carried out at {event.at.isoformat()}"
        elif event.from_status is None and event.kind == "submitted":
            yield f"the request {event.request_id} to delete {target}, filed at {event.at.isoformat()}"


def _moved_aside(state_dir: Path, url: sa.URL, now: datetime) -> Path | None:
    aside = state_dir / f"{REPLACED}{now:%Y%m%dT%H%M%S%f}"
    aside.mkdir(parents=True, mode=0o700)
    found = [path for path in state_dir.iterdir() if not path.name.startswith(REPLACED)]
    if url.get_backend_name() == "sqlite":
        database = Path(url.database or "")
        found += [path for path in database.parent.glob(f"{database.name}*") if path.parent != state_dir]
    else:
        dump_postgresql(url, aside / _DUMPS["postgresql"])
    for path in found:
        shutil.move(path, aside / path.name)
    sync_directory(state_dir)
    if any(aside.iterdir()):
        return aside
    aside.rmdir()
    return None


def _put_in_place(directory: Path, state_dir: Path, url: sa.URL) -> None:
    """The ledger last: without it nothing starts from a state that is there in part only."""
    source = directory / STATE
    for path in sorted(path for path in source.rglob("*") if path.is_file()):
        _copy(path, state_dir / path.relative_to(source))
    dump = directory / _DUMPS[url.get_backend_name()]
    if url.get_backend_name() == "sqlite":
        _copy(dump, Path(url.database or ""))
    else:
        restore_postgresql(url, dump)


def _state_files(state_dir: Path) -> Iterator[Path]:
    """All files but the ledger's, checkpoints, inputs of replays and shadow models (they carry what was forgotten, or
    will be), unfinished ones and what an earlier restore moved aside.
    """
    for path in sorted(state_dir.rglob("*")):
        first = path.relative_to(state_dir).parts[0]
        skipped = first in (CHECKPOINTS, REPLAY, SHADOWS) or first.startswith((LEDGER_FILE, REPLACED))
        if path.is_file() and not skipped and not path.name.startswith("."):
            yield path


def _copy(source: Path, destination: Path) -> None:
    """Copy durably; readable by the owner only, because it may hold models and names."""
    destination.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    partial = destination.with_name(f".{destination.name}.{os.getpid()}")
    try:
        shutil.copyfile(source, partial)
        partial.chmod(0o600)
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        partial.replace(destination)
    finally:
        partial.unlink(missing_ok=True)
    sync_directory(destination.parent)
