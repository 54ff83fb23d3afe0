"""Listening over HTTP: one call a connection, a few seconds for each of its parts, so many connections at once.

uvicorn reads and writes HTTP/1.1; its own server is not used, for it lets a request's head trickle for ever and takes
connections without end (`server.http_api.connections`). Everything runs on the deletion service's event loop, with its
checks and threads.
"""

import resource
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path

from server.api.server import Core, on_the_loop
from server.api.service import utc_now
from server.certificate.keys import load_signing_key
from server.http_api.application import HttpApi
from server.http_api.callback_urls import AllowedUrls
from server.http_api.callbacks import Callbacks, Signer
from server.http_api.connections import MAX_SILENT, Connections
from server.http_api.tokens import Tokens
from server.state_directory.files import CALLBACKS
from strategies.tls_files import TlsFiles, is_loopback
from unlearning.errors import ConfigurationError


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
        self._connections = Connections(api.application(), listener, tls, _max_silent())
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


def _max_silent() -> int:
    """Return how many connections may say nothing, so that files are left for all else."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_SILENT if allowed == resource.RLIM_INFINITY else min(MAX_SILENT, allowed // 8)


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
            listener.listen(socket.SOMAXCONN)
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
        AllowedUrls(options.callback_urls),
        Signer(load_signing_key(options.callback_key)),
        utc_now,
    )
