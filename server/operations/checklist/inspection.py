"""All checks of one host, on what this machine is at this moment."""

from collections.abc import Iterator
from datetime import datetime

import psutil

from server.operations.checklist.files import check_certificates, check_secrets, check_state
from server.operations.checklist.finding import Finding, Installation
from server.operations.checklist.residue import check_superlink_database
from server.operations.checklist.running import (
    can_connect,
    check_from_outside,
    check_ledger,
    check_ports,
    check_processes,
    check_server_address,
    check_versions,
)
from server.operations.checklist.supernodes import check_supernodes, supernodes_here
from server.processes.process_group import living_processes


def inspect_installation(installation: Installation, *, now: datetime) -> Iterator[Finding]:
    """Run the checks of everything that can be seen on the host itself."""
    yield from check_secrets(installation)
    yield from check_certificates(installation, now=now)
    yield from check_state(installation, mounts=mounted_file_systems())
    yield from check_processes((process.command for process in living_processes()), installation)
    yield from check_ports(listening_sockets(), installation)
    yield from check_versions()
    if installation.server_address:
        yield from check_server_address(installation.server_address, can_connect=can_connect)
    if installation.is_server:
        yield from check_superlink_database(installation)
        yield from check_ledger(installation, now=now)
    else:
        yield from check_supernodes(supernodes_here(), now=now)


def inspect_from_outside(host: str) -> Iterator[Finding]:
    """Check what a client's host can and cannot reach of the server's."""
    yield from check_from_outside(host, can_connect=can_connect)


def mounted_file_systems() -> list[tuple[str, str]]:
    """List this machine's mount points, each with the type of its file system."""
    return [(found.mountpoint, found.fstype) for found in psutil.disk_partitions(all=True)]


def listening_sockets() -> list[tuple[str, int]]:
    """List address and port of each socket of this machine that listens for TCP connections."""
    listening = (one for one in psutil.net_connections("tcp") if one.status == psutil.CONN_LISTEN)
    return [(one.laddr[0], one.laddr[1]) for one in listening if one.laddr]
