"""Listening over HTTP: uvicorn on the deletion service's event loop, with its checks and threads.

uvicorn bounds connections, heads and idle ones; it waits without end for a slow head and counts by no address, so
beyond this machine nginx belongs before it (deploy/nginx-http.conf, docs/how-to-run-behind-nginx.md).
"""

import asyncio
import socket
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

import uvicorn
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from server.service.callback_urls import AllowedUrls
from server.service.callbacks import Callbacks
from server.service.deletion_service import utc_now
from server.service.grpc_server import Core
from server.service.http_api import HttpApi
from server.service.opendsr import Signer
from server.service.sandbox import Sandbox
from server.service.tokens import Tokens
from server.service.workers import event_loop
from server.state_directory.files import CALLBACKS, TOKEN_USES
from strategies.addresses import address_of, listening_place
from strategies.tls_files import TlsFiles, is_loopback
from unlearning.errors import ConfigurationError

_OPTIONS: dict[str, Any] = {
    "ws": "none",
    "lifespan": "off",
    "log_config": None,
    "log_level": "error",  # a warning for each malformed request would be a stranger's to write
    "access_log": False,
    "proxy_headers": False,
    "limit_concurrency": 1000,
    "headers": [("connection", "close")],  # one call a connection, so that an unread body is no next request
    "h11_max_incomplete_event_size": 16 * 1024,
    "http": "h11",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpOptions:
    """What the operator decides of the HTTP API.

    address: HOST:PORT, port 0 takes a free one. tokens: `server.service.tokens`. callback_key: what signs callbacks,
    None where there are none; callback_urls: what may be called (`server.service.callback_urls`).
    """

    address: str
    tokens: Path | None
    callback_key: Ed25519PrivateKey | None = None
    callback_urls: tuple[str, ...] = ()


class HttpServer:
    """The deletion service at an HTTP address until `stop`."""

    def __init__(self, api: HttpApi, listener: socket.socket, tls: TlsFiles | None) -> None:
        self.callbacks, self._sandbox = api.callbacks, api.sandbox
        files: dict[str, Any] = (
            {} if tls is None else {"ssl_certfile": tls.certificate, "ssl_keyfile": tls.key}
        )
        self._server = uvicorn.Server(uvicorn.Config(api.application(), **_OPTIONS, **files))
        try:
            self._server.config.load()
        except OSError as exc:  # ssl.SSLError is one
            listener.close()
            raise ConfigurationError([f"http: --tls-cert and --tls-key cannot be used: {exc}."]) from exc
        self.address = address_of(listener)
        self.url = f"{'https' if files else 'http'}://{self.address}"
        if self.callbacks is not None:
            self.callbacks.start()
        self._running = asyncio.run_coroutine_threadsafe(self._server.serve([listener]), event_loop())

    def stop(self, grace_s: float = 5.0) -> None:
        """Take no new calls, give running ones `grace_s` seconds, and return when all have ended."""
        self._server.config.timeout_graceful_shutdown = ceil(grace_s)
        self._server.should_exit = True
        self._running.result()
        if self.callbacks is not None:
            self.callbacks.stop()
        self._sandbox.stop()


def serve_http(core: Core, options: HttpOptions, state_dir: Path, tls: TlsFiles | None = None) -> HttpServer:
    """Start answering over HTTP and return.

    A token takes the place of the certificate that a caller shows over gRPC; beyond this machine it travels under
    TLS only.

    Raises:
        ConfigurationError: the address cannot be used or is open to others without TLS, or a file cannot be used.
        OSError: the directory of callbacks cannot be made.
    """
    if tls is None or tls.certificate is None or tls.key is None:
        tls = None
        if not is_loopback(options.address):
            raise ConfigurationError(
                [
                    f"http: {options.address} can be reached from other machines, so tokens must travel under TLS. "
                    "Listen on 127.0.0.1 behind nginx (deploy/nginx-http.conf), or give --tls-cert and --tls-key."
                ]
            )
    if options.tokens is None:
        raise ConfigurationError(
            [
                "--http-tokens: over HTTP a caller shows a token; name the file that `flower-unlearn http-token` makes."
            ]
        )
    tokens = Tokens(options.tokens, state_dir / TOKEN_USES, utc_now)
    api = HttpApi(core, tokens, Sandbox(core), _callbacks(core, options, state_dir))
    return HttpServer(api, _listener(options.address), tls)


def _listener(address: str) -> socket.socket:
    """Return a socket that listens: no second service can take the port, and no early caller is refused."""
    host, port, family = listening_place("http", address)
    try:
        return socket.create_server((host, port), family=family)
    except OSError as exc:
        raise ConfigurationError([f"http: cannot listen at {address}: {exc}."]) from exc


def _callbacks(core: Core, options: HttpOptions, state_dir: Path) -> Callbacks | None:
    if (options.callback_key is None) != (not options.callback_urls):
        raise ConfigurationError(
            ["--http-callback-key, --http-callback-url: give both, or neither for no callbacks."]
        )
    if options.callback_key is None:
        return None
    return Callbacks(
        core.ledger,
        state_dir / CALLBACKS,
        AllowedUrls(options.callback_urls),
        Signer(options.callback_key),
        utc_now,
    )
