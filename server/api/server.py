"""Listening: where the deletion service can be reached, and by whom."""

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from server.api.deletion_pb2 import DESCRIPTOR
from server.api.deletion_pb2_grpc import add_DeletionServiceServicer_to_server
from server.api.gate import HARD_LIMIT_FACTOR, Gate
from server.api.limits import Limits
from server.api.refusal_log import RefusalLog
from server.api.service import DeletionService, utc_now
from server.api.tls import TlsFiles, is_loopback
from server.ledger import Ledger
from unlearning.errors import ConfigurationError

MAX_CONCURRENT_CALLS = 500
# What `server.api.client` is ready to receive.
MAX_ANSWER_BYTES = 1024 * 1024 * 1024
_SERVICE_NAME = DESCRIPTOR.services_by_name["DeletionService"].full_name
_OPTIONS = (
    ("grpc.max_send_message_length", MAX_ANSWER_BYTES),
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
    refusals: RefusalLog

    def stop(self, grace_s: float = 5.0) -> None:
        """Take no new calls, give running ones `grace_s` seconds, and return when all are over."""
        self.health_servicer.enter_graceful_shutdown()
        self.grpc_server.stop(grace_s).wait()
        self.refusals.close()


def serve(
    ledger: Ledger,
    reports_dir: Path,
    address: str,
    tls: TlsFiles | None = None,
    *,
    limits: Limits | None = None,
) -> RunningServer:
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
    limits = limits or Limits()
    certificates_required = tls is not None and tls.ca is not None
    refusals = RefusalLog(ledger, clock=utc_now, monotonic=time.monotonic)
    gate = Gate(
        _SERVICE_NAME,
        limits=limits,
        refusals=refusals,
        monotonic=time.monotonic,
        certificates_required=certificates_required,
    )
    # A watcher holds a thread; 16 more answer everything else.
    workers = ThreadPoolExecutor(limits.max_watchers + 16, thread_name_prefix="deletion-service")
    hard_limit = ("grpc.max_receive_message_length", HARD_LIMIT_FACTOR * limits.max_message_bytes)
    server = grpc.server(
        workers,
        interceptors=[gate],
        options=(*_OPTIONS, hard_limit),
        maximum_concurrent_rpcs=MAX_CONCURRENT_CALLS,
    )
    service = DeletionService(ledger, reports_dir, limits=limits, certificates_required=certificates_required)
    add_DeletionServiceServicer_to_server(service, server)  # type: ignore[no-untyped-call]  # generated
    health_servicer = health.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(health_servicer, server)
    port = _bind(server, address, tls)
    server.start()
    for name in ("", _SERVICE_NAME):
        health_servicer.set(name, health_pb2.HealthCheckResponse.SERVING)
    return RunningServer(f"{host}:{port}", server, health_servicer, refusals)


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
