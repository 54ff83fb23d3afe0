"""Restore of a backup, so that a kill at any point leaves the old state, the new one, or a named one.

A restore goes back in time, and a deletion that was carried out since would be undone: the model would again
hold what it has forgotten. So it is refused where the present ledger has gone on, unless it is forced.

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
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

import sqlalchemy as sa

from server.certificate.keys import load_public_key
from server.ledger import PRIVATE_TRAINING, Ledger, LedgerUnavailable
from server.operations.backup import (
    DUMPS,
    STATE,
    Manifest,
    absolute,
    check_file,
    dump_ledger,
    open_ledger,
    read_verified,
    run_postgresql,
)
from server.operations.certified_deletions import Certified, read_certified, unknown_to
from server.operations.replaying import Lost, file_again, lost_since
from server.state_directory.files import REPLACED, RESTORE_JOURNAL, RESTORING, SUBJECT_KEY, UNDONE_FILE
from server.state_directory.subject_key import read_subject_keys
from unlearning.errors import BackupError
from unlearning.requests import Status
from unlearning.runtime.durable_files import (
    copy_private,
    make_private,
    sqlite_files,
    sync_directory,
    write_atomically,
)
from unlearning.runtime.json_codec import from_plain, to_plain


@dataclass(frozen=True, slots=True, kw_only=True)
class Restore:
    """A restore, as its journal keeps it.

    made_at, event_sequence: of the backup. ledger: its kind. compared: whether there was a ledger to compare with.
    undone: the deletions, and the requests, that the federation will no longer know of, one sentence each.
    lost: those of them that are filed again. certified: deletions that certificates show which were kept elsewhere.
    filed_again: the new numbers, by those of before; by_hand: what could not be filed, one sentence each.
    aside: the directory in the state directory for what was there. is_aside: whether all of it is there.
    token: of the newest fence so far.
    """

    made_at: str
    ledger: str
    event_sequence: int
    aside: str
    token: int
    undone: tuple[str, ...]
    compared: bool
    lost: tuple[Lost, ...] = ()
    certified: tuple[Certified, ...] = ()
    filed_again: Mapping[str, str] = field(default_factory=dict)
    by_hand: tuple[str, ...] = ()
    is_aside: bool = False


def restore(
    directory: Path,
    *,
    state_dir: Path,
    ledger_url: str,
    now: datetime,
    force: bool = False,
    certificates: Path | None = None,
    public_key: Path | None = None,
) -> Restore:
    """Put the backup in `directory` in the place of the federation in `state_dir`; all services are stopped.

    What was there is moved aside, not erased. A ServerApp that still runs is fenced off. A restore that was broken
    off is finished instead.
    certificates: a file or folder of certificates that were kept elsewhere; what they show and neither the backup nor
        the present ledger knows is filed again. public_key: the file of the key that must have signed them.

    Raises:
        BackupError: the backup is damaged, of another kind of database, going back would undo something
            and `force` is not given, or there are no `certificates` where they should be.
        CertificateError: `public_key` holds no key.
        LedgerUnavailable: the present ledger cannot be read, and `force` is not given.
    """
    directory, state_dir, url = absolute(directory, state_dir, ledger_url)
    begun = broken_off_restore(state_dir)
    if begun is None:
        certified = _certified(directory, certificates, public_key)
        begun = replace(_prepare(directory, state_dir, url, now=now, force=force), certified=certified)
        _write_journal(state_dir, begun)
    _refuse_other_kind(url, begun.ledger)
    try:
        return _finish(state_dir, url, begun, now=now)
    except OSError as exc:
        raise BackupError(
            f"The restore was broken off: {exc}. Mend the cause and give the same command again, which goes on; until "
            f"then nothing starts on {state_dir} ({RESTORE_JOURNAL}). What was there before is in {begun.aside}.",
            code="broken-off",
        ) from exc


def _certified(directory: Path, certificates: Path | None, public_key: Path | None) -> tuple[Certified, ...]:
    if certificates is None:
        return ()
    saved = directory / STATE / SUBJECT_KEY
    keys = read_subject_keys(saved) if saved.is_file() else None
    return read_certified(
        certificates, keys=keys, public_key=None if public_key is None else load_public_key(public_key)
    )


def broken_off_restore(state_dir: Path) -> Restore | None:
    """Return the restore that was broken off, if one was.

    Raises:
        BackupError: the journal cannot be read.
    """
    path = state_dir.expanduser() / RESTORE_JOURNAL
    if not path.exists():
        return None
    try:
        return from_plain(Restore, json.loads(path.read_text(encoding="utf-8")), exactly=True)
    except ValueError as exc:
        raise BackupError(
            f"{path}, the journal of a restore that was broken off, is damaged: {exc}. What was there before is in "
            f"{state_dir}/{REPLACED}*, what was to come in {state_dir / RESTORING}. Move one of the two in, and erase "
            "it.",
            code="damaged-journal",
        ) from exc


def _prepare(directory: Path, state_dir: Path, url: sa.URL, *, now: datetime, force: bool) -> Restore:
    """Check the backup against the present ledger and copy it to beside its place; nothing there is changed."""
    manifest = read_verified(directory)
    _refuse_other_kind(url, manifest.ledger)
    undone, lost, token, compared = _compare(url, manifest, now=now, force=force)
    if undone and not force:
        raise BackupError(
            f"Restoring this backup of {manifest.made_at} would undo what happened since:\n"
            + "\n".join(f"  - {line}" for line in undone)
            + "\nUse a newer backup. If there is none, give --force: what was carried out or open is then filed again, "
            "and carried out again when the federation runs.",
            code="would-undo",
            undone=undone,
        )
    staged = state_dir / RESTORING
    try:
        shutil.rmtree(staged, ignore_errors=True)
        for name, digest in manifest.sha256.items():
            copy_private(directory / name, staged / name)
            check_file(staged, name, digest)
    except OSError as exc:
        raise BackupError(
            f"The backup could not be copied: {exc}. What is there was not touched.", code="not-copied"
        ) from exc
    aside = f"{REPLACED}{now:%Y%m%dT%H%M%S%f}"
    while (state_dir / aside).exists():  # clocks are put back
        aside += "-again"
    return Restore(
        made_at=manifest.made_at,
        ledger=manifest.ledger,
        event_sequence=manifest.event_sequence,
        aside=aside,
        token=token,
        undone=undone,
        compared=compared,
        lost=lost,
    )


def _refuse_other_kind(url: sa.URL, ledger: str) -> None:
    if url.get_backend_name() != ledger:
        raise BackupError(
            f"The backup holds a {ledger} ledger, --ledger is {url.get_backend_name()}.", code="other-kind"
        )


def _compare(
    url: sa.URL, manifest: Manifest, *, now: datetime, force: bool
) -> tuple[tuple[str, ...], tuple[Lost, ...], int, bool]:
    """Return what a restore would undo, in sentences and to be filed again, the newest fencing token, and whether there
    was a ledger to compare with.
    """
    if url.get_backend_name() == "sqlite" and not Path(url.database or "").exists():
        return (), (), 0, False
    try:
        ledger = open_ledger(url)
    except LedgerUnavailable:
        if force:
            return ("everything since then: the present ledger cannot be read",), (), 0, False
        raise
    with closing(ledger):
        undone = tuple(_events_to_undo(ledger, manifest))
        # Before anything is moved: a ServerApp that still runs writes nothing from here on.
        token = ledger.acquire_fence("restore", now=now) if force or not undone else 0
        is_ours = (ledger.events.hash_of(manifest.event_sequence) or "") == manifest.event_hash
        lost = tuple(lost_since(ledger, manifest.event_sequence)) if undone and is_ours else ()
        return undone, lost, token, True


def _events_to_undo(ledger: Ledger, manifest: Manifest) -> Iterator[str]:
    """Yield one sentence for each thing that the present ledger knows and the backup does not."""
    known = ledger.events.hash_of(manifest.event_sequence) or ""
    if ledger.events.last_of_requests() and known != manifest.event_hash:
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


def _write_journal(state_dir: Path, begun: Restore) -> None:
    write_atomically(state_dir / RESTORE_JOURNAL, json.dumps(to_plain(begun), indent=1).encode())


def _finish(state_dir: Path, url: sa.URL, begun: Restore, *, now: datetime) -> Restore:
    """Carry out what the journal says, and say what was done; every step of it can be done again."""
    if not begun.is_aside:
        _move_aside(state_dir, url, state_dir / begun.aside)
        _write_journal(state_dir, replace(begun, is_aside=True))
    staged = state_dir / RESTORING
    if (staged / STATE).is_dir():
        _move_all((staged / STATE).iterdir(), state_dir)
    dump = staged / DUMPS[begun.ledger]
    if dump.exists():
        _put_ledger(dump, url)
    with closing(open_ledger(url)) as ledger:
        # Tokens that were handed out after the backup must stay worthless.
        while (token := ledger.acquire_fence("restore", now=now)) <= begun.token:
            pass
        _mark_rounds_lost(ledger, token, now)
        done = _file_again(ledger, begun, now=now)
    if done.undone:
        said = {name: getattr(done, name) for name in ("undone", "filed_again", "by_hand")}
        text = json.dumps({"restored_at": now.isoformat(), **said}, indent=1)
        write_atomically(state_dir / UNDONE_FILE, text.encode())
    shutil.rmtree(staged, ignore_errors=True)
    (state_dir / RESTORE_JOURNAL).unlink()
    sync_directory(state_dir)
    return done


def _mark_rounds_lost(ledger: Ledger, token: int, now: datetime) -> None:
    """Note that rounds of private training since the backup are not counted any more."""
    if known := ledger.facts().get(PRIVATE_TRAINING):
        ledger.live(token, lambda: now).set_facts({PRIVATE_TRAINING: {**known, "is_restored": True}})


def _file_again(ledger: Ledger, begun: Restore, *, now: datetime) -> Restore:
    """File what was lost again: what certificates show and no ledger knows came first."""
    known = {one.request_id for one in begun.lost}
    certified = [one for one in unknown_to(ledger, begun.certified) if one.lost.request_id not in known]
    again = file_again(ledger, (*(one.lost for one in certified), *begun.lost), now=now)
    return replace(
        begun,
        undone=(*begun.undone, *(one.sentence for one in certified)),
        filed_again=again,
        by_hand=tuple(one.sentence for one in certified if one.lost.request_id not in again),
    )


def _move_aside(state_dir: Path, url: sa.URL, aside: Path) -> None:
    found = [path for path in state_dir.iterdir() if not path.name.startswith((REPLACED, RESTORING))]
    if url.get_backend_name() == "postgresql":
        make_private(aside)
        dump_ledger(url, aside / DUMPS["postgresql"])
    else:
        of_ledger = sqlite_files(Path(url.database or ""))  # it may be outside of the state directory
        found += [path for path in of_ledger if path.exists() and not path.is_relative_to(state_dir)]
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
        options = ("--clean", "--if-exists", "--no-owner", "--single-transaction", "--exit-on-error")
        run_postgresql("pg_restore", url, *options, dump)
        dump.unlink()
    else:
        database, *beside = sqlite_files(Path(url.database or ""))
        make_private(database.parent)
        # Of an older backup, which had those of a ledger with a name of its own: SQLite would read them.
        for path in beside:
            path.unlink(missing_ok=True)
        _move(dump, database)
