"""Which ports listen where, and which can be reached."""

import socket
from collections.abc import Callable, Iterator, Sequence
from ipaddress import ip_address

from server.operations.checklist.finding import Finding, Installation, ok, problem, warning

PRIVATE_PORTS = {8000: "control and runtime of the SuperLink", 9094: "runtime of a SuperNode"}
PUBLIC_PORTS = {9092: "fleet", 9100: "deletion service"}


def can_connect(host: str, port: int) -> bool:
    """Return whether a TCP connection can be opened to a name or address; one of IPv6 may be in brackets."""
    try:
        with socket.create_connection((host.strip("[]"), port), timeout=3.0):
            return True
    except OSError:
        return False


def check_server_address(
    address: str, *, can_connect: Callable[[str, int], bool] = can_connect
) -> Iterator[Finding]:
    """Check, on a client's host, that the server's name means an address and that its fleet port answers."""
    port = next(iter(PUBLIC_PORTS))
    try:
        socket.getaddrinfo(address.strip("[]"), port)
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
                f"Port {port} ({name}) listens at {', '.join(open_to)}; what reaches it controls the federation.",
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


def check_from_outside(
    host: str, *, can_connect: Callable[[str, int], bool] = can_connect
) -> Iterator[Finding]:
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


def _is_loopback(address: str) -> bool:
    return ip_address(address.removeprefix("::ffff:")).is_loopback  # IPv4 as IPv6 writes it
