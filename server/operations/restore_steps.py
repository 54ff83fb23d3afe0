"""Putting a restored state in place, so that a kill at any point leaves the old state, the new one, or a named one.

    1. Everything is copied to STATE_DIR/restoring/ and checked there. A kill leaves the old state as it was.
    2. STATE_DIR/restoring.json says what is to be done. From here on a restore goes forward only.
    3. What was there is moved to STATE_DIR/replaced-TIME, then restoring.json says that this is done.
    4. What was copied is moved in, the ledger last, and restoring.json is erased.

While restoring.json is there, no ServerApp, deletion service or backup starts on this directory, and
`flower-unlearn restore` finishes these steps. Each of them is a rename, which can be done again.
"""

import errno
import json
import shutil
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import sqlalchemy as sa

from server.operations.backup_database import dump_postgresql, restore_postgresql
from server.operations.backup_manifest import DUMPS, STATE, Manifest, check_file
from server.state_directory.files import REPLACED, RESTORING
from unlearning.errors import BackupError
from unlearning.runtime.durable_files import copy_private, make_private, sync_directory, write_atomically
from unlearning.runtime.json_codec import from_plain

STAGED, JOURNAL = RESTORING, f"{RESTORING}.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Swap:
    """The moves of a restore, as its journal keeps them.

    aside: the directory in the state directory for what was there. is_aside: whether all of it is there.
    token: of the newest fence so far. undone: what the federation will no longer know of.
    """

    made_at: str
    ledger: str
    event_sequence: int
    aside: str
    token: int
    undone: tuple[str, ...]
    compared: bool
    is_aside: bool = False


def stage(directory: Path, state_dir: Path, manifest: Manifest) -> None:
    """Copy exactly what the manifest names to beside its place, and check the copies.

    Raises:
        BackupError: a file is not what the manifest says.
        OSError: it cannot be copied; nothing but the copies was touched.
    """
    staged = state_dir / STAGED
    shutil.rmtree(staged, ignore_errors=True)
    for name, digest in manifest.sha256.items():
        copy_private(directory / name, staged / name)
        check_file(staged, name, digest)


def begin(state_dir: Path, swap: Swap) -> None:
    """Write the journal: from now on the restore is finished, whatever happens."""
    write_atomically(state_dir / JOURNAL, json.dumps(asdict(swap), indent=1).encode())


def interrupted_restore(state_dir: Path) -> Swap | None:
    """Return the restore that was broken off, if one was.

    Raises:
        BackupError: the journal cannot be read.
    """
    path = state_dir / JOURNAL
    if not path.exists():
        return None
    try:
        return from_plain(Swap, json.loads(path.read_text(encoding="utf-8")), exactly=True)
    except ValueError as exc:
        raise BackupError(
            f"{path}, the journal of a restore that was broken off, is damaged: {exc}. What was there before is in "
            f"{state_dir}/{REPLACED}*, what was to come in {state_dir / STAGED}. Move one of the two in, and erase it."
        ) from exc


def refuse_half_restored(state_dir: Path) -> None:
    """Raise where a restore was broken off, for whatever is about to use the state directory.

    Raises:
        BackupError: says how to finish it.
    """
    if interrupted_restore(state_dir) is not None:
        raise BackupError(
            f"A restore into {state_dir} was broken off half-way. Finish it first: "
            "flower-unlearn restore BACKUP --state-dir DIR, as before."
        )


def finish(state_dir: Path, url: sa.URL, swap: Swap) -> Path | None:
    """Do what is left of steps 3 and 4, but for erasing the journal; return where the old state lies, if there was one.

    Raises:
        OSError, BackupError: it breaks off; doing it again goes on.
    """
    aside = state_dir / swap.aside
    if not swap.is_aside:
        _move_aside(state_dir, url, aside)
        begin(state_dir, replace(swap, is_aside=True))
    staged = state_dir / STAGED
    if (staged / STATE).is_dir():
        _move_all((staged / STATE).iterdir(), state_dir)
    dump = staged / DUMPS[swap.ledger]
    if dump.exists():
        _put_ledger(dump, url)
    return aside if aside.is_dir() else None


def end(state_dir: Path) -> None:
    """Say that the restore is over."""
    shutil.rmtree(state_dir / STAGED, ignore_errors=True)
    (state_dir / JOURNAL).unlink()
    sync_directory(state_dir)


def _move_aside(state_dir: Path, url: sa.URL, aside: Path) -> None:
    found = [path for path in state_dir.iterdir() if not path.name.startswith((REPLACED, RESTORING))]
    if url.get_backend_name() == "postgresql":
        make_private(aside)
        dump_postgresql(url, aside / DUMPS["postgresql"])
    else:
        database = Path(url.database or "")  # it may lie outside of the state directory
        found += [path for path in database.parent.glob(f"{database.name}*") if path.parent != state_dir]
    if found:
        make_private(aside)
    _move_all(found, aside)


def _move_all(paths: Iterable[Path], directory: Path) -> None:
    for path in sorted(paths):
        _move(path, directory / path.name)


def _move(path: Path, target: Path) -> None:
    """Rename; a ledger on another file system is copied first, and erased here once it is there."""
    try:
        path.rename(target)
    except OSError as exc:
        if exc.errno != errno.EXDEV:
            raise
        copy_private(path, target)
        path.unlink()
    sync_directory(target.parent)
    sync_directory(path.parent)


def _put_ledger(dump: Path, url: sa.URL) -> None:
    """Put the ledger in place last: without it nothing starts from a state that is there in part only."""
    if url.get_backend_name() == "postgresql":
        restore_postgresql(url, dump)
        dump.unlink()
    else:
        database = Path(url.database or "")
        make_private(database.parent)
        _move(dump, database)
