"""The process of one message: what a launcher asks for, whether it may be forked, how it begins and ends.

It is not forked where variables that are read at import differ, or where the installed code changed.
"""

import atexit
import os
import random
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import distribution, entry_points
from pathlib import Path
from typing import NoReturn

from client.worker.paths import PROGRAM
from unlearning.runtime.gc_tuning import nothing_collected

Program = Callable[[], int | None]

_READ_AT_IMPORT = (
    "OMP_",
    "MKL_",
    "OPENBLAS_",
    "NUMEXPR_",
    "PYTHON",
    "TORCH",
    "CUDA",
    "LD_",
    "FLWR_TELEMETRY",
    "FLWR_LOG",
)
_SET_BY_LIBRARIES = ("TORCHINDUCTOR_CACHE_DIR",)  # torch sets it itself, in every process
_PACKAGES = ("client", "strategies", "unlearning")
_DISTRIBUTIONS = ("flower-unlearning", "flwr", "torch", "numpy")


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


def read_at_import(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that libraries read when they are imported, so that a fork cannot change them."""
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(_READ_AT_IMPORT) and name not in _SET_BY_LIBRARIES
    }


def difference(own: Mapping[str, str], asked: Mapping[str, str]) -> str:
    """Return a sentence on the variables that differ; empty where none does."""
    mine, theirs = read_at_import(own), read_at_import(asked)
    names = sorted(name for name in {*mine, *theirs} if mine.get(name) != theirs.get(name))
    return f"the worker was started with other values of {', '.join(names)}" if names else ""


def installed_code() -> tuple[object, ...]:
    """Return what changes when the code that a worker has imported is installed again; takes milliseconds."""
    versions = tuple(distribution(name).version for name in _DISTRIBUTIONS)
    roots = [Path(str(sys.modules[name].__file__)).parent for name in _PACKAGES if name in sys.modules]
    return (*versions, max((_newest(root) for root in roots), default=0))


def _newest(directory: Path) -> int:
    """Return the newest time of change of any Python file under `directory`, in ns."""
    newest = 0
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                newest = max(newest, _newest(Path(entry.path)) if entry.name != "__pycache__" else 0)
            elif entry.name.endswith(".py"):
                newest = max(newest, entry.stat().st_mtime_ns)
    return newest


def preload() -> Program:
    """Import what a message needs and return Flower's own program for it."""
    ours = ("client.app", "client.handlers")
    imported_when_needed = ("scipy.special", "torch.func", "httpcore")
    with nothing_collected():
        for name in (*ours, *imported_when_needed):
            import_module(name)
        (flower,) = entry_points(group="console_scripts", name=PROGRAM)
        program: Program = flower.load()
    return program


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
