"""The directory that launcher and worker share: socket, launcher, and the record of cold starts.

DIRECTORY/worker.sock           mode 600
DIRECTORY/bin/flwr-clientapp    the launcher; DIRECTORY/bin leads the SuperNode's PATH
DIRECTORY/cold                  a line a cold start: why
"""

import fcntl
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from client.worker import launcher
from strategies.installation import program as installed_program
from unlearning.errors import ConfigurationError
from unlearning.runtime.durable_files import make_private, open_private, write_atomically

PROGRAM = "flwr-clientapp"
SUPERNODE = "flower-supernode"
_LONGEST_SOCKET_PATH = 100  # of 104 to 108 bytes that a Unix socket's address has


@dataclass(frozen=True, slots=True)
class WorkerPaths:
    """The files under `directory`."""

    directory: Path

    @property
    def socket(self) -> Path:
        """Where the worker listens."""
        return self.directory / "worker.sock"

    @property
    def launchers(self) -> Path:
        """The directory to put before all others on PATH."""
        return self.directory / "bin"

    @property
    def record(self) -> Path:
        """Why messages started cold, a line each."""
        return self.directory / "cold"

    def prepare(self, program: str | None = None) -> None:
        """Make the directory and write the launcher, which takes the place of Flower's program.

        program: what the launcher starts where no worker can serve, instead of Flower's own.

        Raises:
            ConfigurationError: the directory's name is too long for a socket, or it cannot be used.
            DeploymentError: Flower's program is not installed.
        """
        if len(os.fsencode(self.socket)) > _LONGEST_SOCKET_PATH:
            raise ConfigurationError(
                [f"worker directory: {self.socket} is too long for a Unix socket; choose a shorter one."]
            )
        make_private(self.directory)
        found = self.directory.stat()
        if found.st_uid != os.geteuid() or found.st_mode & 0o077:
            raise ConfigurationError(
                [
                    f"worker directory: {self.directory} must belong to this user alone (mode 700); choose another."
                ]
            )
        source = Path(launcher.__file__).read_text(encoding="utf-8")
        call = f"main({str(self.socket)!r}, {program or installed_program(PROGRAM)!r}, {str(self.record)!r})"
        target = self.launchers / PROGRAM
        write_atomically(target, f"#!{sys.executable} -IS\n{source}\n\n{call}\n".encode(), mode=0o700)
        if not os.access(target, os.X_OK) or " " in sys.executable:
            raise ConfigurationError(
                [
                    f"worker directory: {target} cannot be run (a file system mounted noexec, or a blank in the path "
                    f"of {sys.executable}); choose another directory, or run the node with --no-worker."
                ]
            )

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the place of the one worker in this directory; a process that ends lets it go.

        Raises:
            ConfigurationError: another worker has it.
        """
        with open_private(self.directory / "lock") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as exc:
                raise ConfigurationError(
                    [f"worker directory: {self.directory} has a worker already."]
                ) from exc
            yield

    def cold_starts(self) -> dict[str, int]:
        """Return how many messages started cold, by reason."""
        try:
            lines = self.record.read_text(encoding="utf-8", errors="replace").splitlines()
        except FileNotFoundError:
            return {}
        return {reason: lines.count(reason) for reason in dict.fromkeys(lines)}


def default_directory() -> Path:
    """Return the directory of this user's worker on this machine."""
    return Path(tempfile.gettempdir()) / f"flower-unlearning-worker-{os.geteuid()}"
