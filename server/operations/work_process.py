"""A process beside this one that runs what needs PyTorch, while there is anything to run.

PyTorch takes some 500 MB, and most of the time nothing is filed or planned. The process starts at the first call, and
ends when there was none for a while or with the process that started it.
"""

import signal
import subprocess
import sys
import threading
import traceback
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe
from typing import Any

from server.operations.logs import log_to_stderr
from server.service.deletion_service import run_here
from server.service.statuses import ServiceUnavailable
from unlearning.errors import FlowerUnlearningError

IDLE_S = 600.0
_GONE = (
    "The process that knows the methods has ended. Send this again, a filing under the same idempotency key."
)


class WorkProcess:
    """Runs functions by their place (`module:name`) in a process of its own, one at a time.

    idle_s: after so long without a call the process ends.
    """

    def __init__(self, *, idle_s: float = IDLE_S) -> None:
        self._idle_s, self._lock = idle_s, threading.Lock()
        self._child: tuple[subprocess.Popen[bytes], Connection[Any, Any]] | None = None

    def run(self, place: str, *args: Any, **given: Any) -> Any:
        """Return what the function gives, or raise what it raises.

        Raises:
            ServiceUnavailable: the process ended before it answered.
        """
        with self._lock:
            answer = self._ask((place, args, given)) or self._ask((place, args, given))
        assert answer is not None, "a process that was just started is not idle"
        result, error = answer
        if error is not None:
            raise error
        return result

    def close(self) -> None:
        """End the process, after what it runs."""
        with self._lock:
            self._end()

    def _ask(self, job: Any) -> tuple[Any, Exception | None] | None:
        """Return result and error; None where the process had been idle for so long that it has ended instead."""
        self._child = self._child or self._start()
        _, connection = self._child
        with suppress(OSError):  # it has ended; whether for lack of calls, it has said
            connection.send(job)
        try:
            answer: tuple[Any, Exception | None] | None = connection.recv()
        except (EOFError, OSError):
            self._end()
            raise ServiceUnavailable(_GONE) from None
        if answer is None:
            self._end()
        return answer

    def _start(self) -> "tuple[subprocess.Popen[bytes], Connection[Any, Any]]":
        ours, theirs = Pipe()
        with theirs:
            number = theirs.fileno()
            command = (sys.executable, "-m", "server.operations.work_process", str(number), str(self._idle_s))
            return subprocess.Popen(command, pass_fds=(number,), stdin=subprocess.DEVNULL), ours

    def _end(self) -> None:
        if self._child is not None:
            process, connection = self._child
            connection.close()
            process.wait()
        self._child = None


def answer_all(connection: "Connection[Any, Any]", idle_s: float) -> None:
    """Run what comes over a connection until the other side is gone, or nothing came for `idle_s` seconds."""
    while connection.poll(idle_s):
        result: Any = None
        error: Exception | None = None
        try:
            place, args, given = connection.recv()  # a ledger among them is opened
            result = run_here(place, *args, **given)
        except EOFError:
            return
        except FlowerUnlearningError as exc:
            error = exc
        except Exception as exc:  # noqa: BLE001 - whatever it is, the other side raises something
            traceback.print_exc()
            error = RuntimeError(repr(exc))  # a foreign error may not travel
        connection.send((result, error))
    connection.send(None)


if __name__ == "__main__":
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C in a terminal is for the process that started this one
    log_to_stderr()
    answer_all(Connection(int(sys.argv[1])), float(sys.argv[2]))
