"""The HTTP side of watching: /metrics for Prometheus, /healthz for whoever restarts things."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from logging import getLogger

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from server.ledger import Ledger, LedgerUnavailable
from server.metrics import LedgerCollector
from unlearning.errors import ConfigurationError

_log = getLogger(__name__)
_TIMEOUT_S = 10.0


class MetricsServer:
    """Answers /metrics and /healthz at `address` (host:port) until `stop`; read-only, without TLS."""

    def __init__(self, server: ThreadingHTTPServer) -> None:
        self._server = server
        host, port = str(server.server_address[0]), int(server.server_address[1])
        self.address = f"{host}:{port}"
        self._thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop listening; returns when that is so."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def serve_metrics(ledger: Ledger, address: str) -> MetricsServer:
    """Start answering at `address` (port 0 takes a free one) and return.

    Raises:
        ConfigurationError: the address cannot be used.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise ConfigurationError([f"metrics: {address!r} is not of the form HOST:PORT."])
    registry = CollectorRegistry()
    registry.register(LedgerCollector(ledger))
    ProcessCollector(registry=registry)

    class Handler(_Handler):
        pass

    Handler.ledger, Handler.registry = ledger, registry
    try:
        server = ThreadingHTTPServer((host.strip("[]"), int(port)), Handler)
    except OSError as exc:
        raise ConfigurationError([f"metrics: cannot listen at {address}: {exc}."]) from exc
    server.daemon_threads = True
    return MetricsServer(server)


class _Handler(BaseHTTPRequestHandler):
    """Two pages; everything else is not found."""

    timeout = _TIMEOUT_S  # a caller that says nothing holds no thread for ever
    ledger: Ledger
    registry: CollectorRegistry

    def do_GET(self) -> None:
        """Answer a request."""
        path = self.path.partition("?")[0]
        if path == "/metrics":
            self._answer(200, CONTENT_TYPE_LATEST, generate_latest(self.registry))
        elif path == "/healthz":
            self._health()
        else:
            self._answer(404, "text/plain", b"Here are /metrics and /healthz.\n")

    def _health(self) -> None:
        try:
            status, found = 200, {"status": "ok", "last_event": self.ledger.last_event_sequence()}
        except LedgerUnavailable as exc:
            _log.warning("Not healthy: %s", exc)
            status, found = 503, {"status": "the ledger cannot be read"}
        self._answer(status, "application/json", json.dumps(found).encode())

    def _answer(self, status: int, kind: str, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is http.server's
        """A scrape every few seconds is no news."""
        _log.debug(format, *args)
