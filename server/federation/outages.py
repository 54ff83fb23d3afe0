"""Going on after an outage of what the live loop writes to: a full disk, a database that is away.

The loop waits and tries again, as after a restart but without losing its place at the SuperLink:
from the newest checkpoint, after bringing ledger and checkpoint together. A round that was under way is done
again, with the same result.
"""

import errno
import time
from collections.abc import Callable
from logging import getLogger

from server.federation.state import FederationState
from server.ledger import LedgerUnavailable
from unlearning.runtime.growing_pause import GrowingPause

_log = getLogger(__name__)

_PAUSE = GrowingPause(first_s=1.0, longest_s=60.0)
# What a disk or a network file system says when an operator can mend it while we wait.
_DISK_OUTAGES = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ESTALE})


def is_outage(error: BaseException) -> bool:
    """Return whether waiting can help: the ledger's database or the disk does not take what is written."""
    return isinstance(error, LedgerUnavailable) or (
        isinstance(error, OSError) and error.errno in _DISK_OUTAGES
    )


def run_through_outages(
    run: Callable[[FederationState], FederationState],
    begin: Callable[[], FederationState],
    *,
    wait: Callable[[float], None] = time.sleep,
) -> FederationState:
    """Return `run(begin())`; after each outage it waits and runs again from what `begin` then returns.

    No state is held here while another one follows it in `run`: each has models.

    Raises:
        Fenced: another server process has taken over while this one waited.
        Exception: whatever else `run` raises.
    """
    failures, failed_at = 0, -1
    while True:
        states = [begin()]
        number = states[0].round
        try:
            return run(states.pop())
        except Exception as exc:
            if not is_outage(exc):
                raise
            failures = failures + 1 if number == failed_at else 1
            failed_at = number
            delay_s = _PAUSE.after(failures)
            _log.error(
                "Nothing can be saved. Waiting %g s, then going on from the newest checkpoint: %s",
                delay_s,
                exc,
            )
            wait(delay_s)
