"""The record of refused calls, which no caller can use to fill the disk."""

import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime

from server.ledger import Ledger, LedgerUnavailable, Refusal
from server.service.access import Caller
from server.service.limits import TokenBucket
from server.service.statuses import AccessDenied, status_of
from unlearning.errors import FlowerUnlearningError

log = logging.getLogger(__name__)

# A caller's refusals beyond these are counted and written as one row with its next, or at the end.
ROWS_PER_S = 1.0
ROWS_AT_ONCE = 100.0


class RefusalLog:
    """Every refusal of the service, in the ledger before the caller has its answer."""

    def __init__(
        self, ledger: Ledger, *, clock: Callable[[], datetime], monotonic: Callable[[], float]
    ) -> None:
        self._ledger = ledger
        self._clock = clock
        self._monotonic = monotonic
        self._rows: dict[str, TokenBucket] = {}
        self._counted: dict[tuple[str, str, str], Refusal] = {}
        self._lock = threading.Lock()

    def take(self, caller: Caller, call: str, error: FlowerUnlearningError) -> list[Refusal]:
        """Count a refusal, and return what is to be written of it now: often nothing."""
        # What a caller may not know is the cause of the error that it gets (access.check_may_see).
        reason = error.__cause__ if isinstance(error.__cause__, AccessDenied) else error
        refusal = Refusal(
            at=self._clock(),
            caller=caller.name,
            role=str(caller.role or ""),
            call=call,
            reason=str(reason),
            detail={"error": type(error).__name__, "status": status_of(error).name, "times": 1},
        )
        with self._lock:
            bucket = self._rows.setdefault(caller.name, TokenBucket(ROWS_PER_S, ROWS_AT_ONCE))
            if bucket.take(self._monotonic()):
                self._count(refusal)
                return []
            return [*self._counted_of(caller.name), refusal]

    def close(self) -> None:
        """Write down what was only counted."""
        with self._lock:
            rows = list(self._counted.values())
            self._counted.clear()
        self.write(rows)

    def _count(self, refusal: Refusal) -> None:
        key = (refusal.caller, refusal.call, str(refusal.detail["error"]))
        before = self._counted.get(key)
        times = 1 + (int(before.detail["times"]) if before else 0)
        self._counted[key] = replace(refusal, detail={**refusal.detail, "times": times})

    def _counted_of(self, caller: str) -> list[Refusal]:
        keys = [key for key in self._counted if key[0] == caller]
        return [self._counted.pop(key) for key in keys]

    def write(self, rows: list[Refusal]) -> None:
        """Write refusals down. A ledger that cannot be written is logged; the refusals stand."""
        try:
            self._ledger.record_refusals(rows)
        except LedgerUnavailable as exc:
            for row in rows:
                log.error("A refusal could not be written down (%s): %s %s", exc, row.caller, row.call)
