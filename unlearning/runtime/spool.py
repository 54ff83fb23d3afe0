"""Files for numbers on their way: written once as they arrive, read through a memory map, gone with their last reader.

They have no name, so no other process finds one and no crash leaves one behind. What is read of them is the operating
system's to keep in memory or not. What is written to the map is this process's own: it takes memory by the page, and
the file stays as it came.
"""

import mmap
import os
import shutil
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unlearning.runtime.durable_files import make_private

_AT_ONCE = 2**24
"""Bytes of the disk that a file takes at once, which costs less than to take them with each write."""


class SpoolFile:
    """A file in `directory` that bytes are added to, `expected` of them in the end.

    Raises:
        OSError: the directory cannot be written to, now or later.
    """

    def __init__(self, directory: Path, expected: int) -> None:
        self._file = TemporaryFile(dir=directory, buffering=0)  # noqa: SIM115 - `mapped` closes it
        self._expected = expected
        self._size = self._taken = 0

    def __del__(self) -> None:
        if "_file" in self.__dict__:  # of an answer that broke off
            self._file.close()

    def __len__(self) -> int:
        return self._size

    def extend(self, data: bytes | memoryview) -> None:
        """Add to the file.

        Raises:
            OSError: the disk is full.
        """
        self._size += len(data)
        if self._size > self._taken:
            size = min(_AT_ONCE, self._expected - self._taken)
            take_room(self._file.fileno(), self._taken, size)
            self._taken += size
        rest = memoryview(data)
        while rest:
            rest = rest[self._file.write(rest) :]

    def mapped(self) -> mmap.mmap:
        """Return all that was added, which is something; nothing can be added later."""
        with self._file as file:
            return mmap.mmap(file.fileno(), self._size, access=mmap.ACCESS_COPY)


def take_room(descriptor: int, start: int, size: int) -> None:
    """Take room on the disk for bytes that will be written, where the file system can; errors are left to writing."""
    with suppress(OSError):
        os.posix_fallocate(descriptor, start, size)


def to_be_written(array: NDArray[Any]) -> NDArray[Any] | None:
    """Return numbers that lie in such a file so that they can be written to; None for all others."""
    owner: Any = array
    while isinstance(owner, np.ndarray):
        owner = owner.base
    if not isinstance(owner.obj if isinstance(owner, memoryview) else owner, mmap.mmap):
        return None
    own = array.view()
    with suppress(ValueError):  # the map of another file, which is only read
        own.flags.writeable = True
        return own
    return None


def make_spool(directory: Path) -> Path:
    """Make an empty directory for spool files: a file system that cannot do without names has some after a crash."""
    shutil.rmtree(directory, ignore_errors=True)
    make_private(directory)
    return directory
