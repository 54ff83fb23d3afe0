"""Files that survive a crash: after one they are the old ones or the new ones, never half of it."""

import os
from pathlib import Path


def write_atomically(path: Path, content: bytes) -> None:
    """Write `content` to `path`; when this returns the file is durable. Makes the directory if need be.

    Raises:
        OSError: the directory cannot be written to.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with partial.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


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
