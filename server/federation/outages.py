"""Going on after an outage of what the live loop writes to: a full disk, a database that is away.

The loop waits and tries again, as if it were started anew but without losing its place at the SuperLink:
from the newest checkpoint, after bringing ledger and checkpoint together. A round that was under way is done
again, with the same result.
"""

import errno
import time
from collections.abc import Callable
from dataclasses import dataclass
from logging import getLogger

from server.federation.checkpoints import CheckpointStore
from server.federation.state import FederationState
from server.ledger import LedgerUnavailable

_log = getLogger(__name__)

# What a disk or a network file system says when an operator can mend it while we wait.
_DISK_OUTAGES = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ESTALE})


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """Wait `first_s` after an outage, then twice as long each time, `longest_s` at most; without end."""

    first_s: float = 1.0
    longest_s: float = 60.0

    def delay_s(self, num_failures: int) -> float:
        """The wait after so many failures in a row, 1 or more."""
        return float(min(self.longest_s, self.first_s * 2.0 ** min(num_failures - 1, 30)))


def is_outage(error: BaseException) -> bool:
    """Whether waiting can help: the ledger's database or the disk does not take what is written."""
    return isinstance(error, LedgerUnavailable) or (
        isinstance(error, OSError) and error.errno in _DISK_OUTAGES
    )


def run_through_outages(
    run: Callable[[FederationState], FederationState],
    checkpoints: CheckpointStore,
    state: FederationState,
    *,
    patience: Patience | None = None,
    wait: Callable[[float], None] = time.sleep,
) -> FederationState:
    """`run(state)`; after each outage it waits and runs again from the newest checkpoint.

    Raises:
        Fenced: another server process has taken over while this one waited.
        Exception: whatever else `run` raises.
    """
    patience = patience or Patience()
    current, failures, failed_at = state, 0, -1
    while True:
        try:
            if failures:
                saved = checkpoints.newest()
                current = state if saved is None else saved
            return run(current)
        except Exception as exc:
            if not is_outage(exc):
                raise
            failures = failures + 1 if current.round == failed_at else 1
            failed_at = current.round
            delay_s = patience.delay_s(failures)
            _log.error(
                "Nothing can be saved. Waiting %g s, then going on from the newest checkpoint: %s",
                delay_s,
                exc,
            )
            wait(delay_s)
