"""Where the service's calls run: one event loop for what waits, a few threads for what blocks.

The ledger, the reports and PyTorch block, so their steps run in threads; waiting for a caller takes none. Operators
have threads of their own, which no other caller can keep busy, and most of the interpreter.
"""

import asyncio
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TypeVar

from server.service.access import Caller
from server.service.statuses import ServiceUnavailable

# Together, with those for metrics, they stay below the ledger's connections (15).
OPERATORS, OTHERS = 6, 2
SWITCH_INTERVAL_S = 0.0005
"""So long a thread that computes may go on while another waits for the interpreter. A call waits for it after each
statement to the database, and with Python's 5 ms a client's long list would cost an operator a tenth of a second."""
RESTS, LONGEST_REST_S = 3.0, 5.0
"""A client's thread rests so many times as long as it, or another process for it, has computed, before it answers: long
lists take a quarter of the interpreter, and the rest is the operators'."""
_STOPS = (
    "The deletion service stops. Send this again when it is back, a filing under the same idempotency key."
)
_Answer = TypeVar("_Answer")


class _Elsewhere(threading.local):
    """What another process has computed for this thread's step. seconds: of the processor."""

    seconds = 0.0


elsewhere = _Elsewhere()


@cache
def event_loop() -> asyncio.AbstractEventLoop:
    """Return the one event loop of this process's services, in a thread of its own; gRPC's loops disturb each other."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="deletion-service", daemon=True).start()
    return loop


class Workers:
    """Threads for steps that block: some for operators, fewer for all others."""

    def __init__(self) -> None:
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        self._operators = ThreadPoolExecutor(OPERATORS, thread_name_prefix="operators")
        self._others = ThreadPoolExecutor(OTHERS, thread_name_prefix="callers")

    async def run(self, caller: Caller, step: Callable[[], _Answer]) -> _Answer:
        """Run `step` in one of the caller's threads; return what it gives.

        A step that a hung-up caller waits for is not begun; one that runs is waited for, so that no caller can have
        more steps than places.

        Raises:
            ServiceUnavailable: the service stops, and the step was not begun.
        """
        try:
            job = (
                self._operators.submit(step) if caller.is_operator else self._others.submit(_with_rest, step)
            )
        except RuntimeError:  # no thread begins anything any more
            raise ServiceUnavailable(_STOPS) from None
        answer = asyncio.wrap_future(job)
        try:
            return await asyncio.shield(answer)
        except asyncio.CancelledError:
            this = asyncio.current_task()
            if job.cancelled() and this is not None and not this.cancelling():  # by `close`
                raise ServiceUnavailable(_STOPS) from None
            if not job.cancel():
                await asyncio.wait([answer])
                answer.exception()  # the caller has hung up
            raise

    def close(self) -> None:
        """Begin no further step, tell those who wait for one, and return when those that run are done."""
        for threads in (self._operators, self._others):
            threads.shutdown(cancel_futures=True)


def _with_rest(step: Callable[[], _Answer]) -> _Answer:
    began_s, elsewhere.seconds = time.thread_time(), 0.0
    try:
        return step()
    finally:
        time.sleep(min(LONGEST_REST_S, RESTS * (time.thread_time() - began_s + elsewhere.seconds)))
