"""All checks of one host, on what this machine is at this moment."""

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from server.operations.checklist.files import check_certificates, check_secrets, check_state
from server.operations.checklist.finding import Finding, Installation
from server.operations.checklist.residue import check_superlink_database
from server.operations.checklist.running import (
    check_from_outside,
    check_ledger,
    check_ports,
    check_processes,
    check_versions,
    connects,
)
from server.processes.process_group import living_processes


def inspect_installation(installation: Installation, *, now: datetime) -> Iterator[Finding]:
    """Everything that can be seen on the host itself."""
    yield from check_secrets(installation)
    yield from check_certificates(installation, now=now)
    yield from check_state(installation, mounts=_text("/proc/mounts"))
    yield from check_processes((process.command for process in living_processes()), installation)
    yield from check_ports((_text("/proc/net/tcp"), _text("/proc/net/tcp6")), installation)
    yield from check_versions()
    if installation.is_server:
        yield from check_superlink_database(installation)
        yield from check_ledger(installation, now=now)


def inspect_from_outside(host: str) -> Iterator[Finding]:
    """What a client's host can and cannot reach of the server's."""
    yield from check_from_outside(host, connects=connects)


def _text(path: str) -> str:
    """A file of the kernel's; empty where there is none (not Linux)."""
    return Path(path).read_text() if Path(path).exists() else ""
