"""When a program looks for garbage: never among what it imports, nor at its end, where all goes anyway.

What PyTorch and Flower bring is a million objects that stay. To look through them takes a sixth of the time of their
import, and half a second again when Python takes down its modules.
"""

import atexit
import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def nothing_collected() -> Iterator[None]:
    """Import in this block; what is there at its end is not looked through later either.

    So it also stays shared with the processes that are forked from this one.
    """
    was_enabled = gc.isenabled()
    gc.collect()  # what is garbage now would stay permanently
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()


def end_without_collecting() -> None:
    """Let this process end at once after all that it has to do; for the start of a program."""
    atexit.register(gc.freeze)
