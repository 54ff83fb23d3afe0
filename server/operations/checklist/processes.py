"""The processes of an installation: how they were started, of which version they are, and whether sites are let in."""

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from importlib.metadata import distribution, version
from pathlib import Path

import psutil

from server.operations.checklist.finding import Finding, Installation, ok, problem, warning
from unlearning.protocol import PROTOCOL_VERSION

_PARTS = ("flower-unlearn", "flower-unlearn-site", "flower-superexec", "flwr-serverapp")
"""Programs that keep the version of this package that they have loaded; SuperLink and SuperNode load none."""
_READ_THE_FILE = {"serve": "flower-unlearning", "supervise": "flower-unlearning-supervisor"}
"""The commands that run for long and read federation.toml at their start, each with its unit."""
REFUSED_AFTER, LET_IN_AFTER = timedelta(seconds=75), timedelta(seconds=30)
"""Until then it may be the lease of a SuperNode that was killed; one that has run so long was let in."""


def check_processes(commands: Iterable[str], installation: Installation) -> Iterator[Finding]:
    """Check that SuperLink and SuperNode run with TLS, registered keys and in isolation. commands: command lines."""
    found = list(commands)
    wanted = "flower-superlink" if installation.is_server else "flower-supernode"
    running = [command for command in found if runs(command.split(), wanted)]
    if installation.is_server:
        yield from _check_helpers(found)
    starts_it = any(runs(one.split(), "flower-unlearn-site") and " node " in one for one in found)
    if not running and not starts_it:  # where one starts it, `check_let_in` says how that goes
        yield problem(f"No {wanted} is running.", f"systemctl status {wanted}, or docker compose ps.")
    for command in running:
        if "--insecure" in command:
            yield problem(
                f"{wanted} runs with --insecure: others can listen, and pretend to be a party.",
                "Start it with TLS.",
            )
        if not installation.is_server:
            continue
        if "--enable-supernode-auth" not in command:
            yield problem(
                "The SuperLink admits every node, whatever client it says to be.",
                "Start it with --enable-supernode-auth and register the clients' keys.",
            )
        if "--isolation=process" not in command.replace("--isolation process", "--isolation=process"):
            yield problem(
                "The SuperLink runs ServerApps inside of its own process (no --isolation process).",
                "Start it with --isolation process and run flower-superexec beside it.",
            )
        else:
            yield ok("ServerApps run in processes of their own.")


def _check_helpers(commands: Sequence[str]) -> Iterator[Finding]:
    """Check that what starts the ServerApp, and what submits its run, is alive."""
    if not any(runs(command.split(), "flower-superexec") for command in commands):
        yield problem(
            "No flower-superexec is running: no ServerApp can start.", "systemctl restart flower-superexec"
        )
    if not any(runs(command.split(), "flower-unlearn") and " supervise" in command for command in commands):
        yield problem(
            "No `flower-unlearn supervise` is running: the run is not submitted, nor again when it has failed.",
            "systemctl restart flower-unlearning-supervisor",
        )


def check_versions(package: str = "flower-unlearning") -> Iterator[Finding]:
    """Say what is installed; `pip check` says whether it fits together."""
    yield ok(
        f"{package} {version(package)} (protocol version {PROTOCOL_VERSION}) with flwr {version('flwr')}; the same on "
        "every host."
    )


def installed_at(package: str = "flower-unlearning") -> float:
    """Return when the package was installed here, in seconds since 1970; 0 where its files do not say."""
    records = [file for file in distribution(package).files or () if file.name == "RECORD"]
    return max((Path(str(record.locate())).stat().st_mtime for record in records), default=0.0)


def check_starts(started: Iterable[tuple[str, float]], installed: float, changed: float) -> Iterator[Finding]:
    """Check that no part is older than the installed version, nor than federation.toml if it reads that at its start.

    started: the command line and the start of each process; changed: the file's last change; in seconds since 1970.
    """
    for command, at in started:
        name = next((one for one in _PARTS if runs(command.split(), one)), "")
        unit = next((unit for word, unit in _READ_THE_FILE.items() if f" {word}" in command), "")
        if name and at < installed:
            yield problem(
                f"{name} has run since before flower-unlearning was installed here: it is of the version before.",
                f"Restart it: {command[:100]}",
            )
        elif name and unit and at < changed:
            yield warning(
                f"{unit} was started before federation.toml was last changed, and goes by what it said then.",
                f"systemctl restart {unit}",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One `flower-unlearn-site node`, which ends when a SuperNode of its own ends that had been let in.

    age: of its process. supernode_age: of its SuperNode; None where it has none at the moment.
    """

    age: timedelta
    supernode_age: timedelta | None = None


def check_let_in(nodes: Iterable[Node]) -> Iterator[Finding]:
    """Check that the server lets the SuperNodes in."""
    for node in nodes:
        if node.supernode_age is not None and node.supernode_age >= LET_IN_AFTER:
            continue
        if node.age < REFUSED_AFTER:
            yield warning(
                "`flower-unlearn-site node` was just started; it is not known yet whether its SuperNode is let in.",
                "Check again in a minute: until then the server refuses a SuperNode that was killed.",
            )
        else:
            yield problem(
                f"The server has not let this site's SuperNode in for {node.age.total_seconds():.0f} s.",
                "If `journalctl -u flower-supernode` says 'Failed to activate SuperNode', the site's key is not "
                "registered (revoked, or never let in): ask the server's operator. Else it says the reason.",
            )


def nodes_here(processes: Iterable[psutil.Process]) -> Iterator[Node]:
    """Yield each `flower-unlearn-site node` among `processes`, with its SuperNode."""
    for process in processes:
        words = process.info["cmdline"] or ()
        if not runs(words, "flower-unlearn-site") or "node" not in words:
            continue
        with suppress(psutil.Error):  # it ended while we looked
            own = [child for child in process.children() if runs(child.cmdline(), "flower-supernode")]
            yield Node(age=_age(process), supernode_age=max(map(_age, own), default=None))


def _age(process: psutil.Process) -> timedelta:
    return timedelta(seconds=max(0.0, time.time() - process.create_time()))


def runs(command: Sequence[str], program: str) -> bool:
    """Return whether a command line runs a program: by itself, or by an interpreter."""
    return any(word.rpartition("/")[2] == program for word in command[:3])
