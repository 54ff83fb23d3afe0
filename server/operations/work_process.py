"""A process beside this one that runs what needs PyTorch, while there is anything to run.

PyTorch takes some 500 MB, and most of the time nothing is filed or planned. The process starts at the first call, and
ends when there was none for a while or with the process that started it.
"""

import pickle
import queue
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe
from typing import Any, TypeAlias

from server.operations.logs import log_to_stderr
from server.service.deletion_service import run_here
from server.service.statuses import ServiceUnavailable
from server.service.workers import OPERATORS, OTHERS, SWITCH_INTERVAL_S, elsewhere
from unlearning.errors import FlowerUnlearningError

IDLE_S = 600.0
_GONE = (
    "The process that knows the methods has ended. Send this again, a filing under the same idempotency key."
)

_AT_ONCE = OPERATORS + OTHERS
"""How many calls run at once, as in the service: a list of 100,000 samples takes half a second, and delays no other."""
_Answer: TypeAlias = tuple[Any, Exception | None, float]
"""What a function gave, or raised, and the seconds of the processor that it took."""


@dataclass(frozen=True, slots=True)
class _Child:
    """The process. free: the connections to it that carry no call now; each carries one at a time."""

    process: "subprocess.Popen[bytes]"
    free: "queue.SimpleQueue[Connection[Any, Any]]"


class WorkProcess:
    """Runs functions by their place (`module:name`) in a process of its own, each call in a thread.

    idle_s: after so long without a call the process ends.
    """

    def __init__(self, *, idle_s: float = IDLE_S) -> None:
        self._idle_s, self._lock = idle_s, threading.Lock()
        self._child: _Child | None = None

    def run(self, place: str, *args: Any, **given: Any) -> Any:
        """Return what the function gives, or raise what it raises.

        Raises:
            ServiceUnavailable: the process ended before it answered.
        """
        answer = None
        while answer is None:  # a process that was just started is not idle
            answer = self._ask((place, args, given))
        result, error, seconds = answer
        elsewhere.seconds += seconds
        if error is not None:
            raise error
        return result

    def close(self) -> None:
        """End the process, after what it runs."""
        with self._lock:
            child, self._child = self._child, None
        if child is not None:
            for connection in [child.free.get() for _ in range(_AT_ONCE)]:
                connection.close()
            child.process.wait()

    def _ask(self, job: Any) -> _Answer | None:
        """Return the answer; None where the process had been idle for so long that it has ended instead."""
        with self._lock:
            child = self._child = self._child or self._start()
        connection = child.free.get()
        try:
            with suppress(OSError):  # it has ended; whether for lack of calls, it has said
                connection.send(job)
            answer: _Answer | None = connection.recv()
        except (EOFError, OSError):
            self._forget(child)
            raise ServiceUnavailable(_GONE) from None
        finally:
            child.free.put(connection)
        if answer is None:
            self._forget(child)
        return answer

    def _forget(self, child: _Child) -> None:
        """Let the next call start another process."""
        with self._lock:
            if self._child is child:
                self._child = None
                child.process.wait()

    def _start(self) -> _Child:
        ours, theirs = zip(*(Pipe() for _ in range(_AT_ONCE)), strict=True)
        numbers = [connection.fileno() for connection in theirs]
        command = (
            sys.executable,
            "-m",
            "server.operations.work_process",
            str(self._idle_s),
            *map(str, numbers),
        )
        process = subprocess.Popen(command, pass_fds=numbers, stdin=subprocess.DEVNULL)
        free: queue.SimpleQueue[Connection[Any, Any]] = queue.SimpleQueue()
        for own, other in zip(ours, theirs, strict=True):
            free.put(own)
            other.close()
        return _Child(process, free)


class _Calls:
    """What the process runs now."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._running = 0
        self._is_over = False

    def begin(self) -> bool:
        """Tell whether a call that has come may run: not where the process is about to end."""
        with self._changed:
            self._running += not self._is_over
            self._changed.notify_all()
            return not self._is_over

    def end(self) -> None:
        """Count a call as done."""
        with self._changed:
            self._running -= 1
            self._changed.notify_all()

    def stop(self) -> None:
        """Take no more calls."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def wait(self, idle_s: float) -> None:
        """Wait until nothing has run for `idle_s` seconds, or no more calls are taken and all have run."""
        with self._changed:
            while self._running or not self._is_over:
                if not self._changed.wait(idle_s) and not self._running:
                    self._is_over = True


def answer_all(connections: "Sequence[Connection[Any, Any]]", idle_s: float) -> None:
    """Run what comes over each connection until the other side is gone, or nothing ran for `idle_s` seconds."""
    calls = _Calls()
    for connection in connections:
        threading.Thread(target=_answer, args=(connection, calls), daemon=True).start()
    calls.wait(idle_s)
    for connection in connections:
        with suppress(OSError):
            connection.send(None)


def _answer(connection: "Connection[Any, Any]", calls: _Calls) -> None:
    """Answer one connection's calls. Whatever ends this thread ends the process, so that its caller does not wait."""
    with connection, suppress(EOFError, OSError):
        try:
            while True:
                job = connection.recv_bytes()
                if not calls.begin():
                    connection.send(None)
                    return
                try:
                    connection.send_bytes(_result(job))
                finally:
                    calls.end()
        finally:
            calls.stop()


def _result(job: bytes) -> bytes:
    """Run what was sent; return the answer."""
    began_s = time.thread_time()

    def packed(result: Any, error: Exception | None) -> bytes:
        return pickle.dumps((result, error, time.thread_time() - began_s))

    try:
        place, args, given = pickle.loads(job)  # a ledger among them is opened
        return packed(run_here(place, *args, **given), None)
    except FlowerUnlearningError as exc:
        return packed(None, exc)
    except Exception as exc:  # noqa: BLE001 - whatever it is, the other side raises something
        traceback.print_exc()
        return packed(None, RuntimeError(repr(exc)))  # a foreign error may not travel


if __name__ == "__main__":
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C in a terminal is for the process that started this one
    log_to_stderr()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    answer_all([Connection(int(number)) for number in sys.argv[2:]], float(sys.argv[1]))
