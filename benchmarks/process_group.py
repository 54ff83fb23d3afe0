"""A program with everything it starts, as one thing that can be started, watched and ended.

Flower's processes start others, which can outlive them: a SuperNode's `flower-superexec`, and that
one's ClientApps. Each program therefore leads a session of its own, and its whole group is ended.
"""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

import psutil

from benchmarks.local_layout import free_ports
from unlearning.errors import DeploymentError
from unlearning.runtime.durable_files import OTHERS, make_private, open_private

_POLL_S = 0.05
_KILL_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Process:
    """A living process: not one that has ended and waits to be collected."""

    pid: int
    group: int
    command: str


class Leader(Protocol):
    """A started program, as a `subprocess.Popen` is looked at."""

    pid: int

    def poll(self) -> int | None:
        """Return None while it runs."""


class ProcessGroup:
    """One program and all that it starts. Output goes to `log_path`, which grows over restarts.

    What it writes is its owner's alone, as with the units' `UMask=0077`.
    """

    def __init__(
        self, name: str, command: Sequence[str], *, environment: Mapping[str, str], directory: Path
    ) -> None:
        self.name = name
        self.command = tuple(command)
        self.log_path = directory / f"{name}.log"
        self._directory = directory
        self._environment = dict(environment)
        self._leader: Leader | None = None
        self._has_gone = False

    @property
    def pid(self) -> int:
        """The program's process id, also its group's.

        Raises:
            DeploymentError: it was not started.
        """
        if self._leader is None:
            raise DeploymentError(f"{self.name} was not started; start it first.")
        return self._leader.pid

    @property
    def is_running(self) -> bool:
        """Whether the program itself runs."""
        return self._leader is not None and self._leader.poll() is None

    def members(self) -> list[Process]:
        """List the living processes of the group, also when the program itself has ended."""
        if self.is_gone:
            return []
        return [process for process in living_processes() if process.group == self.pid]

    @property
    def is_gone(self) -> bool:
        """Whether nothing of the group lives and the program's exit status was collected."""
        if self._leader is not None and not self._has_gone:
            # Looked at in this order: the group's id stays its own until the program is collected, and
            # a program whose threads are still dying looks dead before it can be collected.
            is_empty = not any(process.group == self._leader.pid for process in living_processes())
            self._has_gone = is_empty and self._leader.poll() is not None
        return self._leader is None or self._has_gone

    def start(self) -> None:
        """Start the program.

        Raises:
            DeploymentError: it runs already, or what it started the last time still lives.
        """
        if living := self.members():
            pids = [process.pid for process in living]
            raise DeploymentError(f"{self.name} still has living processes {pids}; kill it first.")
        make_private(self._directory)
        with open_private(self.log_path, append=True) as log:
            self._leader = self._launch(log)
        self._has_gone = False

    def _launch(self, log: IO[bytes]) -> Leader:
        return subprocess.Popen(
            self.command,
            env=self._environment,
            cwd=self._directory,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            umask=OTHERS,
        )

    def ask_to_end(self) -> None:
        """Send SIGTERM to the group; return at once."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """End the whole group with SIGKILL and return when none of it lives.

        Raises:
            DeploymentError: a process outlived SIGKILL by seconds (it hangs in the kernel).
        """
        self._signal(signal.SIGKILL)
        if not self.wait_until_gone(_KILL_TIMEOUT_S):
            raise DeploymentError(f"{self.name} outlived SIGKILL: {self.members()}.")

    def wait_until_gone(self, timeout_s: float) -> bool:
        """Wait until no process of the group lives; return whether that came to be in time."""
        deadline = time.monotonic() + timeout_s
        while not self.is_gone:
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL_S)
        return True

    def log_text(self) -> str:
        """Return all that the program and its children have written."""
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def _signal(self, number: signal.Signals) -> None:
        if self.members():
            # It may end between the look and the signal.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)


def living_processes() -> Iterator[Process]:
    """Yield every process of this machine that lives and that its user may see."""
    for process in psutil.process_iter(["cmdline", "status"]):
        if process.info["status"] not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
            with contextlib.suppress(ProcessLookupError):  # it ended while we looked
                yield Process(process.pid, os.getpgid(process.pid), " ".join(process.info["cmdline"] or ()))


@contextlib.contextmanager
def local_superlink(home: Path) -> Iterator[dict[str, str]]:
    """Yield variables with which `flwr run . local` starts its SuperLink on free ports; end it afterwards.

    Flower leaves it behind, by default on fixed ports, where the next run takes it. home: Flower's directory.
    """
    http, control = map(str, free_ports(2))
    ports = {"FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": http, "FLWR_LOCAL_CONTROL_API_PORT": control}
    try:
        yield {"FLWR_HOME": str(home), **ports}
    finally:
        _kill_superlink(home)


def _kill_superlink(home: Path) -> None:
    """Kill the SuperLink whose files are in `home`, and its children."""
    groups = {
        process.group
        for process in living_processes()
        if "flower-superlink" in process.command and str(home) in process.command
    }
    for group in groups:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
