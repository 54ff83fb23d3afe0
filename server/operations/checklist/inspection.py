"""All checks of one host, on what this machine is at this moment."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path

import psutil

from server.operations.checklist.applied import check_applied
from server.operations.checklist.finding import Finding, Installation
from server.operations.checklist.kept_data import check_ledger, check_superlink_database
from server.operations.checklist.keys_and_state import check_certificates, check_secrets, check_state
from server.operations.checklist.ports import check_ports, check_server_address
from server.operations.checklist.processes import (
    check_let_in,
    check_processes,
    check_starts,
    check_versions,
    installed_at,
    nodes_here,
)
from server.operations.checklist.services import check_service_user, check_units

PLACES = ("FLOWER_UNLEARNING_FILE", "FLWR_HOME")
"""The variables by which the services find an installation's files."""


def inspect_installation(installation: Installation, *, now: datetime) -> Iterator[Finding]:
    """Run the checks of everything that can be seen on the host itself."""
    yield from check_secrets(installation)
    yield from check_certificates(installation, now=now)
    yield from check_state(installation, mounts=mounted_file_systems())
    yield from check_service_user(installation)
    yield from check_units(installation)
    own = own_processes(installation)
    yield from check_processes((" ".join(process.info["cmdline"]) for process in own), installation)
    yield from check_ports(listening_sockets(), installation)
    yield from check_versions()
    file = installation.federation_file or installation.config_dir / "federation.toml"
    starts = ((" ".join(one.info["cmdline"]), one.info["create_time"]) for one in own)
    yield from check_starts(starts, installed_at(), file.stat().st_mtime if file.is_file() else 0.0)
    if installation.server_address:
        yield from check_server_address(installation.server_address)
    if installation.is_server:
        yield from check_applied(file)
        yield from check_superlink_database(installation)
        yield from check_ledger(installation, now=now)
    else:
        yield from check_let_in(nodes_here(own))


def own_processes(installation: Installation) -> list[psutil.Process]:
    """Return the processes of this machine but for those that are another installation's, by the paths they name."""
    found = []
    for process in psutil.process_iter(["cmdline", "create_time", "status"]):
        if (
            process.info["status"] in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
            or not process.info["cmdline"]
        ):
            continue
        paths = [*process.info["cmdline"][1:]]
        with suppress(psutil.Error, OSError):  # another user's
            paths += [value for name, value in process.environ().items() if name in PLACES]
        if belongs(paths, installation):
            found.append(process)
    return found


def belongs(words: Iterable[str], installation: Installation) -> bool:
    """Tell whether a process with these words in its command and its environment may be of this installation.

    Several federations, or another's containers, may share a machine: a process whose words name files, but none below
    a directory of this installation, is of another one. One that names no file may be of any, and is checked.
    """
    ours = {installation.config_dir, installation.state_dir.parent, installation.superlink_database.parent}
    paths = [Path(word) for word in words if word.startswith("/") and Path(word).parent.name != "bin"]
    return not paths or any(path.is_relative_to(place) for path in paths for place in ours)


def mounted_file_systems() -> list[tuple[str, str]]:
    """List this machine's mount points, each with the type of its file system."""
    return [(found.mountpoint, found.fstype) for found in psutil.disk_partitions(all=True)]


def listening_sockets() -> list[tuple[str, int]]:
    """List address and port of each socket of this machine that listens for TCP connections."""
    listening = (one for one in psutil.net_connections("tcp") if one.status == psutil.CONN_LISTEN)
    return [(one.laddr[0], one.laddr[1]) for one in listening if one.laddr]
