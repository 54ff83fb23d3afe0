"""Listening over HTTP: one call a connection, a few seconds for each of its parts, so many connections at once.

uvicorn reads and writes HTTP/1.1; its own server is not used, for it lets a request's head trickle for ever and takes
connections without end. Everything runs on the deletion service's event loop, with its checks and threads.
"""

import asyncio
import socket
import ssl
from dataclasses import dataclass
from functools import partial
from logging import getLogger
from pathlib import Path

from starlette.types import ASGIApp
from uvicorn import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from server.api.server import Core, on_the_loop
from server.api.service import utc_now
from server.api.tls import TlsFiles, is_loopback
from server.certificate.keys import load_signing_key
from server.http_api.application import HttpApi
from server.http_api.callback_urls import AllowedUrls
from server.http_api.callbacks import Callbacks, Signer
from server.http_api.tokens import Tokens
from server.state_directory.files import CALLBACKS
from unlearning.errors import ConfigurationError

_log = getLogger(__name__)

MAX_CONNECTIONS = 128
# For TLS and the request's head; and for all that comes after, the taking of the answer included.
HEAD_TIMEOUT_S, CALL_TIMEOUT_S = 10.0, 120.0
MAX_HEAD_BYTES = 16 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpOptions:
    """What the operator decides of the HTTP API.

    address: HOST:PORT, port 0 takes a free one. tokens: `server.http_api.tokens`. callback_key: an Ed25519 private key
    (PEM), None where nobody is called back; callback_urls: what may be called (`server.http_api.callback_urls`).
    """

    address: str
    tokens: Path | None
    callback_key: Path | None = None
    callback_urls: tuple[str, ...] = ()


class HttpServer:
    """The deletion service at an HTTP address until `stop`."""

    def __init__(self, api: HttpApi, listener: socket.socket, tls: ssl.SSLContext | None) -> None:
        self._callbacks = api.callbacks
        self._connections = _Connections(api.application(), listener, tls)
        host, port = listener.getsockname()[:2]
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self.url = f"{'https' if tls else 'http'}://{self.address}"
        if self._callbacks is not None:
            self._callbacks.start()
        on_the_loop(self._connections.start())

    def stop(self, grace_s: float = 5.0) -> None:
        """Take no new calls, give running ones `grace_s` seconds, and return when all are over."""
        on_the_loop(self._connections.stop(grace_s))
        if self._callbacks is not None:
            self._callbacks.stop()


def serve_http(core: Core, options: HttpOptions, state_dir: Path, tls: TlsFiles | None = None) -> HttpServer:
    """Start answering over HTTP and return.

    A token stands in the place of the certificate that a caller shows over gRPC; beyond this machine it travels under
    TLS only.

    Raises:
        ConfigurationError: the address cannot be used or is open to others without TLS, or a file cannot be used.
        OSError: the directory of callbacks cannot be made.
    """
    context = _context(options.address, tls)
    if options.tokens is None:
        raise ConfigurationError(
            [
                "--http-tokens: over HTTP a caller shows a token; name the file that `flower-unlearn http-token` makes."
            ]
        )
    api = HttpApi(core, Tokens(options.tokens), _callbacks(core, options, state_dir))
    return HttpServer(api, _listener(options.address), context)


class _Protocol(H11Protocol):
    """One connection. begun: its request's head is here; ended: it is closed."""

    def __init__(self, config: Config, state: ServerState) -> None:
        super().__init__(config, state, {})
        self.begun, self.ended = asyncio.Event(), asyncio.Event()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is not None:
            self.begun.set()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.begun.set()
        self.ended.set()


class _Connections:
    """The open connections; where a new one finds no place, the one that waited longest without a head is closed."""

    def __init__(self, application: ASGIApp, listener: socket.socket, tls: ssl.SSLContext | None) -> None:
        self._config = Config(
            application,
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="error",  # a warning for each malformed request would be a stranger's to write
            access_log=False,
            proxy_headers=False,
            h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        )
        self._config.load()
        self._state = ServerState()
        self._state.default_headers = [(b"connection", b"close")]
        self._listener = listener
        self._tls = tls
        self._open: dict[asyncio.Task[None], bool] = {}  # in the order of their coming: has its head come?
        self._accepting: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._accepting = asyncio.create_task(self._accept())

    async def stop(self, grace_s: float) -> None:
        assert self._accepting is not None, "it was started"
        self._accepting.cancel()
        await asyncio.gather(self._accepting, return_exceptions=True)
        self._listener.close()
        if self._open:
            await asyncio.wait(self._open, timeout=grace_s)
        left = list(self._open)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, _ = await loop.sock_accept(self._listener)
            except OSError as exc:  # no more files, or hung up before it was accepted
                _log.warning("An HTTP connection could not be accepted: %s", exc)
                await asyncio.sleep(0.1)
                continue
            if len(self._open) >= MAX_CONNECTIONS and not self._close_one():
                accepted.close()
                continue
            task = asyncio.create_task(self._serve(accepted))
            self._open[task] = False
            task.add_done_callback(partial(self._ended, accepted))

    def _ended(self, accepted: socket.socket, task: asyncio.Task[None]) -> None:
        self._open.pop(task, None)
        accepted.close()  # of a task that was cancelled before it began; else it is closed already

    def _close_one(self) -> bool:
        waiting = next((task for task, has_begun in self._open.items() if not has_begun), None)
        if waiting is None:
            return False
        self._open.pop(waiting)
        waiting.cancel()
        return True

    async def _serve(self, accepted: socket.socket) -> None:
        task = asyncio.current_task()
        assert task is not None, "asyncio runs this as a task"
        protocol = _Protocol(self._config, self._state)
        try:
            async with asyncio.timeout(HEAD_TIMEOUT_S):
                await asyncio.get_running_loop().connect_accepted_socket(
                    lambda: protocol, accepted, ssl=self._tls
                )
                await protocol.begun.wait()
            if task in self._open:
                self._open[task] = True
            async with asyncio.timeout(CALL_TIMEOUT_S):
                await protocol.ended.wait()
        except (TimeoutError, OSError) as exc:
            _log.debug("An HTTP connection ended: %r", exc)
        finally:
            if protocol.transport is not None:
                protocol.transport.abort()  # what was to be sent is sent, or never will be taken


def _listener(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise ConfigurationError([f"http: {address!r} is not of the form HOST:PORT."])
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(
            host.strip("[]"), int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(place)
            listener.listen(MAX_CONNECTIONS)
            listener.setblocking(False)
        except OSError:
            listener.close()
            raise
    except (OSError, OverflowError) as exc:
        raise ConfigurationError([f"http: cannot listen at {address}: {exc}."]) from exc
    return listener


def _context(address: str, tls: TlsFiles | None) -> ssl.SSLContext | None:
    """Return how connections are encrypted; None: not at all, on loopback."""
    if tls is None or tls.certificate is None or tls.key is None:
        if is_loopback(address):
            return None
        raise ConfigurationError(
            [
                f"http: {address} can be reached from other machines, so tokens must travel under TLS. "
                "Give --tls-cert and --tls-key (and --tls-ca), or listen on 127.0.0.1."
            ]
        )
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(tls.certificate, tls.key)
    except (OSError, ssl.SSLError) as exc:
        raise ConfigurationError([f"http: --tls-cert and --tls-key cannot be used: {exc}."]) from exc
    return context


def _callbacks(core: Core, options: HttpOptions, state_dir: Path) -> Callbacks | None:
    if (options.callback_key is None) != (not options.callback_urls):
        raise ConfigurationError(
            [
                "--http-callback-key, --http-callback-url: give both, or neither where nobody is to be called back."
            ]
        )
    if options.callback_key is None:
        return None
    return Callbacks(
        core.ledger,
        state_dir / CALLBACKS,
        AllowedUrls.of(options.callback_urls),
        Signer(load_signing_key(options.callback_key)),
        utc_now,
    )
