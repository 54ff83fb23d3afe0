"""The worker: accepts launchers, forks a process for each message, and reports how it ended.

One thread, no gRPC, no CUDA and no computing of its own: what is forked begins as a fresh process does. Its loop never
waits for one launcher, so a slow one delays no other.
"""

import json
import logging
import os
import selectors
import signal
import socket
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import psutil

from client.worker import message_process
from client.worker.message_process import Child, Launch, become, difference, preload
from client.worker.paths import WorkerPaths

_log = logging.getLogger(__name__)

_MAX_FRAME_BYTES = 4 * 2**20  # arguments and environment of a process: Linux allows half of this
_STREAMS = 3
_CLOSED = b""


@dataclass(slots=True, eq=False)
class _Line:
    """One launcher's connection, and the process that it waits for."""

    socket: socket.socket
    received: bytearray = field(default_factory=bytearray)
    streams: list[int] = field(default_factory=list)
    launch: Launch | None = None
    child: int | None = None

    def close(self) -> None:
        """Close the connection and the launcher's streams."""
        for stream in self.streams:
            os.close(stream)
        self.streams.clear()
        self.socket.close()


class Worker:
    """The fork server at `places`."""

    def __init__(self, places: WorkerPaths) -> None:
        self._places = places
        self._environment = dict(os.environ)
        self._code = message_process.installed_code()
        self._selector = selectors.DefaultSelector()
        self._lines: set[_Line] = set()
        self._killed: set[int] = set()
        self._forked = 0
        self._stale = ""
        self._ends = False

    def run(self) -> None:
        """Serve until SIGTERM, or until the worker has become stale and idle.

        Raises:
            Child: in the process of a message.
        """
        listener = self._listen()
        wake_read, wake_write = os.pipe()
        os.set_blocking(wake_read, False)
        os.set_blocking(wake_write, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        self._inherited = (listener, wake_read, wake_write)
        self._selector.register(listener, selectors.EVENT_READ)
        self._selector.register(wake_read, selectors.EVENT_READ)
        while not self._ends and not (self._stale and not self._children()):
            for key, _ in self._selector.select():
                if key.fileobj is listener:
                    self._accept(listener)
                elif key.fileobj == wake_read:
                    os.read(wake_read, 4096)
                elif key.data in self._lines:
                    self._serve(key.data)
            self._collect()
        self._places.socket.unlink(missing_ok=True)
        _log.info("The worker ends: %s", self._stale or "it was asked to")

    def _listen(self) -> socket.socket:
        self._places.socket.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        before = os.umask(0o177)
        try:
            listener.bind(str(self._places.socket))
        finally:
            os.umask(before)
        listener.listen(128)
        listener.setblocking(False)
        return listener

    def _on_signal(self, number: int, _: object) -> None:
        self._ends = self._ends or number != signal.SIGCHLD

    def _children(self) -> list[int]:
        return [line.child for line in self._lines if line.child is not None]

    def _accept(self, listener: socket.socket) -> None:
        try:
            connection, _ = listener.accept()
        except OSError:
            return  # it has gone again, or there are too many open files: the launcher starts cold
        connection.setblocking(False)
        line = _Line(connection)
        self._lines.add(line)
        self._selector.register(connection, selectors.EVENT_READ, line)

    def _serve(self, line: _Line) -> None:
        """Read what a launcher sends: its frame, then the byte to go; or that it has gone."""
        try:
            part, streams, _, _ = socket.recv_fds(line.socket, 65536, _STREAMS)
        except BlockingIOError:
            return
        except OSError:
            part, streams = _CLOSED, []
        line.streams += streams
        if not part:
            self._drop(line)
            return
        line.received += part
        if line.launch is not None:
            self._go(line)
        elif len(line.received) >= 4:
            size = int.from_bytes(line.received[:4], "big")
            if size > _MAX_FRAME_BYTES:
                self._refuse(line, "a launch of more than 4 MiB")
            elif len(line.received) >= 4 + size:
                self._answer(line, bytes(line.received[4:]))

    def _answer(self, line: _Line, body: bytes) -> None:
        if body == b"status":
            self._send(line, json.dumps(self.status()).encode())
            self._drop(line)
            return
        try:
            line.launch = Launch.parse(body)
        except ValueError:
            self._refuse(line, "a launch that cannot be read")
            return
        reason = self._reason_against(line)
        if reason:
            self._refuse(line, reason)
        else:
            self._send(line, b"A")

    def _reason_against(self, line: _Line) -> str:
        assert line.launch is not None
        if len(line.streams) != _STREAMS:
            return "a launch without its three streams"
        if not self._stale and message_process.installed_code() != self._code:
            self._stale = "the installed code has changed"
        asked = {os.fsdecode(name): os.fsdecode(value) for name, value in line.launch.environment.items()}
        return self._stale or difference(self._environment, asked)

    def _go(self, line: _Line) -> None:
        if line.child is not None:
            return
        assert line.launch is not None
        assert threading.active_count() == 1, "a fork takes along the thread that forks and no other"
        sys.stdout.flush()
        sys.stderr.flush()
        try:
            child = os.fork()
        except OSError as exc:
            self._refuse(line, f"no process could be forked: {exc}")
            return
        if child == 0:
            self._become(line)
        line.child = child
        self._forked += 1
        for stream in line.streams:
            os.close(stream)
        line.streams.clear()
        self._send(line, b"F")

    def _become(self, line: _Line) -> NoReturn:
        """Turn into the process that the launcher asked for."""
        launch = line.launch
        assert launch is not None
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for wanted, stream in enumerate(line.streams):
            os.dup2(stream, wanted)
        self._selector.close()
        for other in self._lines:
            other.close()
        listener, wake_read, wake_write = self._inherited
        listener.close()
        os.close(wake_read)
        os.close(wake_write)
        raise Child(launch)

    def _refuse(self, line: _Line, reason: str) -> None:
        self._send(line, b"R" + reason.encode())
        self._drop(line)

    def _send(self, line: _Line, answer: bytes) -> None:
        try:
            line.socket.sendall(answer)
        except OSError:
            self._drop(line)

    def _drop(self, line: _Line) -> None:
        """Forget a launcher; the process of a message goes with its launcher.

        By SIGKILL: of a ClientApp that ends by SIGTERM, Flower's SuperNode waits for the answer permanently.
        """
        if line not in self._lines:
            return
        if line.child is not None:
            os.kill(line.child, signal.SIGKILL)  # not collected yet, so the number is still its own
            self._killed.add(line.child)
        self._selector.unregister(line.socket)
        line.close()
        self._lines.remove(line)

    def _collect(self) -> None:
        """Send launchers the status of processes that have ended."""
        self._killed -= {child for child in self._killed if os.waitpid(child, os.WNOHANG)[0]}
        for line in list(self._lines):
            if line.child is None:
                continue
            ended, status = os.waitpid(line.child, os.WNOHANG)
            if ended:
                line.child = None
                code = os.waitstatus_to_exitcode(status)
                self._send(line, b"X" + code.to_bytes(4, "big", signed=True))
                self._drop(line)

    def status(self) -> dict[str, object]:
        """Return figures of this worker, for `worker status`."""
        return {
            "pid": os.getpid(),
            "forked": self._forked,
            "running": len(self._children()),
            "resident_bytes": psutil.Process().memory_info().rss,
        }


def serve(places: WorkerPaths) -> None:
    """Run a worker at `places`; in a forked child, run the message's process.

    Raises:
        ConfigurationError: the directory cannot be used, or another worker serves there.
    """
    places.prepare()
    with places.lock():
        entry = preload()
        try:
            Worker(places).run()
        except Child as child:
            launch = child.launch
        else:
            return
    become(launch, entry)


def ask_status(places: WorkerPaths) -> dict[str, object]:
    """Ask the worker at `places` for its figures.

    Raises:
        OSError: none answers.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
        line.settimeout(5.0)
        line.connect(str(places.socket))
        line.sendall(len(b"status").to_bytes(4, "big") + b"status")
        parts = []
        while part := line.recv(4096):
            parts.append(part)
    found: dict[str, object] = json.loads(b"".join(parts))
    return found


if __name__ == "__main__":  # python -m client.worker.fork_server DIRECTORY
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    serve(WorkerPaths(Path(sys.argv[1])))
