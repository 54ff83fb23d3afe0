"""Going on after an outage of what a process writes to: a full disk, a database that is away.

The process waits and begins again from what is durable, as after a restart but without losing its place in the
federation. What was under way is done again, with the same result.
"""

import errno
import time
from collections.abc import Callable
from logging import getLogger
from typing import Protocol, TypeVar

from unlearning.runtime.growing_pause import GrowingPause

_log = getLogger(__name__)

_PAUSE = GrowingPause(first_s=1.0, longest_s=60.0)
# What a disk or a network file system says when an operator can mend it while we wait.
_DISK_OUTAGES = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ESTALE})


class Begun(Protocol):
    """What `run_through_outages` runs: a state or a process, at a round."""

    @property
    def round(self) -> int:
        """The rounds that are behind it."""
        ...


B = TypeVar("B", bound=Begun)
R = TypeVar("R")


def is_disk_outage(error: BaseException) -> bool:
    """Return whether waiting can help: the disk does not take what is written."""
    return isinstance(error, OSError) and error.errno in _DISK_OUTAGES


def run_through_outages(
    run: Callable[[B], R],
    begin: Callable[[], B],
    *,
    is_outage: Callable[[BaseException], bool] = is_disk_outage,
    wait: Callable[[float], object] = time.sleep,
) -> R:
    """Return `run(begin())`; after each outage it waits and runs again from what `begin` then returns.

    Nothing that was begun is held here while `run` goes on from it: it has models.

    Raises:
        Exception: whatever else `begin` and `run` raise.
    """
    failures, failed_at = 0, -1
    while True:
        number = failed_at
        try:
            begun = [begin()]
            number = begun[0].round
            return run(begun.pop())
        except Exception as exc:
            if not is_outage(exc):
                raise
            failures = failures + 1 if number == failed_at else 1
            failed_at = number
            delay_s = _PAUSE.after(failures)
            _log.error(
                "Nothing can be saved. Waiting %g s, then going on from what was saved last: %s", delay_s, exc
            )
            wait(delay_s)
