"""Files in a folder that another party fills: a site's keys, a server's answer, a backup, a certificate.

Such a folder can hold links to our own secrets, pipes that never end and files without a bound, and it can change while
it is read. So each part of a path is opened below the one before, no link is followed, and what was opened is checked,
not what was there before. A hard link is a plain file: callers check the content, and write elsewhere.
"""

import errno
import os
import stat
from io import BufferedReader
from pathlib import Path

MAX_BYTES = 2**26
"""Of a file that is read as a whole: the longest list of sample ids, and any report."""

_FOLDER = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def open_plain(path: Path) -> BufferedReader:
    """Open a plain file, whose path has no link in any part; never waits.

    Where the folder is the caller's own choice, resolve that part first: `folder.resolve() / name`.

    Raises:
        OSError: it is not there, is a link or behind one, no plain file, or cannot be read.
    """
    root, *folders = path.absolute().parts
    if not folders:
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    name = folders.pop()
    try:
        folder = os.open(root, _FOLDER)
        try:
            for part in folders:
                inner = os.open(part, _FOLDER, dir_fd=folder)
                os.close(folder)
                folder = inner
            descriptor = os.open(name, _FILE, dir_fd=folder)
        finally:
            os.close(folder)
    except ValueError as exc:  # a zero byte in the path
        raise OSError(errno.EINVAL, str(exc), str(path)) from exc
    except OSError as exc:
        is_link = exc.errno in (errno.ELOOP, errno.ENOTDIR)  # or a file where a folder should be
        raise OSError(
            exc.errno, "it is, or lies behind, a link" if is_link else exc.strerror, str(path)
        ) from exc
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no plain file", str(path))
    return os.fdopen(descriptor, "rb")


def read_plain(path: Path, max_bytes: int = MAX_BYTES) -> bytes:
    """Return the content of a plain file, as `open_plain` opens it.

    Raises:
        OSError: as `open_plain`, or it is longer than `max_bytes`.
    """
    with open_plain(path) as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise OSError(errno.EFBIG, f"it is longer than {max_bytes:,} bytes", str(path))
    return content
