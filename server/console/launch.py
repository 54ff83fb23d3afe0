"""Starting the console: its certificate, its port on this machine, its link, the browser."""

import socket
import webbrowser
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread

import typer
import uvicorn
from cryptography import x509

from server.certificate.keys import load_public_key
from server.console.auth import LoginLink
from server.console.rendering import Console
from server.console.routes import make_app
from server.console.saved_filters import SavedFilters
from server.service.access import Caller, caller_of_certificate, local_caller
from server.service.client import DeletionClient
from strategies.tls_files import TlsFiles
from unlearning.errors import ConfigurationError
from unlearning.runtime.durable_files import write_new

HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Where the service is, as whom to call it, and how the console is reached.

    name: what a caller without a certificate calls itself. port: 0 for a free one. filters: where they are
    kept that a user has saved.
    """

    address: str
    tls: TlsFiles | None
    name: str
    port: int = 0
    opens_browser: bool = True
    public_key: Path | None = None
    filters: Path = field(
        default_factory=lambda: Path(typer.get_app_dir("flower-unlearning")) / "filters.json"
    )


def run_console(settings: Settings, say: Callable[[str], None]) -> None:
    """Serve the console until it is ended (Ctrl-C).

    Raises:
        ConfigurationError: the certificate has no role, or a file or the port cannot be used.
    """
    caller, not_after = who_calls(settings)
    key = None if settings.public_key is None else load_public_key(settings.public_key)
    with (
        _listen(settings.port) as listening,
        DeletionClient(settings.address, settings.tls) as service,
        TemporaryDirectory(prefix="flower-unlearn-console-") as private,
    ):
        login = LoginLink(listening.getsockname()[1], say)
        console = Console(
            service=service,
            caller=caller,
            address=settings.address,
            login=login,
            filters=SavedFilters(settings.filters),
            public_key=key,
            not_after=not_after,
        )
        say(
            f"The console of {caller.name} ({', '.join(caller.roles)}) for the deletion service at {settings.address}."
        )
        if problem := console.mirror.now().problem:
            say(f"{problem} The console goes on by itself when the service answers.")
        opening = "A browser opens. If it does not, paste" if settings.opens_browser else "Paste"
        say(f"{opening} this link into a browser of this machine; it works once:")
        say(f"  {login.link}")
        say("Ctrl-C ends the console.")
        entrance = Path(private) / "open.html"
        write_new(entrance, login.page.encode())
        config = uvicorn.Config(
            make_app(console),
            log_level="warning",
            access_log=False,
            server_header=False,
            ws="none",
            lifespan="off",
            timeout_graceful_shutdown=1,
        )
        _Server(config, entrance.as_uri() if settings.opens_browser else "").run(sockets=[listening])


class _Server(uvicorn.Server):
    """Opens a browser with `address`, if there is one, once a request would be answered."""

    def __init__(self, config: uvicorn.Config, address: str) -> None:
        super().__init__(config)
        self._address = address

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self._address:  # in a thread: a browser of the terminal returns when it is closed
            Thread(target=webbrowser.open, args=(self._address,), daemon=True).start()


def who_calls(settings: Settings) -> tuple[Caller, datetime | None]:
    """Return who the caller is by its certificate, and until when that is valid.

    Raises:
        ConfigurationError: the certificate cannot be read, or has no role.
    """
    path = settings.tls.certificate if settings.tls is not None else None
    if path is None:
        return local_caller(settings.name), None
    try:
        pem = path.read_bytes()
        not_after = x509.load_pem_x509_certificate(pem).not_valid_after_utc
    except (OSError, ValueError) as exc:
        raise ConfigurationError([f"--tls-cert {str(path)!r} cannot be read: {exc}"]) from exc
    caller = caller_of_certificate(pem)
    if caller.role is None:
        raise ConfigurationError(
            [f"--tls-cert: {caller.problem} Ask the operator for a certificate with a role."]
        )
    return caller, not_after


def _listen(port: int) -> socket.socket:
    try:
        return socket.create_server((HOST, port))  # it listens: a browser may come before anything answers
    except (OSError, OverflowError) as exc:
        raise ConfigurationError(
            [f"--port {port}: it cannot be used: {exc}. Leave it out for a free one."]
        ) from exc
