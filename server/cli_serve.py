"""`flower-unlearn serve`: run the deletion service until it is told to stop."""

import logging
import signal
import threading
from pathlib import Path
from typing import Annotated

import typer

from server.api.tls import TlsFiles
from server.cli_connection import DEFAULT_SERVER

REPORTS = "reports"
LEDGER_FILE = "ledger.db"


def serve(
    state_dir: Annotated[
        Path, typer.Option(help="The server's state directory: ledger (SQLite) and reports/.")
    ],
    ledger: Annotated[
        str,
        typer.Option(
            envvar="FLOWER_UNLEARNING_LEDGER",
            help="URL of the ledger; default: SQLite in the state directory.",
            show_default=False,
        ),
    ] = "",
    address: Annotated[str, typer.Option(help="Where to listen, HOST:PORT.")] = DEFAULT_SERVER,
    tls_ca: Annotated[Path | None, typer.Option(help="Authority that certifies callers (PEM).")] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="The service's certificate (PEM).")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its private key (PEM).")] = None,
) -> None:
    """Run the deletion service until SIGTERM or Ctrl-C; what it has answered is durable."""
    # Imported here because the service knows the methods and so needs PyTorch; other commands do not.
    from server.api.server import serve as start
    from server.ledger import Ledger

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    told_to_stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: told_to_stop.set())
    store = Ledger.open(ledger or f"sqlite:///{state_dir.absolute() / LEDGER_FILE}")
    try:
        any_tls = tls_ca or tls_cert or tls_key
        tls = TlsFiles(tls_ca, tls_cert, tls_key) if any_tls else None
        running = start(store, state_dir / REPORTS, address, tls)
        typer.echo(f"The deletion service listens at {running.address}.")
        told_to_stop.wait()
        running.stop()
        typer.echo("The deletion service has stopped.")
    finally:
        store.close()
