"""Starts programs of this Python by forking a process that has imported what all of them import.

A program of Flower begins with seconds of imports, a ClientApp with those of PyTorch, and over messages each message
starts one. Such a fork is a process like any other, with the program's name, session, environment, directory and log;
what it starts is forked as well. That programs begin without this, test_demo.py, test_own_app.py and those with a
`LocalDeployment` show.

This file is the process, too: alone on a Python's command line it forks as it is asked over a socket. The length of its
arguments is that of the longest name that a fork can have.
"""

import atexit
import contextlib
import ctypes
import functools
import gc
import importlib
import json
import os
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

IMPORTED = ("server.app", "client.app", "server.cli", "flwr.supernode.cli", "flwr.superlink.cli")
"""What takes long. An app that brings this project's packages along, as test_same_weights.py does, runs these."""
STARTERS = ("flower-supernode", "flower-superexec")
"""Programs that start others."""
STARTED = ("flower-superexec", "flwr-clientapp", "flwr-serverapp")
"""Those, which Flower starts by name and asks no more about."""
LONGEST = 64_000
"""Bytes of an order."""


class Order(NamedTuple):
    """A program to start: its command line, what it finds, and where it leads a session of its own."""

    command: Sequence[str]
    environment: Mapping[str, str]
    directory: str
    umask: int
    leads: bool


class ForkedProgram:
    """A program that was forked, as a `subprocess.Popen` is looked at."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._end: int | None = None
        with contextlib.suppress(ProcessLookupError):  # it has ended already
            self._end = os.pidfd_open(pid)

    def poll(self) -> int | None:
        """Return None while it runs; how it ended is not known."""
        if self._end is not None and select.select([self._end], [], [], 0)[0]:
            os.close(self._end)
            self._end = None
        return None if self._end is not None else 0


def start_forked(order: Order, log: int) -> ForkedProgram:
    """Start a program whose output goes to the file descriptor `log`."""
    return ForkedProgram(_ask(_forker(), order, log))


@functools.cache
def _forker() -> socket.socket:
    """Start the process that forks, once for this process; it ends with it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-P", __file__, str(theirs.fileno()), " " * 4000],
            env={**environment, "OMP_NUM_THREADS": "1", "FLWR_TELEMETRY_ENABLED": "0"},
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
        )
    atexit.register(process.wait)
    atexit.register(ours.close)
    return ours


def _ask(forker: socket.socket, order: Order, log: int) -> int:
    """Have a program started; return its process."""
    socket.send_fds(forker, [json.dumps(order).encode()], [log])
    return int(forker.recv(LONGEST))


def _fork_as_asked(asked: socket.socket) -> Order:
    """Fork for each order; return it in the fork. Ends this process when no one can ask any more."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        order, descriptors, *_ = socket.recv_fds(asked, LONGEST, 1)
        if not order:
            os._exit(0)
        if (pid := os.fork()) == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            asked.close()
            for number in (1, 2):
                os.dup2(descriptors[0], number)
            os.close(descriptors[0])
            return Order(*json.loads(order))
        os.close(descriptors[0])
        asked.send(str(pid).encode())


def _begin(order: Order) -> Order:
    """Become the program, up to its first line; return it."""
    if order.leads:
        os.setsid()
    os.environ.clear()
    os.environ.update(order.environment)
    os.chdir(order.directory)
    os.umask(order.umask)
    return order


def _run(order: Order) -> None:
    """Run the program to its end."""
    found = shutil.which(order.command[0])
    if found is None or not Path(found).read_bytes().startswith(f"#!{sys.executable}\n".encode()):
        os.execvp(order.command[0], list(order.command))
    sys.argv = [found, *order.command[1:]]
    _name_process([sys.executable, *sys.argv])
    added = list(filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)))
    sys.path[:0] = [str(Path(found).parent), *added]
    if added:
        sys.modules.pop("sitecustomize", None)
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module("sitecustomize")
    runpy.run_path(found, run_name="__main__")


def _name_process(command: Sequence[str]) -> None:
    """Write the command line where the system shows that of this process."""
    first, last = map(int, Path("/proc/self/stat").read_text().rpartition(")")[2].split()[45:47])
    name = "\0".join(command).encode()[: last - first - 1]
    ctypes.memmove(first, name.ljust(last - first, b"\0"), last - first)


class _Forking(subprocess.Popen[Any]):
    """Has what Flower starts forked from `forker`; starts all else as ever."""

    forker: socket.socket

    def __init__(self, args: Any, *more: Any, **options: Any) -> None:
        if not isinstance(args, list) or Path(args[0]).name not in STARTED:
            super().__init__(args, *more, **options)
            return
        with contextlib.ExitStack() as stack:
            log = stack.enter_context(Path(os.devnull).open("ab")) if options.get("stdout") else None
            order = Order(args, dict(os.environ), os.getcwd(), _umask(), leads=False)  # noqa: PTH109
            self.pid = _ask(self.forker, order, 1 if log is None else log.fileno())
        self.returncode = 0


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _with_forker(order: Order) -> Order:
    """Give a program that starts others a process of its group that forks; return what this process is to run."""
    if Path(order.command[0]).name in STARTERS:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if os.fork() == 0:
            ours.close()
            return _with_forker(_begin(_fork_as_asked(theirs)))
        theirs.close()
        _Forking.forker = ours
        subprocess.Popen = _Forking  # type: ignore[misc]
    return order


def main() -> None:
    """Import, then fork as asked; in a fork, run its program."""
    for name in IMPORTED:
        importlib.import_module(name)
    assert len(list(Path("/proc/self/task").iterdir())) == 1, "a thread would be missing in each fork"
    gc.collect()
    gc.freeze()
    _run(_with_forker(_begin(_fork_as_asked(socket.socket(fileno=int(sys.argv[1]))))))


if __name__ == "__main__":
    main()
