"""TLS for the deletion service and its clients, from files."""

from dataclasses import dataclass
from pathlib import Path

import grpc

from strategies.tls_files import is_loopback, read_pem
from unlearning.errors import ConfigurationError

__all__ = ["TlsFiles", "is_loopback"]


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
        """Return the credentials that a server listens with.

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
        """Return the credentials that a client connects with.

        Raises:
            ConfigurationError: only one of certificate and key is given, or a file cannot be read.
        """
        ca, certificate, key = self._read()
        if (certificate is None) != (key is None):
            raise ConfigurationError(["tls: a certificate and its key go together (--tls-cert, --tls-key)."])
        return grpc.ssl_channel_credentials(ca, key, certificate)

    def _read(self) -> tuple[bytes | None, bytes | None, bytes | None]:
        ca, certificate, key = read_pem(
            {"--tls-ca": self.ca, "--tls-cert": self.certificate, "--tls-key": self.key}
        )
        return ca, certificate, key
