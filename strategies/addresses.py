"""Hosts and addresses as people give them: what is none is refused where it is given, not where it is used."""

import re
import socket
from contextlib import suppress
from ipaddress import IPv6Address, ip_address

from unlearning.errors import ConfigurationError

_NAME = re.compile(r"(?=.*[A-Za-z])[A-Za-z0-9_][A-Za-z0-9_-]*(\.[A-Za-z0-9_-]+)*")


def host_part(host: str) -> str:
    """Return a DNS name or address as it stands before `:PORT`: an IPv6 address in brackets.

    Raises:
        ConfigurationError: it is neither, as with a scheme or a port.
    """
    try:
        address = ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        if _NAME.fullmatch(host):
            return host
    else:
        if "%" not in host:
            return f"[{address}]" if isinstance(address, IPv6Address) else str(address)
    raise ConfigurationError(
        [
            f"{host!r} is no host. Give a DNS name, or an IPv4 or IPv6 address, without https:// and without a port."
        ]
    )


def is_address(text: str) -> bool:
    """Return whether `text` is HOST:PORT, an IPv6 address in brackets."""
    host, _, port = text.rpartition(":")
    with suppress(ConfigurationError):
        host_part(host)
        return port.isdecimal() and 0 < int(port) < 2**16 and (":" not in host or host.startswith("["))
    return False


def listening_place(setting: str, address: str) -> tuple[str, int, socket.AddressFamily]:
    """Return host, port (0 for a free one) and family of the address HOST:PORT at which a server is to listen.

    Raises:
        ConfigurationError: `setting` is no such address.
    """
    host, _, port = address.rpartition(":")
    if not is_address(f"{host}:1" if port == "0" else address):
        raise ConfigurationError(
            [f"{setting}: {address!r} is not of the form HOST:PORT, or [HOST]:PORT for IPv6."]
        )
    return host.strip("[]"), int(port), socket.AF_INET6 if ":" in host else socket.AF_INET


def address_of(listening: socket.socket) -> str:
    """Return where a socket listens: HOST:PORT, an IPv6 address in brackets."""
    host, port = listening.getsockname()[:2]
    return f"{host_part(host)}:{port}"
