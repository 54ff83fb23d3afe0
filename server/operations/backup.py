"""Backup of what a federation is: its ledger, its newest checkpoint, its reports. `restore.py` puts it back.

A backup is taken while everything runs. It is what a crash at that moment would have left: the ledger is copied
while one and the same checkpoint is the newest, and the start after a restore brings the two together.
"""

import hashlib
import json
import os
import shutil
import sqlite3
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass
from datetime import datetime
from logging import getLogger
from pathlib import Path, PurePosixPath

import sqlalchemy as sa

from server.federation.checkpoints import CheckpointStore
from server.ledger import Ledger
from server.ledger.database import checked_url, missing_file
from server.state_directory.files import CHECKPOINTS, LAST_BACKUP, REPLACED, RESTORING, refuse_half_restored
from server.state_directory.ledger_address import LEDGER_FILE
from unlearning.errors import BackupError, UpdateRefused
from unlearning.runtime.durable_files import (
    copy_private,
    make_private,
    open_private,
    sqlite_files,
    write_atomically,
)
from unlearning.runtime.foreign_files import open_plain, read_plain
from unlearning.runtime.json_codec import from_plain
from unlearning.untrusted import MAX_JSON_BYTES, json_object

_log = getLogger(__name__)

FILE = "manifest.json"
FORMAT = 1
STATE = "state"
DUMPS = {"sqlite": "ledger.db", "postgresql": "ledger.dump"}
NOT_COPIED = (LEDGER_FILE, REPLACED, RESTORING)
"""How names in a state directory begin that are not copied as files: the ledger's own, and what restores left."""
_ATTEMPTS = 20
_DUMP_TIMEOUT_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What is in a backup.

    made_at: UTC, ISO 8601. ledger: `sqlite` or `postgresql`. event_sequence, event_hash: of the ledger's newest event
    of a request, so that another federation's backup is recognised. sha256: by path in the backup, hex.
    """

    made_at: str
    ledger: str
    event_sequence: int
    event_hash: str
    sha256: Mapping[str, str]


def back_up(directory: Path, *, state_dir: Path, ledger_url: str, now: datetime) -> Manifest:
    """Write a backup of the federation in `state_dir` into the new directory `directory`.

    Raises:
        BackupError: the directory is not empty or another account's; there is nothing to back up; a program is missing.
        LedgerUnavailable: the ledger cannot be read.
        OSError: a file cannot be read or written. After any error nothing of the backup is left.
    """
    directory, state_dir, url = absolute(directory, state_dir, ledger_url)
    refuse_half_restored(state_dir)
    if directory.exists() and (any(directory.iterdir()) or directory.stat().st_uid != os.geteuid()):
        raise BackupError(
            f"{directory} is not empty, or belongs to another account. Give each backup a new directory.",
            code="backup-directory",
        )
    if absent := missing_file(url):
        raise BackupError(f"There is no ledger {absent}; check --state-dir and --ledger.", code="no-ledger")
    is_new = not directory.exists()
    make_private(directory)
    try:
        manifest = _write(directory, state_dir, url, now)
    except BaseException:
        # Half a backup is none, holds secrets, and keeps a full disk full.
        for path in directory.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        if is_new:
            directory.rmdir()
        raise
    write_atomically(state_dir / LAST_BACKUP, manifest.made_at.encode())
    return manifest


def _write(directory: Path, state_dir: Path, url: sa.URL, now: datetime) -> Manifest:
    with closing(open_ledger(url)) as ledger:
        sequence, event_hash = _copy(directory, state_dir, url, ledger)
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    manifest = Manifest(
        made_at=now.isoformat(timespec="seconds"),
        ledger=url.get_backend_name(),
        event_sequence=sequence,
        event_hash=event_hash,
        sha256={path.relative_to(directory).as_posix(): _sha256_of(path) for path in files},
    )
    # Written last: a directory without it is no backup.
    text = json.dumps({"format": FORMAT, **asdict(manifest)}, indent=1, sort_keys=True)
    write_atomically(directory / FILE, text.encode())
    return manifest


def absolute(directory: Path, state_dir: Path, ledger_url: str) -> tuple[Path, Path, sa.URL]:
    """Return the two directories and the ledger as absolute places, wherever this process goes.

    Raises:
        BackupError: the backup would be inside of what it saves.
        ConfigurationError: the ledger's is no URL of one.
    """
    directory, state_dir = directory.expanduser().resolve(), state_dir.expanduser().resolve()
    if directory.is_relative_to(state_dir):
        raise BackupError(
            f"{directory} lies inside of the state directory {state_dir}, and would be lost with it. "
            "Use a directory elsewhere, best on another disk.",
            code="inside-state",
        )
    url = checked_url(ledger_url)
    if url.get_backend_name() == "sqlite":
        database = Path(url.database or "")
        url = url.set(database=str(database.parent.resolve() / database.name))
    return directory, state_dir, url


def open_ledger(url: sa.URL) -> Ledger:
    """Open the ledger at `url`."""
    return Ledger.open(url.render_as_string(hide_password=False))


def _copy(directory: Path, state_dir: Path, url: sa.URL, ledger: Ledger) -> tuple[int, str]:
    """Copy everything at a moment at which the newest checkpoint and the ledger belong together."""
    store = CheckpointStore(state_dir / CHECKPOINTS)
    for _ in range(_ATTEMPTS):
        shutil.rmtree(directory / STATE, ignore_errors=True)
        before, newest = _newest_event(ledger), store.newest_file()
        try:
            for path in _state_files(state_dir, url):
                copy_private(path, directory / STATE / path.relative_to(state_dir))
            if newest is not None:
                copy_private(newest, directory / STATE / CHECKPOINTS / newest.name)
        except FileNotFoundError:  # a round has ended meanwhile
            continue
        dump_ledger(url, directory / DUMPS[url.get_backend_name()])
        if _newest_event(ledger) == before and store.newest_file() == newest:
            return before
    raise BackupError(
        f"The federation moved on during each of {_ATTEMPTS} attempts. Try again, or stop the ServerApp for it.",
        code="moved-on",
    )


def _newest_event(ledger: Ledger) -> tuple[int, str]:
    """Return sequence number and hash of the newest event of a request; 0 and "" where there is none."""
    newest = ledger.events.last_of_requests()
    return newest, ledger.events.hash_of(newest) or ""


def _state_files(state_dir: Path, url: sa.URL) -> Iterator[Path]:
    """Yield all plain files but the ledger's, checkpoints (they carry what was forgotten, or will be), unfinished
    ones and what earlier restores left.
    """
    of_ledger = sqlite_files(Path(url.database or "")) if url.get_backend_name() == "sqlite" else ()
    for path in sorted(state_dir.rglob("*")):
        first = path.relative_to(state_dir).parts[0]
        skipped = first == CHECKPOINTS or first.startswith(NOT_COPIED)
        if skipped or path.name.startswith(".") or path in of_ledger:
            continue
        if path.is_symlink():
            _log.warning("%s is a link: it is not in the backup.", path)
        elif path.is_file():
            yield path


def read_verified(directory: Path) -> Manifest:
    """Return the manifest of the backup in `directory`, whose files are all there and what they were.

    Raises:
        BackupError: it is no backup, or damaged.
    """
    try:
        values = json_object(read_plain(directory / FILE, MAX_JSON_BYTES))
        if values.pop("format") != FORMAT:
            raise ValueError("its format is not known to this program, which is older")
        manifest = from_plain(Manifest, values, exactly=True)
        _check_values(manifest)
    except FileNotFoundError:
        raise BackupError(
            f"{directory} is no backup: it has no {FILE}. A backup that broke off has none.", code="no-backup"
        ) from None
    except (OSError, UpdateRefused, ValueError, KeyError, TypeError, AttributeError) as exc:
        raise BackupError(
            f"{directory / FILE} is damaged: {exc}. Use another backup.", code="damaged-manifest"
        ) from exc
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
        is_whole = _sha256_of(path) == digest
    except OSError as exc:
        raise BackupError(
            f"{str(path)!r} is missing or no file of a backup: {exc.strerror}. Use another one.",
            code="strange-file",
        ) from exc
    if not is_whole:
        raise BackupError(
            f"{str(path)!r} is not what it was when the backup was made. Use another one.",
            code="damaged-file",
            name=name,
        )


def _check_values(manifest: Manifest) -> None:
    """Refuse what `back_up` never writes, before any of it is believed.

    Raises:
        ValueError: says what.
    """
    dump = DUMPS.get(manifest.ledger)
    if dump is None or dump not in manifest.sha256:
        raise ValueError("it does not name the ledger, without which there is no federation")
    for name in manifest.sha256:
        path = PurePosixPath(name)
        is_plain = name == path.as_posix() and not {"..", "/"} & {*path.parts} and not {"\0", "\\"} & {*name}
        inside = path.parts[:1] == (STATE,) and len(path.parts) > 1
        if name != dump and not (is_plain and inside and not path.parts[1].startswith(NOT_COPIED)):
            raise ValueError(
                f"it names {name!r}, which is outside of the backup or no file of a state directory"
            )


def _sha256_of(path: Path) -> str:
    with open_plain(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def dump_ledger(url: sa.URL, destination: Path) -> None:
    """Write the database to `destination` as of one moment, while others write to it.

    Raises:
        BackupError: it cannot be copied.
    """
    destination.unlink(missing_ok=True)
    open_private(destination, is_new=True).close()
    if url.get_backend_name() == "postgresql":
        run_postgresql("pg_dump", url, "--format=custom", "--no-owner", f"--file={destination}")
        return
    try:
        with (
            closing(sqlite3.connect(url.database or "")) as source,
            closing(sqlite3.connect(destination)) as copy,
        ):
            source.backup(copy)
            copy.execute("PRAGMA journal_mode = DELETE")  # one file, without a -wal beside it
    except sqlite3.Error as exc:
        raise BackupError(f"The ledger {url.database} cannot be copied: {exc}.", code="no-copy") from exc


def run_postgresql(program: str, url: sa.URL, *arguments: str | Path) -> None:
    """Run one of PostgreSQL's client programs on the ledger's database.

    Raises:
        BackupError: it is missing or fails.
    """
    path = shutil.which(program)
    if path is None:
        raise BackupError(
            f"{program} is not installed; it comes with PostgreSQL's client programs.", code="no-program"
        )
    # The password goes by the environment: every account of the machine can read the arguments.
    environment = {**os.environ, "PGPASSWORD": url.password} if url.password else dict(os.environ)
    address = url.set(drivername="postgresql", password=None).render_as_string(hide_password=False)
    done = subprocess.run(
        [path, f"--dbname={address}", *map(str, arguments)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=_DUMP_TIMEOUT_S,
        check=False,
    )
    if done.returncode != 0:
        reason = done.stderr.strip().splitlines()[-3:]
        raise BackupError(
            f"{program} failed: {' '.join(reason) or f'exit code {done.returncode}'}", code="program-failed"
        )
