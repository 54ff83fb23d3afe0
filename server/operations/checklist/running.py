"""Processes, ports, clock, versions and the ledger of an installation that runs."""

import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from importlib.metadata import distribution, version
from ipaddress import ip_address
from pathlib import Path

from server.federation.unresponsive import REMEDY, sentence, unresponsive_clients
from server.ledger import SITE_PROBLEMS, WAITING, Ledger, LedgerUnavailable
from server.ledger.database import Database
from server.operations.checklist.finding import Finding, Installation, ok, problem, warning
from server.operations.checklist.residue import check_residue
from server.operations.checklist.supernodes import runs
from server.state_directory.ledger_address import ledger_url
from unlearning.errors import VersionMismatch
from unlearning.protocol import PROTOCOL_VERSION

PRIVATE_PORTS = {8000: "control and runtime of the SuperLink", 9094: "runtime of a SuperNode"}
PUBLIC_PORTS = {9092: "fleet", 9100: "deletion service"}
_SKEW = timedelta(minutes=5)
_PARTS = ("flower-unlearn", "flower-unlearn-site", "flower-superexec", "flwr-serverapp")
"""Programs that keep the version of this package that they have loaded; SuperLink and SuperNode load none."""


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
                f"{wanted} runs with --insecure: anybody can listen and pretend.", "Start it with TLS."
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
            "No `flower-unlearn supervise` is running: nobody submits the run, nor again when it has failed.",
            "systemctl restart flower-unlearning-supervisor",
        )


def check_server_address(address: str, *, can_connect: Callable[[str, int], bool]) -> Iterator[Finding]:
    """Check, on a client's host, that the server's name means an address and that its fleet port answers."""
    port = next(iter(PUBLIC_PORTS))
    try:
        socket.getaddrinfo(address, port)
    except OSError as exc:
        yield problem(
            f"The server's name {address} has no address here: {exc}.",
            "Mend FEDERATION_SERVER in /etc/flower-unlearning/environment, DNS or /etc/hosts.",
        )
        return
    if can_connect(address, port):
        yield ok(f"The server {address} answers at port {port}.")
    else:
        yield problem(
            f"The server {address} does not answer at port {port}.",
            "Check that its SuperLink runs, and the firewalls between.",
        )


def check_ports(listening: Sequence[tuple[str, int]], installation: Installation) -> Iterator[Finding]:
    """Check that private ports listen on loopback only, public ones beyond.

    listening: the address and port of each socket that listens for TCP connections.
    """
    for port, name in PRIVATE_PORTS.items():
        open_to = [address for address, number in listening if number == port and not _is_loopback(address)]
        if open_to:
            yield problem(
                f"Port {port} ({name}) listens at {', '.join(open_to)}; whoever reaches it controls the federation.",
                "Bind it to 127.0.0.1.",
            )
    if not installation.is_server:
        return
    for port, name in PUBLIC_PORTS.items():
        addresses = [address for address, number in listening if number == port]
        if not addresses:
            yield problem(f"Nothing listens at port {port} ({name}).", "Start it; see deploy/README.md.")
        elif all(map(_is_loopback, addresses)):
            yield warning(
                f"Port {port} ({name}) listens on this host only.", "Others need it: bind it to 0.0.0.0."
            )
        else:
            yield ok(f"Port {port} ({name}) listens beyond this host.")


def can_connect(host: str, port: int) -> bool:
    """Return whether a TCP connection can be opened."""
    try:
        with socket.create_connection((host, port), timeout=3.0):
            return True
    except OSError:
        return False


def check_from_outside(host: str, *, can_connect: Callable[[str, int], bool]) -> Iterator[Finding]:
    """Check from another host that the public ports answer and the private ones do not."""
    for port, name in PUBLIC_PORTS.items():
        if can_connect(host, port):
            yield ok(f"{host}:{port} ({name}) can be reached.")
        else:
            yield problem(
                f"{host}:{port} ({name}) cannot be reached.", "Check the firewall and that it runs."
            )
    for port, name in {**PRIVATE_PORTS, 9105: "metrics"}.items():
        if can_connect(host, port):
            yield problem(
                f"{host}:{port} ({name}) can be reached from here.",
                "Bind it to 127.0.0.1, close it in the firewall.",
            )
        else:
            yield ok(f"{host}:{port} ({name}) cannot be reached from here.")


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


def check_starts(started: Iterable[tuple[str, float]], since: float) -> Iterator[Finding]:
    """Check that no part runs a version from before the installed one.

    started: the command line and the start of each process; since: of the installation. In seconds since 1970.
    """
    for command, at in started:
        name = next((one for one in _PARTS if runs(command.split(), one)), "")
        if name and at < since:
            yield problem(
                f"{name} has run since before flower-unlearning was installed here: it is of the version before.",
                f"Restart it: {command[:100]}",
            )


def check_ledger(installation: Installation, *, now: datetime) -> Iterator[Finding]:
    """Check that the ledger can be read, its events are whole, none is from the future; and that clients answer."""
    url = installation.ledger_url or ledger_url(installation.state_dir)
    if not installation.ledger_url and not (installation.state_dir / "ledger.db").exists():
        yield problem(
            f"There is no ledger in {installation.state_dir}.",
            "Start the run, or give --ledger if it is elsewhere.",
        )
        return
    database = Database(url)
    ledger = Ledger(database)  # not `open`, which would migrate it
    try:
        database.refuse_newer()
        yield from _check_open_ledger(ledger, url.partition(":")[0].partition("+")[0], now)
        yield from check_residue(installation, ledger)
        waiting = str(ledger.facts().get(WAITING, ""))
        if waiting:
            yield warning(f"The run waits. {waiting}", "Start the missing clients, or lower start-clients.")
        for client, found in sorted(dict(ledger.facts().get(SITE_PROBLEMS) or {}).items()):
            yield problem(
                f"Client {client}: {found}",
                "Mend it at the site, and restart its SuperNode.",
            )
        for client, rounds in unresponsive_clients(ledger).items():
            yield problem(sentence(client, rounds), REMEDY)
    except VersionMismatch as exc:
        yield problem(str(exc), "Upgrade this program, or restore a backup.")
    except LedgerUnavailable as exc:
        yield problem(
            str(exc), "The federation waits until it is back. After an upgrade, start the services once."
        )
    finally:
        ledger.close()


def _check_open_ledger(ledger: Ledger, kind: str, now: datetime) -> Iterator[Finding]:
    broken = ledger.verify()
    if broken:
        yield problem(
            f"The ledger was changed past this program. {broken}",
            "Somebody or a fault wrote to the database past this program: keep a copy, restore a backup.",
        )
    else:
        yield ok(f"The ledger is on {kind}; its {ledger.last_event_sequence()} events are whole.")
    newest = ledger.events(after=max(0, ledger.last_event_sequence() - 1), limit=1)
    if newest and newest[0].at > now + _SKEW:
        yield problem(
            f"The ledger's newest event is of {newest[0].at:%Y-%m-%d %H:%M} UTC: the clock was put back.",
            "Set the clock by NTP. SuperNodes are refused when clocks differ by more than five minutes.",
        )


def _is_loopback(address: str) -> bool:
    return ip_address(address.removeprefix("::ffff:")).is_loopback  # IPv4 as IPv6 writes it
