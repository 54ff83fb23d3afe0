"""Where sessions are held and who may come: addresses and TLS of both sides.

As with the deletion service, beyond one's own machine there is only mutual TLS: the server does not listen and
the client does not connect without. On loopback (demo, tests) plain text is allowed.
"""

import errno
import resource
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from logging import getLogger
from typing import Any
from urllib.parse import unquote

import grpc

from strategies.sessions.framing import MAX_FRAME_BYTES
from strategies.settings.run_config import RunSettings
from strategies.tls_files import TLS_SETTINGS, TlsFiles, bind_error, is_loopback
from strategies.waiting_places import network_of
from unlearning.errors import SessionError

_log = getLogger(__name__)

MAX_CLIENTS = 500
"""Each client of a session holds a thread of the server; those beyond are not invited."""
MAX_ARRIVING = 256
"""Streams that have not said whose they are; each holds a thread, too."""
LISTEN_S = 60.0
"""How long a taken port is waited for. A run that was stopped may learn so from Flower's heartbeat only, every 22 s,
and then has 5 s to end; the next run may have begun meanwhile."""
CALL = "/flower_unlearning.session.v1.SessionService/Attend"
_SPARE_THREADS = 64  # for streams that are being refused or closed
_MAX_CONNECTIONS = 20_000
_PAUSE_S = 1.0  # before a taken port is tried again

_WINDOW_BYTES = 2**22
"""What may be under way over one stream. gRPC's own window grows with the link, beyond a model of 44 MB, and what is in
it lies in memory. With this one a link that takes 100 ms there and back still carries 40 MB per second."""
_BOTH_ENDS = (
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", _WINDOW_BYTES),
    # A machine that vanished without a word is found out within a minute, also while it computes.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_receive_message_length", MAX_FRAME_BYTES),
)
_SERVER_OPTIONS = (
    *_BOTH_ENDS,
    ("grpc.so_reuseport", 0),  # otherwise two server processes could share the port
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
    # A connection without TLS and HTTP/2, or without a stream, is closed.
    ("grpc.server_handshake_timeout_ms", 10_000),
    ("grpc.max_connection_idle_ms", 300_000),
    ("grpc.max_concurrent_streams", 1_000),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A server's place for sessions.

    address: where clients reach it (host:port). bind: where it listens. timeout_s: of one exchange.
    """

    address: str
    bind: str
    timeout_s: float
    tls: TlsFiles | None = None

    @classmethod
    def from_settings(cls, settings: RunSettings) -> "Endpoint | None":
        """Return the run's endpoint; None where `session-address` is empty and exchanges go by Flower
        messages.

        Raises:
            ConfigurationError: a TLS file cannot be read.
        """
        if not settings.session_address:
            return None
        tls = TlsFiles.from_settings(settings.to_run_config())
        if tls is not None:
            tls.read()
        return cls(
            address=settings.session_address,
            bind=settings.session_bind or settings.session_address,
            timeout_s=settings.session_timeout_s,
            tls=tls,
        )

    def listen(self, *, wait_s: float = LISTEN_S) -> grpc.Server:
        """Return a server that is bound and not started; where the address is taken, wait for it first.

        Raises:
            SessionError: the address is still taken after `wait_s`, or none of this machine's, or open to others
                without TLS.
        """
        if (self.tls is None or self.tls.ca is None) and not is_loopback(self.bind):
            raise SessionError(
                f"Sessions at {self.bind} could be reached from other machines, so both sides must prove who "
                f"they are: set {', '.join(TLS_SETTINGS)}, or bind to 127.0.0.1.",
                code="no-tls",
            )
        # Of those that attend, are ending, arrive; gRPC's own limit on streams would count all alike.
        threads = ThreadPoolExecutor(
            2 * MAX_CLIENTS + MAX_ARRIVING + _SPARE_THREADS, thread_name_prefix="session"
        )
        connections = ("grpc.max_allowed_incoming_connections", _max_connections())
        server = grpc.server(threads, options=(*_SERVER_OPTIONS, connections))
        started, said = time.monotonic(), False
        while not self._bind(server):
            self.check()
            if time.monotonic() - started >= wait_s:
                raise SessionError(
                    f"Cannot listen for sessions at {self.bind}. Does another server process still hold the port?",
                    code="port-taken",
                )
            if not said:
                _log.warning(
                    "Cannot listen for sessions at %s, which an earlier run may hold; trying for %g s.",
                    self.bind,
                    wait_s,
                )
                said = True
            time.sleep(_PAUSE_S)
        return server

    def check(self) -> None:
        """Refuse an address that is none of this machine's.

        Raises:
            SessionError: says why no server can listen there.
        """
        why = bind_error(self.bind)
        if why is not None and why.errno != errno.EADDRINUSE:
            raise SessionError(
                f"Cannot listen for sessions at {self.bind}: {why.strerror}. Set session-bind to an address and "
                "port of this machine.",
                code="bad-address",
            )

    def _bind(self, server: grpc.Server) -> bool:
        """Let `server` have the address; return whether it could."""
        try:
            if self.tls is None:
                server.add_insecure_port(self.bind)
            else:
                server.add_secure_port(self.bind, self.tls.server_credentials())
        except RuntimeError:
            return False
        return True


def party_of(context: grpc.ServicerContext) -> str:
    """Return by what a caller's streams are counted: its certificate's subject, without one its network."""
    subject = context.auth_context().get("x509_subject")
    if subject:
        return bytes(subject[0]).decode(errors="replace")
    address = unquote(context.peer()).partition(":")[2].rpartition(":")[0]
    return network_of(address.strip("[]"))


def _max_connections() -> int:
    """Let the process have as many files as the system allows; return how many may be connections."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return _MAX_CONNECTIONS if most == resource.RLIM_INFINITY else min(_MAX_CONNECTIONS, most // 2)


def serve(server: grpc.Server, answer: Callable[[Iterator[bytes], Any], Iterator[bytes]]) -> None:
    """Let `server` answer the one call of session.proto; frames stay the bytes that travel."""
    service, _, name = CALL[1:].partition("/")
    handlers = {name: grpc.stream_stream_rpc_method_handler(answer)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))


def attend(channel: grpc.Channel) -> Callable[..., Any]:
    """Return the one call of session.proto; frames stay the bytes that travel."""
    call: Callable[..., Any] = channel.stream_stream(CALL, None, None)
    return call


def open_channel(address: str, tls: TlsFiles | None) -> grpc.Channel:
    """Return a client's connection to the sessions at `address`.

    Raises:
        SessionError: the address is on another machine and there is no TLS.
        ConfigurationError: a TLS file cannot be read.
    """
    options: list[tuple[str, Any]] = [
        *_BOTH_ENDS,
        ("grpc.initial_reconnect_backoff_ms", 200),
        ("grpc.max_reconnect_backoff_ms", 2_000),
    ]
    if is_loopback(address):
        options.append(("grpc.enable_http_proxy", 0))  # a proxy cannot reach this machine's loopback
    if tls is not None:
        return grpc.secure_channel(address, tls.channel_credentials(), options)
    if not is_loopback(address):
        raise SessionError(
            f"The session at {address} is on another machine: give this node "
            f"{', '.join(TLS_SETTINGS)} in its --node-config.",
            code="no-tls",
        )
    return grpc.insecure_channel(address, options)
