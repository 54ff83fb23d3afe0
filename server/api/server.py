"""Listening: where the deletion service can be reached, and by whom."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from server.api.deletion_pb2 import DESCRIPTOR
from server.api.deletion_pb2_grpc import add_DeletionServiceServicer_to_server
from server.api.service import MAX_WATCHERS, DeletionService
from server.api.tls import TlsFiles, is_loopback
from server.ledger import Ledger
from unlearning.errors import ConfigurationError

# A list of a million sample ids of ordinary length fits.
MAX_MESSAGE_BYTES = 64 * 1024 * 1024
MAX_CONCURRENT_CALLS = 500
_SERVICE_NAME = DESCRIPTOR.services_by_name["DeletionService"].full_name
_OPTIONS = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    # Otherwise a second service could listen on the same port and take half of the calls.
    ("grpc.so_reuseport", 0),
    # Watchers find out within a minute that the line is dead (server/api/client.py sends the pings).
    ("grpc.http2.min_ping_interval_without_data_ms", 20_000),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 20_000),
)


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A deletion service that listens at `address` (host:port)."""

    address: str
    grpc_server: grpc.Server
    health_servicer: health.HealthServicer

    def stop(self, grace_s: float = 5.0) -> None:
        """Take no new calls, give running ones `grace_s` seconds, and return when all are over."""
        self.health_servicer.enter_graceful_shutdown()
        self.grpc_server.stop(grace_s).wait()


def serve(ledger: Ledger, reports_dir: Path, address: str, tls: TlsFiles | None = None) -> RunningServer:
    """Start the deletion service at `address` (host:port; port 0 takes a free one) and return.

    Whoever reaches the service can have data deleted, so beyond this machine it listens only with
    mutual TLS.

    Raises:
        ConfigurationError: the address cannot be used, or is open to others without mutual TLS.
    """
    host = address.rpartition(":")[0]
    if not host:
        raise ConfigurationError([f"address: {address!r} is not of the form HOST:PORT."])
    if not is_loopback(address) and (tls is None or tls.ca is None):
        raise ConfigurationError(
            [
                f"address: {address} can be reached from other machines, so callers must prove who they are. "
                "Give --tls-ca, --tls-cert and --tls-key, or listen on 127.0.0.1."
            ]
        )
    # A watcher holds a thread; 16 more answer everything else.
    workers = ThreadPoolExecutor(MAX_WATCHERS + 16, thread_name_prefix="deletion-service")
    server = grpc.server(workers, options=_OPTIONS, maximum_concurrent_rpcs=MAX_CONCURRENT_CALLS)
    add_DeletionServiceServicer_to_server(DeletionService(ledger, reports_dir), server)  # type: ignore[no-untyped-call]  # generated
    health_servicer = health.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(health_servicer, server)
    port = _bind(server, address, tls)
    server.start()
    for name in ("", _SERVICE_NAME):
        health_servicer.set(name, health_pb2.HealthCheckResponse.SERVING)
    return RunningServer(f"{host}:{port}", server, health_servicer)


def _bind(server: grpc.Server, address: str, tls: TlsFiles | None) -> int:
    try:
        if tls is None:
            port = server.add_insecure_port(address)
        else:
            port = server.add_secure_port(address, tls.server_credentials())
    except RuntimeError as exc:
        port = 0
        cause: Exception | None = exc
    else:
        cause = None
    if port == 0:
        raise ConfigurationError(
            [f"address: cannot listen at {address}. Is another service running there, or a TLS file damaged?"]
        ) from cause
    return port
