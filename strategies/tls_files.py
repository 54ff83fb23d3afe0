"""The PEM files by which machines prove to each other who they are, and the addresses that they listen at."""

import ipaddress
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from unlearning.errors import ConfigurationError

TLS_SETTINGS = ("session-tls-ca", "session-tls-cert", "session-tls-key")


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The authority that the other side must be certified by, and one's own certificate and key.

    A server without `ca` accepts callers without a certificate; a client without `ca` trusts the machine's own
    authorities. names: of the options that name the files, for messages.
    """

    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    names: tuple[str, ...] = ("--tls-ca", "--tls-cert", "--tls-key")

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> "TlsFiles | None":
        """Return what the `TLS_SETTINGS` of sessions name; None where all are empty.

        Raises:
            ConfigurationError: only some are given.
        """
        values = {name: str(settings.get(name, "")) for name in TLS_SETTINGS}
        missing = [name for name, value in values.items() if not value]
        if len(missing) == len(values):
            return None
        if missing:
            raise ConfigurationError([f"{name}: it goes together with the other two." for name in missing])
        ca, certificate, key = (Path(value).expanduser() for value in values.values())
        return cls(ca, certificate, key, TLS_SETTINGS)

    def server_credentials(self) -> grpc.ServerCredentials:
        """Return the credentials that a server listens with.

        Raises:
            ConfigurationError: the certificate or key is missing, or a file cannot be read.
        """
        ca, certificate, key = self.read()
        if certificate is None or key is None:
            raise ConfigurationError(
                [f"tls: a server needs its own certificate and key ({self.names[1]}, {self.names[2]})."]
            )
        return grpc.ssl_server_credentials([(key, certificate)], ca, require_client_auth=ca is not None)

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """Return the credentials that a client connects with.

        Raises:
            ConfigurationError: only one of certificate and key is given, or a file cannot be read.
        """
        ca, certificate, key = self.read()
        if (certificate is None) != (key is None):
            raise ConfigurationError(
                [f"tls: a certificate and its key go together ({self.names[1]}, {self.names[2]})."]
            )
        return grpc.ssl_channel_credentials(ca, key, certificate)

    def read(self) -> tuple[bytes | None, bytes | None, bytes | None]:
        """Return the contents of authority, certificate and key; None where there is no file.

        Raises:
            ConfigurationError: lists every file that cannot be read.
        """
        problems: list[str] = []
        contents: list[bytes | None] = []
        for option, path in zip(self.names, (self.ca, self.certificate, self.key), strict=True):
            try:
                contents.append(None if path is None else path.read_bytes())
            except OSError as exc:
                problems.append(f"tls: {option} {str(path)!r} cannot be read: {exc.strerror}.")
        if problems:
            raise ConfigurationError(problems)
        ca, certificate, key = contents
        return ca, certificate, key


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


def bind_error(address: str) -> OSError | None:
    """Return why a server cannot bind to `address` (host:port), which gRPC does not say; None if one can."""
    if address.startswith("unix:"):
        return None
    host, _, port = address.rpartition(":")
    try:
        for family, kind, protocol, _, where in socket.getaddrinfo(
            host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        ):
            with socket.socket(family, kind, protocol) as one:
                one.bind(where)
    except OSError as exc:
        return exc
    return None
