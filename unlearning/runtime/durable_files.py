"""Files that survive a crash and that nobody else reads.

After a crash they are the old ones or the new ones, never half of it. Whatever the umask says, files are made
with mode 600 and directories with mode 700: they hold models, names and what was forgotten. What root makes belongs to
the owner of the directory that it is in, so that a command that root runs leaves nothing that a service cannot read.
"""

import errno
import fcntl
import os
import re
import shutil
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from logging import getLogger
from pathlib import Path
from typing import IO

from unlearning.runtime.foreign_files import open_plain

_log = getLogger(__name__)

OTHERS = 0o077
"""The bits of a mode that give others anything."""
_PARTIAL = re.compile(r"\..+\.\d+")
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def write_atomically(path: Path, content: bytes, *, mode: int = 0o600) -> None:
    """Write `content` to `path`; when this returns the file is durable. Makes the directory if need be.

    mode: 0o644 for what everybody may read, such as a certificate; 0o700 for a program, which its owner can run from
    the moment that it is there, while what runs the old one keeps that.

    Raises:
        OSError: the directory cannot be written to.
    """
    with durable_file(path, mode=mode) as file:
        file.write(content)


def write_new(path: Path, content: bytes, *, mode: int = 0o600) -> None:
    """Write a file that must not be there yet, all of it or nothing; of two processes at once, one wins.

    Raises:
        FileExistsError: there is one already.
        OSError: the directory cannot be written to.
    """
    with durable_file(path, mode=mode, is_new=True) as file:
        file.write(content)


def copy_private(source: Path, destination: Path) -> None:
    """Copy a plain file durably; while it is not all there, `destination` is not there.

    Raises:
        OSError: `source` is, or lies behind, a link; it cannot be read or written.
    """
    with open_plain(source) as content, durable_file(destination) as file:
        shutil.copyfileobj(content, file)


@contextmanager
def durable_file(path: Path, *, mode: int = 0o600, is_new: bool = False) -> Iterator[IO[bytes]]:
    """Give a private file beside `path` to write to, and put it there when it is durable; or leave nothing.

    What is written a piece at a time is not held in memory as a whole. mode: as of `write_atomically`; is_new: as
    `write_new`.

    Raises:
        FileExistsError: it is to be new, and there is one already.
        OSError: the directory cannot be written to. Of a full disk it names `path`.
    """
    make_private(path.parent)
    partial = partial_of(path)
    partial.unlink(missing_ok=True)  # of a process that died, or put there: a pipe, or a link to another file
    try:
        with open_private(partial, is_new=True) as file:
            give_to_owner(file.fileno(), path)
            os.fchmod(file.fileno(), mode)
            yield file
            file.flush()
            os.fsync(file.fileno())
            if is_new:
                os.link(partial, path)
            else:
                partial.replace(path)
    except OSError as exc:
        if exc.errno in _FULL and exc.filename is None:
            exc.filename = str(path)  # so that the message says which disk
        raise
    finally:
        partial.unlink(missing_ok=True)
    sync_directory(path.parent)


def partial_of(path: Path) -> Path:
    """Return where the content of `path` is while this process has not written all of it."""
    return neighbour(path, f".{path.name}.{os.getpid()}")


def neighbour(path: Path, name: str) -> Path:
    """Return the file `name` beside a file.

    Raises:
        IsADirectoryError: `path` has no name of its own, as `/` and an empty one.
    """
    if not path.name:
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    return path.with_name(name)


def erase_partials(directory: Path) -> list[Path]:
    """Overwrite and erase what processes that died left half-written at and below `directory`.

    Only where no other process writes.
    """
    named = [path for path in directory.rglob(".*") if _PARTIAL.fullmatch(path.name)]
    found = [path for path in named if path.is_file() and not path.is_symlink()]
    for path in found:
        overwrite(path)
        path.unlink()
    return found


@contextmanager
def file_lock(path: Path) -> Iterator[None]:
    """Hold the lock that this file is, waiting for other processes and threads; the file stays, for its owner alone.

    Raises:
        OSError: it cannot be made.
    """
    make_private(path.parent)
    with open_private(path) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def make_private(directory: Path) -> None:
    """Make `directory` and what is missing above it, for the owner only; what is there stays as it is.

    Raises:
        OSError: it cannot be made.
    """
    if directory.is_dir():
        return
    make_private(directory.parent)
    try:
        directory.mkdir(mode=0o700)
    except FileExistsError:
        if directory.is_dir():  # another process has made it at this very moment
            return
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(directory)) from None
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        give_to_owner(descriptor, directory)
    finally:
        os.close(descriptor)


def give_to_owner(descriptor: int, path: Path) -> None:
    """As root, give the new file or directory at `path` to the owner of the directory that it is in.

    Where that is root, a file keeps the owner of the one that it replaces. A file with a second name is left: a
    service can link any file into a directory of its own.
    """
    if os.geteuid() == 0 and _is_roots(os.fstat(descriptor)):
        owner = path.parent.stat()
        if owner.st_uid == 0:
            owner = path.lstat() if path.is_file() else owner
        with suppress(OSError):  # root of a container may not be able to; `check` names what it leaves
            os.fchown(descriptor, owner.st_uid, owner.st_gid)


def give_all_to_owner(directory: Path) -> None:
    """As root, give what another program has made as root below `directory` to the owner of `directory`."""
    owner = directory.stat() if os.geteuid() == 0 and directory.is_dir() else None
    if owner is not None and owner.st_uid != 0:
        for path in directory.rglob("*"):
            if _is_roots(path.lstat()):
                os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)


def _is_roots(found: os.stat_result) -> bool:
    return found.st_uid == 0 and (stat.S_ISDIR(found.st_mode) or found.st_nlink == 1)


def open_private(path: Path, *, append: bool = False, is_new: bool = False) -> IO[bytes]:
    """Open a file for writing that only its owner can read, also if it was there before.

    Raises:
        OSError: it cannot be opened, is a symbolic link, or is there though it should be new.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | (os.O_APPEND if append else os.O_TRUNC)
    flags |= os.O_EXCL if is_new else 0
    descriptor = os.open(path, flags, 0o600)
    os.fchmod(descriptor, 0o600)
    give_to_owner(descriptor, path)
    return os.fdopen(descriptor, "ab" if append else "wb")


def keep_private() -> None:
    """Make files from now on that its owner alone can read; for the start of a program."""
    os.umask(OTHERS)


def open_to_others(paths: Iterable[Path]) -> Iterator[Path]:
    """Yield what others can read, write or enter, of `paths` and of all below them. Links are not followed."""
    for path in paths:
        below = path.rglob("*") if path.is_dir() and not path.is_symlink() else ()
        for found in (path, *below):
            if not found.is_symlink() and found.exists() and found.stat().st_mode & OTHERS:
                yield found


def sqlite_files(database: Path) -> tuple[Path, ...]:
    """Return the file of an SQLite database and those that SQLite keeps beside it; not all need to exist."""
    return tuple(database.with_name(f"{database.name}{end}") for end in ("", "-wal", "-shm", "-journal"))


def close_to_others(paths: Iterable[Path]) -> list[Path]:
    """Take from others what they can do with `paths` and all below; gives what was open.

    Raises:
        OSError: a file belongs to somebody else.
    """
    found = list(open_to_others(paths))
    for path in found:
        path.chmod(path.stat().st_mode & 0o700)
    return found


def close_state(directory: Path, patterns: Iterable[str]) -> None:
    """Close to others what is ours by name in a state directory, and say what was open.

    By name: a state directory that is also somebody's home keeps its other files as they are.

    Raises:
        OSError: a file belongs to another user.
    """
    opened = close_to_others(path for pattern in patterns for path in sorted(directory.glob(pattern)))
    if opened:
        _log.warning(
            "%d file(s) and directories in %s could be read by others (%s first); from now on by their owner alone.",
            len(opened),
            directory,
            opened[0],
        )


def overwrite(path: Path) -> None:
    """Put zeros in the place of a file's content, durably; the file stays.

    Journals, snapshots and the flash of an SSD may keep the old blocks all the same.

    Raises:
        OSError: the file is not there or cannot be written to.
    """
    with path.open("r+b") as file:
        file.write(bytes(path.stat().st_size))
        file.flush()
        os.fsync(file.fileno())


def sync_directory(directory: Path) -> None:
    """Make renames and removals in `directory` durable."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
