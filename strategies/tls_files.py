"""The PEM files by which machines prove to each other who they are, and which addresses need none.

Here because server, strategies and the command line share it, and it needs no network library.
"""

import ipaddress
from collections.abc import Mapping
from pathlib import Path

from unlearning.errors import ConfigurationError


def read_pem(files: Mapping[str, Path | None]) -> list[bytes | None]:
    """Read the contents of `files`, given by the name of the option that names each; None where there is none.

    Raises:
        ConfigurationError: lists every file that cannot be read.
    """
    problems: list[str] = []
    contents: list[bytes | None] = []
    for option, path in files.items():
        try:
            contents.append(None if path is None else path.read_bytes())
        except OSError as exc:
            problems.append(f"tls: {option} {str(path)!r} cannot be read: {exc.strerror}.")
    if problems:
        raise ConfigurationError(problems)
    return contents


def is_loopback(address: str) -> bool:
    """Tell whether only this machine can reach a server that listens at `address` (host:port)."""
    if address.startswith("unix:"):
        return True
    host = address.rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
