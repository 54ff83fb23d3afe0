"""The HTTP side of watching: /metrics for Prometheus, /healthz for whoever restarts things.

Nobody is trusted to finish a request: each connection has a few seconds, there are so many at once, and where a new one
finds no place the one that has waited longest is closed. Only an answer takes a thread.
"""

import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http import HTTPStatus
from logging import getLogger

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from server.ledger import Ledger, LedgerUnavailable
from server.operations.metrics import LedgerCollector
from unlearning.errors import ConfigurationError

_log = getLogger(__name__)
# For the request, and again for taking the answer.
TIMEOUT_S = 10.0
MAX_CONNECTIONS = 64
MAX_HEAD_BYTES = 16 * 1024


@dataclass(frozen=True, slots=True)
class Answer:
    """A page with its status."""

    status: HTTPStatus
    content_type: str
    content: bytes


class Pages:
    """The pages that can be read. Each has one thread and is made once for all who ask for it meanwhile."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._registry = CollectorRegistry()
        self._registry.register(LedgerCollector(ledger))
        ProcessCollector(registry=self._registry)
        self._makers = {"/metrics": self._metrics, "/healthz": self._health}
        self._threads = {path: ThreadPoolExecutor(1, thread_name_prefix=path) for path in self._makers}
        self._being_made: dict[str, asyncio.Future[Answer]] = {}

    async def page(self, method: str, path: str) -> Answer:
        """Return the answer to a request."""
        if method not in ("GET", "HEAD"):
            return Answer(HTTPStatus.METHOD_NOT_ALLOWED, "text/plain", b"Here is only to be read.\n")
        if path not in self._makers:
            return Answer(HTTPStatus.NOT_FOUND, "text/plain", b"Here are /metrics and /healthz.\n")
        making = self._being_made.get(path)
        if making is None or making.done():
            loop = asyncio.get_running_loop()
            making = loop.run_in_executor(self._threads[path], self._makers[path])
            self._being_made[path] = making
        return await asyncio.shield(making)

    def close(self) -> None:
        """Return when no page is being made any more."""
        for threads in self._threads.values():
            threads.shutdown(cancel_futures=True)

    def _metrics(self) -> Answer:
        return Answer(HTTPStatus.OK, CONTENT_TYPE_LATEST, generate_latest(self._registry))

    def _health(self) -> Answer:
        try:
            status, found = HTTPStatus.OK, {"status": "ok", "last_event": self._ledger.events.last_sequence()}
        except LedgerUnavailable as exc:
            _log.warning("Not healthy: %s", exc)
            status, found = HTTPStatus.SERVICE_UNAVAILABLE, {"status": "the ledger cannot be read"}
        return Answer(status, "application/json", json.dumps(found).encode())


class MetricsServer:
    """A server of /metrics and /healthz at `address` (host:port) until `stop`; read-only, without TLS."""

    def __init__(self, pages: "Pages", host: str, port: int) -> None:
        self._loop = asyncio.new_event_loop()
        self._pages = pages
        self._open: dict[asyncio.Task[None], None] = {}  # in the order of their coming
        listening = asyncio.start_server(self._handle_connection, host, port, limit=MAX_HEAD_BYTES)
        try:
            self._server = self._loop.run_until_complete(listening)
        except OSError:
            self._loop.close()
            pages.close()
            raise
        found = self._server.sockets[0].getsockname()
        self.address = f"{found[0]}:{found[1]}"
        self._thread = threading.Thread(target=self._loop.run_forever, name="metrics", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop listening; returns when that is so."""
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._pages.close()

    async def _close(self) -> None:
        self._server.close()
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _handle_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None, "asyncio runs this as a task"
        if len(self._open) >= MAX_CONNECTIONS:
            next(iter(self._open)).cancel()
        self._open[task] = None
        try:
            await self._answer(reader, writer)
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as exc:
            _log.debug("A connection to the metrics ended: %r", exc)
        except asyncio.CancelledError:
            _log.debug("A connection to the metrics was closed for another one.")
        finally:
            self._open.pop(task, None)
            writer.transport.abort()  # what was to be sent is sent, or never will be taken

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            head = await reader.readuntil(b"\r\n\r\n")
        method, _, rest = head.partition(b"\r\n")[0].decode("latin-1").partition(" ")
        answer = await self._pages.page(method, rest.partition(" ")[0].partition("?")[0])
        writer.transport.set_write_buffer_limits(0)  # draining waits for all of it
        writer.write(
            f"HTTP/1.1 {answer.status.value} {answer.status.phrase}\r\n"
            f"Content-Type: {answer.content_type}\r\n"
            f"Content-Length: {len(answer.content)}\r\n"
            "Connection: close\r\n\r\n".encode()
            + (b"" if method == "HEAD" else answer.content)
        )
        async with asyncio.timeout(TIMEOUT_S):
            await writer.drain()


def serve_metrics(ledger: Ledger, address: str) -> MetricsServer:
    """Start answering at `address` (port 0 takes a free one) and return.

    Raises:
        ConfigurationError: the address cannot be used.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise ConfigurationError([f"metrics: {address!r} is not of the form HOST:PORT."])
    try:
        return MetricsServer(Pages(ledger), host.strip("[]"), int(port))
    except OSError as exc:
        raise ConfigurationError([f"metrics: cannot listen at {address}: {exc}."]) from exc
