"""The process of one message: what a launcher asks for, and how a forked process becomes it and ends."""

import atexit
import os
import random
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NoReturn

Program = Callable[[], int | None]


@dataclass(frozen=True, slots=True)
class Launch:
    """The process that a launcher asks for, with this directory, umask, arguments and environment."""

    directory: bytes
    umask: int
    arguments: tuple[str, ...]
    environment: Mapping[bytes, bytes]

    @classmethod
    def parse(cls, body: bytes) -> "Launch":
        """Read a launcher's frame.

        Raises:
            ValueError: it is none.
        """
        directory, umask, count, *fields = body.split(b"\0")
        arguments, variables = fields[: int(count)], fields[int(count) :]
        pairs = (variable.partition(b"=") for variable in variables)
        return cls(
            directory=directory,
            umask=int(umask),
            arguments=tuple(map(os.fsdecode, arguments)),
            environment={name: value for name, _, value in pairs},
        )


class Child(BaseException):
    """The way out of the worker's loop in the forked process, which is the message's process from here on."""

    def __init__(self, launch: Launch) -> None:
        self.launch = launch


def become(launch: Launch, entry: Program) -> NoReturn:
    """Run `entry` as the process that `launch` describes; ends the process.

    Random numbers begin as in a fresh process: Python's, NumPy's and PyTorch's from the system's entropy.
    """
    os.chdir(launch.directory)
    os.umask(launch.umask)
    os.environ.clear()
    os.environb.update(launch.environment)
    sys.argv[:] = launch.arguments
    random.seed()
    if "numpy" in sys.modules:  # what is not imported yet begins afresh by itself
        sys.modules["numpy"].random.seed(None)
    if "torch" in sys.modules:
        sys.modules["torch"].seed()
    _end(_exit_status(entry))


def _exit_status(entry: Program) -> int:
    """Run `entry`; returns what the interpreter would end with."""
    try:
        code: object = entry()
    except SystemExit as exc:
        code = exc.code
    except BaseException:  # noqa: BLE001 - whatever it is, the process ends with a trace, as any does
        traceback.print_exc()
        code = 1
    if isinstance(code, int | None):
        return (code or 0) & 0xFF
    print(code, file=sys.stderr)
    return 1


def _end(status: int) -> NoReturn:
    """End as the interpreter does, without taking down what was imported: that takes a third of a second."""
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
