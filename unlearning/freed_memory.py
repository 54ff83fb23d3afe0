"""Overwriting what a process frees, so that what was read and dropped is not left in its memory.

`free` leaves the bytes where they are until something else takes the place. glibc can overwrite them as they are
freed (mallopt, M_PERTURB); blocks below about a kilobyte, and other C libraries, are left as they are.
"""

import ctypes
import gc
from collections.abc import Iterator
from contextlib import contextmanager

_M_PERTURB, _PATTERN = -6, 0xA5


@contextmanager
def overwrite_freed() -> Iterator[None]:
    """Have what is freed inside overwritten, garbage that is reachable no more included."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        yield
        return
    mallopt(_M_PERTURB, _PATTERN)
    try:
        yield
        gc.collect()
    finally:
        mallopt(_M_PERTURB, 0)
