"""`flower-unlearn serve`: run the deletion service until it is told to stop."""

import resource
import signal
import socket
from pathlib import Path
from typing import Annotated

import typer

from server.api.limits import Limits
from server.api.tls import TlsFiles
from server.cli.connection import DEFAULT_SERVER
from server.operations.logs import log_to_stderr
from server.state_directory.files import REPORTS, private_state
from server.state_directory.ledger_address import VARIABLE, asked_ledger

_DEFAULT = Limits()


def serve(
    state_dir: Annotated[
        Path, typer.Option(help="The server's state directory: ledger (SQLite) and reports/.")
    ],
    ledger: Annotated[
        str,
        typer.Option(
            envvar=VARIABLE,
            help="URL of the ledger; default: SQLite in the state directory. A password belongs into the "
            "variable, because everybody on the machine can read the command.",
            show_default=False,
        ),
    ] = "",
    address: Annotated[str, typer.Option(help="Where to listen, HOST:PORT.")] = DEFAULT_SERVER,
    tls_ca: Annotated[Path | None, typer.Option(help="Authority that certifies callers (PEM).")] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="The service's certificate (PEM).")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its private key (PEM).")] = None,
    metrics: Annotated[
        str, typer.Option(help="Where to answer /metrics and /healthz over HTTP, HOST:PORT; not if empty.")
    ] = "",
    max_message_mib: Annotated[float, typer.Option(help="Largest message.")] = _DEFAULT.max_message_mib,
    calls_per_s: Annotated[
        float, typer.Option(help="Calls a second of each client and officer.")
    ] = _DEFAULT.calls_per_s,
    operator_calls_per_s: Annotated[
        float, typer.Option(help="Calls a second of each operator.")
    ] = _DEFAULT.operator_calls_per_s,
    max_open_requests: Annotated[
        int, typer.Option(help="Open requests that one caller may have.")
    ] = _DEFAULT.max_open_requests,
    max_calls: Annotated[
        int, typer.Option(help="Unanswered calls of all clients and officers; operators have as many apart.")
    ] = _DEFAULT.max_calls,
    max_calls_per_caller: Annotated[
        int, typer.Option(help="Unanswered calls of each client and officer.")
    ] = _DEFAULT.max_calls_per_caller,
    body_timeout_s: Annotated[
        float, typer.Option(help="How long to wait for a call's message.")
    ] = _DEFAULT.body_timeout_s,
    max_requests_per_day: Annotated[
        int, typer.Option(help="Requests that one client may file within 24 hours.")
    ] = _DEFAULT.max_requests_per_day,
    max_samples_per_day: Annotated[
        int, typer.Option(help="Sample ids that a client's requests of 24 hours may name.")
    ] = _DEFAULT.max_samples_per_day,
    max_watchers: Annotated[
        int, typer.Option(help="`watch` streams of all clients and officers; operators have as many apart.")
    ] = _DEFAULT.max_watchers,
    max_watchers_per_caller: Annotated[
        int, typer.Option(help="`watch` streams of each client and officer.")
    ] = _DEFAULT.max_watchers_per_caller,
    max_uploads: Annotated[
        int, typer.Option(help="Long lists of samples on their way, of all clients; operators likewise.")
    ] = _DEFAULT.max_uploads,
    sample_ids_per_day: Annotated[
        int, typer.Option(help="Sample ids in long lists that each client may send.")
    ] = _DEFAULT.sample_ids_per_day,
) -> None:
    """Run the deletion service until SIGTERM or Ctrl-C; what it has answered is durable."""
    # Imported here because the service knows the methods and so needs PyTorch; other commands do not.
    from server.api.server import MAX_CONNECTIONS, RESERVED_FILES
    from server.api.server import serve as start
    from server.ledger import Ledger
    from server.operations.metrics_http import serve_metrics
    from server.operations.restore_steps import refuse_half_restored
    from server.state_directory.subject_key import subject_keys

    limits = Limits(
        max_message_mib=max_message_mib,
        calls_per_s=calls_per_s,
        operator_calls_per_s=operator_calls_per_s,
        max_open_requests=max_open_requests,
        max_calls=max_calls,
        max_calls_per_caller=max_calls_per_caller,
        body_timeout_s=body_timeout_s,
        max_requests_per_day=max_requests_per_day,
        max_samples_per_day=max_samples_per_day,
        max_watchers=max_watchers,
        max_watchers_per_caller=max_watchers_per_caller,
        max_uploads=max_uploads,
        sample_ids_per_day=sample_ids_per_day,
    )
    log_to_stderr()
    _allow_many_files(MAX_CONNECTIONS + RESERVED_FILES)
    refuse_half_restored(state_dir)
    private_state(state_dir)
    store = Ledger.open(asked_ledger(ledger, state_dir), subject_keys(state_dir))
    try:
        any_tls = tls_ca or tls_cert or tls_key
        tls = TlsFiles(tls_ca, tls_cert, tls_key) if any_tls else None
        running = start(store, state_dir / REPORTS, address, tls, limits=limits)
        told_to_stop = _signal_socket()
        typer.echo(f"The deletion service listens at {running.address}.")
        watched = serve_metrics(store, metrics) if metrics else None
        if watched is not None:
            typer.echo(f"Metrics and health are at http://{watched.address}/metrics and /healthz.")
        told_to_stop.recv(1)
        if watched is not None:
            watched.stop()
        running.stop()
        typer.echo("The deletion service has stopped.")
    finally:
        store.close()


def _allow_many_files(wanted: int) -> None:
    """Raise the limit of open files to `wanted`, as far as the system allows: each connection is one."""
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if now != resource.RLIM_INFINITY and now < wanted:
        allowed = wanted if most == resource.RLIM_INFINITY else min(wanted, most)
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, most))


def _signal_socket() -> socket.socket:
    """Return a socket that has a byte to read as soon as SIGTERM or SIGINT has come.

    A handler that sets an event is not enough: it runs between two steps of the main thread, and a signal that
    comes as the main thread begins to wait would not end the wait.
    """
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    signal.set_wakeup_fd(writer.detach())
    return reader
