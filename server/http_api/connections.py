"""The connections of the HTTP API: which of them may stay while others come.

A connection is *silent* until it has said something, then it is *waiting*: for TLS, for its request's head, for the
judgement of its token, for its caller to take a refusal. Both have little time and so much room; where one more comes,
the oldest goes of the address that has most. A call with a place among the service's calls
(`server.api.limits.Places`) keeps its connection, whoever comes.
"""

import asyncio
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from logging import getLogger

from starlette.types import ASGIApp
from uvicorn import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from strategies.waiting_places import WaitingPlaces, network_of

_log = getLogger(__name__)

# Silent ones cost a file and little else; waiting ones hold a third of a mebibyte each, TLS's buffers.
MAX_SILENT, MAX_WAITING = 1000, 128
# For the first bytes, TLS and the request's head; and for all that comes after, the taking of the answer included.
HEAD_TIMEOUT_S, CALL_TIMEOUT_S = 10.0, 120.0
MAX_HEAD_BYTES = 16 * 1024
# Fewer bytes are nothing said: no request and no TLS greeting is as short.
_FIRST_BYTES = 16
_WRITE_BUFFER_BYTES = 64 * 1024


class _Protocol(H11Protocol):
    """HTTP/1.1 over one connection. begun: its request's head is here; ended: it is closed."""

    def __init__(self, config: Config, state: ServerState, guest: "Guest") -> None:
        super().__init__(config, state, {"connection": guest})
        self.begun, self.ended = asyncio.Event(), asyncio.Event()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        transport.set_write_buffer_limits(_WRITE_BUFFER_BYTES)
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is not None:
            self.begun.set()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.begun.set()
        self.ended.set()


class Guest:
    """One connection. party: the network that it comes from."""

    def __init__(self, accepted: socket.socket, party: str, waiting: WaitingPlaces) -> None:
        self.party = party
        self._accepted = accepted
        self._waiting = waiting
        self._task: asyncio.Task[None] | None = None

    def close(self) -> None:
        """End the connection, whatever it waits for."""
        assert self._task is not None, "it is being served"
        self._task.cancel()

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Keep the connection while the block runs, whoever comes: its call has a place."""
        self._waiting.leave(self)
        try:
            yield
        finally:
            if self._task is not None and not self._task.done():
                self._waiting.enter(self)

    def serve(
        self, config: Config, state: ServerState, tls: ssl.SSLContext | None, silent: WaitingPlaces
    ) -> "asyncio.Task[None]":
        """Begin to serve the connection; return the task that ends with it."""
        self._task = asyncio.create_task(self._serve(_Protocol(config, state, self), tls, silent))
        silent.enter(self)
        self._task.add_done_callback(lambda _: self._gone(silent))
        return self._task

    def _gone(self, silent: WaitingPlaces) -> None:
        silent.leave(self)
        self._waiting.leave(self)
        self._accepted.close()  # of a task that was cancelled before it began; else it is closed already

    async def _serve(self, protocol: _Protocol, tls: ssl.SSLContext | None, silent: WaitingPlaces) -> None:
        try:
            async with asyncio.timeout(HEAD_TIMEOUT_S):
                await self._first_bytes()
                silent.leave(self)
                self._waiting.enter(self)
                await asyncio.get_running_loop().connect_accepted_socket(
                    lambda: protocol, self._accepted, ssl=tls
                )
                await protocol.begun.wait()
            async with asyncio.timeout(CALL_TIMEOUT_S):
                await protocol.ended.wait()
        except (TimeoutError, OSError) as exc:
            _log.debug("An HTTP connection ended: %r", exc)
        finally:
            if protocol.transport is not None:
                protocol.transport.abort()  # what was to be sent is sent, or never will be taken

    async def _first_bytes(self) -> None:
        """Return when the kernel has the first bytes, which it counts: nothing runs here for who sends single ones."""
        self._accepted.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, _FIRST_BYTES)
        loop, readable = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._accepted, readable.set)
        try:
            await readable.wait()
        finally:
            loop.remove_reader(self._accepted)
        self._accepted.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)


class Connections:
    """All connections to one listener, each served by `application`, until `stop`."""

    def __init__(
        self, application: ASGIApp, listener: socket.socket, tls: ssl.SSLContext | None, max_silent: int
    ) -> None:
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
        self._silent, self._waiting = WaitingPlaces(max_silent), WaitingPlaces(MAX_WAITING)
        self._open: set[asyncio.Task[None]] = set()
        self._accepting: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to accept connections."""
        self._accepting = asyncio.create_task(self._accept())

    async def stop(self, grace_s: float) -> None:
        """Accept no more, give those that are open `grace_s` seconds, and return when all are closed."""
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
                accepted, peer = await loop.sock_accept(self._listener)
            except OSError as exc:  # no more files, or hung up before it was accepted
                _log.warning("An HTTP connection could not be accepted: %s", exc)
                await asyncio.sleep(0.1)
                continue
            task = Guest(accepted, network_of(peer[0]), self._waiting).serve(
                self._config, self._state, self._tls, self._silent
            )
            self._open.add(task)
            task.add_done_callback(self._open.discard)
            await asyncio.sleep(0)  # a queue that never empties keeps nobody else waiting
