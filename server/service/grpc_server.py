"""Listening: where the deletion service can be reached, by whom, and with how many connections."""

import asyncio
import resource
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2

from server.ledger import Ledger
from server.service import deletion_pb2 as pb
from server.service.access import Caller
from server.service.call_checks import HARD_LIMIT_FACTOR, CallChecks, Exchange
from server.service.calls import CALLS
from server.service.convert import arguments_of, from_message, to_message
from server.service.deletion_service import DeletionService, Runner, run_here, utc_now
from server.service.limits import Limits, Places, Rates
from server.service.refusal_log import RefusalLog
from server.service.uploads import Uploads
from server.service.workers import Workers, event_loop
from strategies.tls_files import TlsFiles, bind_error, is_loopback
from unlearning.errors import ConfigurationError, RequestNotFound

_SERVICE = pb.DESCRIPTOR.services_by_name["DeletionService"]
_HEALTH_NAME: str = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
# What `server.service.client` is ready to receive.
MAX_ANSWER_BYTES = 1024 * 1024 * 1024
# Of about 14 KB each while they say nothing.
MAX_CONNECTIONS = 20_000
# Files that the process needs besides these: ledger, reports, logs, metrics, connections over HTTP.
RESERVED_FILES = 1_600
_OPTIONS = (
    ("grpc.max_send_message_length", MAX_ANSWER_BYTES),
    # Otherwise a second service could listen on the same port and take half of the calls.
    ("grpc.so_reuseport", 0),
    # What a connection may send ahead: this many calls, and this much of each body before it is read.
    ("grpc.max_concurrent_streams", 32),
    ("grpc.http2.lookahead_bytes", 256 * 1024),
    ("grpc.http2.bdp_probe", 0),
    # A connection that does not finish TLS and HTTP/2 in time, makes no call or takes no answer is closed.
    ("grpc.server_handshake_timeout_ms", 10_000),
    ("grpc.max_connection_idle_ms", 60_000),
    ("grpc.max_connection_age_ms", 1_800_000),
    ("grpc.max_connection_age_grace_ms", 60_000),
    # Both sides find out within two minutes that the line is dead (server/service/client.py pings likewise).
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.http2.min_ping_interval_without_data_ms", 20_000),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 20_000),
)
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class Core:
    """The service behind all transports: what answers, and what a call must pass and share with all others.

    calls: the places of calls with one message and one answer.
    """

    ledger: Ledger
    service: DeletionService
    limits: Limits
    checks: CallChecks
    workers: Workers
    calls: Places
    run_step: Runner


@dataclass(slots=True)
class Health:
    """The standard health service's Check, for all services together; its Watch, an endless stream, is not served."""

    is_serving: bool = True

    async def serve(self, exchange: Exchange) -> None:
        """Answer the call Check."""
        asked = await exchange.read(health_pb2.HealthCheckRequest.FromString)
        if asked.service not in ("", _SERVICE.full_name):
            raise RequestNotFound(f"No service {asked.service[:80]!r} is here.", code="no-such-service")
        states = health_pb2.HealthCheckResponse
        await exchange.write(states(status=states.SERVING if self.is_serving else states.NOT_SERVING))


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A deletion service that listens at `address` (host:port)."""

    address: str
    grpc_server: grpc.aio.Server
    health: Health
    refusals: RefusalLog
    core: Core

    def stop(self, grace_s: float = 5.0) -> None:
        """Take no new calls, give running ones `grace_s` seconds, and return when all have ended."""
        self.health.is_serving = False
        on_the_loop(self.grpc_server.stop(grace_s))
        self.core.workers.close()
        self.refusals.close()


def serve(
    ledger: Ledger,
    reports_dir: Path,
    address: str,
    tls: TlsFiles | None = None,
    *,
    limits: Limits | None = None,
    run_step: Runner = run_here,
) -> RunningServer:
    """Start the deletion service at `address` (host:port; port 0 takes a free one) and return.

    Every caller can have data deleted, so beyond this machine the service listens only with mutual TLS.
    run_step: runs what needs the methods.

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
    credentials = None if tls is None else tls.server_credentials()
    workers = Workers()
    refusals = RefusalLog(ledger, clock=utc_now, monotonic=time.monotonic)
    checks = CallChecks(
        limits=limits,
        rates=Rates(limits),
        refusals=refusals,
        workers=workers,
        monotonic=time.monotonic,
        certificates_required=tls is not None and tls.ca is not None,
    )
    health = Health()
    core = Core(
        ledger,
        DeletionService(ledger, reports_dir, limits=limits, run_step=run_step),
        limits,
        checks,
        workers,
        Places(limits.max_calls, limits.max_calls_per_caller, "calling", "wait for the answers"),
        run_step,
    )
    served = _handlers(core, health)

    async def start() -> tuple[grpc.aio.Server, int]:
        options = (
            *_OPTIONS,
            ("grpc.max_allowed_incoming_connections", _max_connections()),
            ("grpc.max_receive_message_length", HARD_LIMIT_FACTOR * limits.max_message_bytes),
        )
        server = grpc.aio.server(handlers=served, options=options)
        port = _bind(server, address, credentials)
        await server.start()
        return server, port

    server, port = on_the_loop(start())
    return RunningServer(f"{host}:{port}", server, health, refusals, core)


def _handlers(core: Core, health: Health) -> list["grpc.GenericRpcHandler[Any, Any]"]:
    """Return what gRPC runs for each call of the protocol, and for the health check."""
    limits, service, checks = core.limits, core.service, core.checks
    streams: dict[str, tuple[Callable[[Exchange], Coroutine[Any, Any, None]], Places]] = {
        "SubmitSamples": (
            Uploads(service, checks.rates, time.monotonic).serve,
            Places(limits.max_uploads, 1, "sending samples", "wait until the list is filed"),
        ),
    }
    handlers = {}
    for method in _SERVICE.methods:
        answer, places = streams.get(method.name) or (_one_answer(service, method.name), core.calls)
        handlers[method.name] = checks.handler(method.name, answer, places)
    check = checks.handler("Check", health.serve, core.calls, for_all=True)
    return [
        grpc.method_handlers_generic_handler(_SERVICE.full_name, handlers),
        grpc.method_handlers_generic_handler(_HEALTH_NAME, {"Check": check}),
    ]


def _one_answer(service: DeletionService, call: str) -> Callable[[Exchange], Coroutine[Any, Any, None]]:
    """Return what serves a call with one message and one answer, which a thread makes."""
    method, step, request = _SERVICE.methods_by_name[call], service.step_of(call), CALLS[call].request
    parse = getattr(pb, method.input_type.name).FromString
    answer_kind = getattr(pb, method.output_type.name)

    def answer(caller: Caller, message: Message) -> Message:
        if request is not None:
            result = step(caller, from_message(request, message))
        else:
            result = step(caller, **arguments_of(message))
        made: Message = to_message(answer_kind, result)
        return made

    async def serve_call(exchange: Exchange) -> None:
        message = await exchange.read(parse)
        await exchange.write(await exchange.run(lambda: answer(exchange.caller, message)))

    return serve_call


def on_the_loop(coroutine: Coroutine[Any, Any, _Result]) -> _Result:
    """Run a coroutine on the services' event loop from another thread; return what it gives."""
    return asyncio.run_coroutine_threadsafe(coroutine, event_loop()).result()


def _max_connections() -> int:
    """Return how many connections leave files for the rest of the process; further ones are closed at once."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed == resource.RLIM_INFINITY:
        return MAX_CONNECTIONS
    return min(MAX_CONNECTIONS, max(allowed - RESERVED_FILES, allowed // 2))


def _bind(server: grpc.aio.Server, address: str, credentials: grpc.ServerCredentials | None) -> int:
    cause: Exception | None = None
    try:
        if credentials is None:
            port = server.add_insecure_port(address)
        else:
            port = server.add_secure_port(address, credentials)
    except RuntimeError as exc:
        port, cause = 0, exc
    if port == 0:
        why = bind_error(address)
        reason = (
            "Is the directory there, or a TLS file damaged?"
            if why is None
            else f"{why.strerror}. Choose an address of this machine at which no other service listens."
        )
        raise ConfigurationError([f"address: cannot listen at {address}: {reason}"]) from cause
    return port
