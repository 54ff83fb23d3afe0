"""TLS for the deletion service and its clients, from files."""

import ipaddress
from dataclasses import dataclass
from pathlib import Path

import grpc

from unlearning.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files: the authority that the other side must be certified by, and one's own certificate.

    A server without `ca` accepts callers without a certificate; a client without `ca` trusts the
    machine's own authorities.
    """

    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None

    def server_credentials(self) -> grpc.ServerCredentials:
        """What a server listens with.

        Raises:
            ConfigurationError: the certificate or key is missing, or a file cannot be read.
        """
        ca, certificate, key = self._read()
        if certificate is None or key is None:
            raise ConfigurationError(
                ["tls: a server needs its own certificate and key (--tls-cert, --tls-key)."]
            )
        return grpc.ssl_server_credentials([(key, certificate)], ca, require_client_auth=ca is not None)

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """What a client connects with.

        Raises:
            ConfigurationError: only one of certificate and key is given, or a file cannot be read.
        """
        ca, certificate, key = self._read()
        if (certificate is None) != (key is None):
            raise ConfigurationError(["tls: a certificate and its key go together (--tls-cert, --tls-key)."])
        return grpc.ssl_channel_credentials(ca, key, certificate)

    def _read(self) -> tuple[bytes | None, bytes | None, bytes | None]:
        problems: list[str] = []
        contents: list[bytes | None] = []
        for what, path in (("ca", self.ca), ("cert", self.certificate), ("key", self.key)):
            try:
                contents.append(None if path is None else path.read_bytes())
            except OSError as exc:
                problems.append(f"tls: --tls-{what} {str(path)!r} cannot be read: {exc.strerror}.")
        if problems:
            raise ConfigurationError(problems)
        ca, certificate, key = contents
        return ca, certificate, key


def is_loopback(address: str) -> bool:
    """Whether only this machine can reach a server that listens at `address` (host:port)."""
    if address.startswith("unix:"):
        return True
    host = address.rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
