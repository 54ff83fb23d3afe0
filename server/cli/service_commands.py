"""`flower-unlearn serve` and `console`: the deletion service, and the officer's pages in a browser."""

import resource
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from server.cli.connection import DEFAULT_SERVER, LedgerUrl, connection_of, options_of, user_name
from server.operations.logs import log_to_stderr
from server.service.limits import Limits
from server.state_directory.files import REPORTS, private_state, refuse_half_restored
from server.state_directory.ledger_address import asked_ledger
from strategies.tls_files import TlsFiles
from unlearning.errors import ConfigurationError
from unlearning.runtime.gc_tuning import nothing_collected

if TYPE_CHECKING:
    from server.console.launch import Settings


@options_of("limits", Limits, Limits)
def serve(
    state_dir: Annotated[
        Path, typer.Option(help="The server's state directory: ledger (SQLite) and reports/.")
    ],
    ledger: LedgerUrl = "",
    address: Annotated[str, typer.Option(help="Where to listen, HOST:PORT.")] = DEFAULT_SERVER,
    tls_ca: Annotated[Path | None, typer.Option(help="Authority that certifies callers (PEM).")] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="The service's certificate (PEM).")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its private key (PEM).")] = None,
    metrics: Annotated[
        str, typer.Option(help="Where to answer /metrics and /healthz over HTTP, HOST:PORT; not if empty.")
    ] = "",
    http: Annotated[
        str,
        typer.Option(
            help="Where to answer the HTTP API (docs/how-to-connect-a-privacy-tool.md), HOST:PORT; not if empty."
        ),
    ] = "",
    http_tokens: Annotated[
        Path | None, typer.Option(help="Who may call over HTTP: the file that `http-token` makes.")
    ] = None,
    http_callback_key: Annotated[
        Path | None,
        typer.Option(help="The key that signs callbacks (Ed25519, PEM); `certificate-key` makes one."),
    ] = None,
    http_callback_url: Annotated[
        list[str] | None,
        typer.Option(
            help="A URL that may be called back, or all below it where it ends in /; may be repeated."
        ),
    ] = None,
    timestamp_url: Annotated[
        str,
        typer.Option(
            help="An authority for timestamps (RFC 3161 over HTTP) that each new certificate is shown; none if empty."
        ),
    ] = "",
    timestamp_authority: Annotated[
        Path | None, typer.Option(help="Its certificate (PEM), to check its answers with.")
    ] = None,
    *,
    limits: Limits,
) -> None:
    """Run the deletion service until SIGTERM or Ctrl-C; what it has answered is durable."""
    # Imported here because other commands do without.
    with nothing_collected():
        from server.certificate.keys import load_signing_key
        from server.certificate.timestamp import TimestampAuthority
        from server.certificate.timestamp_worker import TimestampWorker
        from server.ledger import Ledger
        from server.operations.metrics import serve_metrics
        from server.operations.service_metrics import ServiceCollector
        from server.operations.work_process import WorkProcess
        from server.service.grpc_server import MAX_CONNECTIONS, RESERVED_FILES
        from server.service.grpc_server import serve as start
        from server.service.http_server import HttpOptions, serve_http
        from server.state_directory.subject_key import subject_keys

    log_to_stderr()
    _allow_many_files(MAX_CONNECTIONS + RESERVED_FILES)
    refuse_half_restored(state_dir)
    private_state(state_dir)
    with ExitStack() as parts:  # what has begun is stopped in turn, also where a later part cannot begin
        told_to_stop = parts.enter_context(_signal_socket())
        store = Ledger.open(asked_ledger(ledger, state_dir), subject_keys(state_dir))
        parts.callback(store.close)
        any_tls = tls_ca or tls_cert or tls_key
        tls = TlsFiles(tls_ca, tls_cert, tls_key) if any_tls else None
        methods = WorkProcess()
        parts.callback(methods.close)
        running = start(store, state_dir / REPORTS, address, tls, limits=limits, run_step=methods.run)
        parts.callback(running.stop)
        said = [f"The deletion service listens at {running.address}."]
        callbacks = None
        if http:
            options = HttpOptions(
                address=http,
                tokens=http_tokens,
                callback_key=None if http_callback_key is None else load_signing_key(http_callback_key),
                callback_urls=tuple(http_callback_url or ()),
            )
            web = serve_http(running.core, options, state_dir, tls)
            parts.callback(web.stop)
            callbacks = web.callbacks
            said.append(f"The HTTP API is at {web.url}, described at {web.url}/openapi.json.")
        authority = TimestampAuthority.of(timestamp_url, timestamp_authority)
        if authority is not None:
            stamping = TimestampWorker(store, state_dir / REPORTS, authority)
            stamping.start()
            parts.callback(stamping.stop)
            said.append(f"Certificates are stamped by {authority.url}.")
        if metrics:
            own = ServiceCollector(
                state_dir=state_dir,
                certificates=tuple(path for path in (tls_ca, tls_cert) if path is not None),
                calls=running.core.checks.metrics,
                callbacks=callbacks,
            )
            watched = serve_metrics(store, metrics, own)
            parts.callback(watched.stop)
            said.append(f"Metrics and health are at http://{watched.address}/metrics and /healthz.")
        typer.echo("\n".join(said))  # once nothing of it can be refused
        told_to_stop.recv(1)
    typer.echo("The deletion service has stopped.")


def _allow_many_files(wanted: int) -> None:
    """Raise the limit of open files to `wanted`, as far as the system allows: each connection is one."""
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if now != resource.RLIM_INFINITY and now < wanted:
        allowed = wanted if most == resource.RLIM_INFINITY else min(wanted, most)
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, most))


@contextmanager
def _signal_socket() -> Iterator[socket.socket]:
    """Yield a socket that has a byte to read as soon as SIGTERM or SIGINT has come.

    A handler that sets an event is not enough: it runs between two steps of the main thread, and a signal that
    comes as the main thread begins to wait would not end the wait.
    """
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGTERM, signal.SIGINT)}
    with reader, writer:
        signal.set_wakeup_fd(writer.fileno())
        try:
            yield reader
        finally:
            signal.set_wakeup_fd(-1)
            for number, handler in before.items():
                signal.signal(number, handler)


def console_command(
    ctx: typer.Context,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="The port on this machine; 0: any free one.")
    ] = 0,
    no_browser: Annotated[
        bool, typer.Option("--no-browser", help="Print the link only; open no browser.")
    ] = False,
    public_key: Annotated[
        Path | None,
        typer.Option(help="The public key of the server's certificates (PEM), to check their signatures."),
    ] = None,
) -> None:
    """Open the deletion requests, the register and the federation as pages in a browser on this machine."""
    settings_kind, run_console = load_console()
    connection = connection_of(ctx)
    settings = settings_kind(
        address=connection.server,
        tls=connection.tls,
        name=user_name(),
        port=port,
        opens_browser=not no_browser,
        public_key=public_key,
    )
    with suppress(KeyboardInterrupt):  # how the console is meant to end
        run_console(settings, typer.echo)


def load_console() -> "tuple[type[Settings], Callable[[Settings, Callable[[str], None]], None]]":
    """Return the console's settings and what serves it.

    Raises:
        ConfigurationError: what it needs is not installed.
    """
    try:
        from server.console.launch import Settings, run_console
    except ModuleNotFoundError as exc:
        raise ConfigurationError(
            [
                f"The console needs {exc.name}, which is not installed: pip install 'flower-unlearning[console]'."
            ]
        ) from exc
    return Settings, run_console
