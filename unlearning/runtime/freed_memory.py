"""Overwriting what a process frees, so that what was read and dropped is not left in its memory.

`free` leaves the bytes where they are until something else takes the place. glibc can overwrite them as they are
freed (mallopt, M_PERTURB); blocks below about a kilobyte, and other C libraries, are left as they are.
"""

import ctypes
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

_M_PERTURB, _PATTERN = -6, 0xA5


@contextmanager
def overwrite_freed() -> Iterator[None]:
    """Have what is freed inside overwritten, garbage that is reachable no more included."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        yield
        return
    _leave_out_what_was_there()
    mallopt(_M_PERTURB, _PATTERN)
    try:
        yield
        gc.collect()
    finally:
        mallopt(_M_PERTURB, 0)


@cache
def _leave_out_what_was_there() -> None:
    """Have the garbage collector look only at what came after the first use: before, no data was read.

    Else it looks through all that PyTorch and Flower consist of, a quarter of a second each time.
    """
    gc.collect()
    gc.freeze()
