"""Where the service's calls run: one event loop for what waits, a few threads for what blocks.

The ledger, the reports and PyTorch block, so their steps run in threads; waiting for a caller takes none. Operators
have threads of their own, which nobody else can keep busy.
"""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TypeVar

from server.api.access import Caller

# Twice as many, with those for metrics, stay below the ledger's connections (15).
NUM_THREADS = 6
_Answer = TypeVar("_Answer")


@cache
def event_loop() -> asyncio.AbstractEventLoop:
    """Return the one event loop of this process's services, in a thread of its own; gRPC's loops disturb each other."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="deletion-service", daemon=True).start()
    return loop


class Workers:
    """Threads for steps that block: some for operators, as many for everybody else."""

    def __init__(self, num_threads: int = NUM_THREADS) -> None:
        self._operators = ThreadPoolExecutor(num_threads, thread_name_prefix="operators")
        self._others = ThreadPoolExecutor(num_threads, thread_name_prefix="callers")

    async def run(self, caller: Caller, step: Callable[[], _Answer]) -> _Answer:
        """Run `step` in one of the caller's threads; return what it gives.

        A step that a hung-up caller waits for is not begun; one that runs is waited for, so that nobody can have
        more steps than places.
        """
        job = (self._operators if caller.is_operator else self._others).submit(step)
        answer = asyncio.wrap_future(job)
        try:
            return await asyncio.shield(answer)
        except asyncio.CancelledError:
            if not job.cancel():
                await asyncio.wait([answer])
                answer.exception()  # nobody is left to be told
            raise

    def close(self) -> None:
        """Begin no further step, and return when those that run are done."""
        for threads in (self._operators, self._others):
            threads.shutdown(cancel_futures=True)
