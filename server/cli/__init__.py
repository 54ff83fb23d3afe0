"""The command `flower-unlearn`: file deletion requests, follow them, and run the deletion service.

Each command is a function in one of the modules beside this one, and one line here; `demo` and `bench`, which no
server runs, are in `benchmarks/` and come as entry points of the installed package. Errors reach the user as one
message on stderr: exit code 2 for a refusal, 1 for anything else, never a stack trace.
"""

import logging
import os
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from typer.core import TyperGroup

from server.cli import audit as cli_audit
from server.cli import certificates as cli_verify
from server.cli import deadlines as cli_deadlines
from server.cli import listings as cli_listings
from server.cli import operations as cli_operations
from server.cli import requests as cli_requests
from server.cli import serve as cli_serve
from server.cli import setup as cli_setup
from server.cli import start as cli_start
from server.cli import watch as cli_watch
from server.cli.connection import DEFAULT_SERVER, Connection
from server.cli.console import console_command
from server.cli.federation_file import READ_THE_FILE, use_federation_file
from server.cli.http_token import http_token
from server.cli.model import model_command
from server.cli.new import new_command
from server.cli.plan import plan_command
from server.cli.renew import renew_command
from server.operations.federation_toml import VARIABLE as FILE_VARIABLE
from strategies.tls_files import TlsFiles
from unlearning.errors import ConfigurationError, FlowerUnlearningError, RequestError
from unlearning.runtime.command_output import outlive_readers
from unlearning.runtime.durable_files import keep_private
from unlearning.runtime.gc_tuning import end_without_collecting

log = logging.getLogger(__name__)
_DEBUG = "FLOWER_UNLEARNING_DEBUG"
ENTRY_POINTS = "flower_unlearning.commands"


class _Messages(TyperGroup):
    """Turns every error of a command into one message and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except FlowerUnlearningError as exc:
            _say(str(exc))
            refused = isinstance(exc, RequestError | ConfigurationError)
            raise typer.Exit(2 if refused else 1) from exc
        except (OSError, UnicodeError) as exc:
            _say(str(exc))
            raise typer.Exit(1) from exc


app = typer.Typer(
    name="flower-unlearn",
    cls=_Messages,
    help="Ask a live Flower federation to forget, and see what becomes of it.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@app.callback()
def connection(
    ctx: typer.Context,
    server: Annotated[
        str, typer.Option(envvar="FLOWER_UNLEARNING_SERVER", help="The deletion service, HOST:PORT.")
    ] = DEFAULT_SERVER,
    tls_ca: Annotated[
        Path | None,
        typer.Option(envvar="FLOWER_UNLEARNING_TLS_CA", help="Authority that certifies the service (PEM)."),
    ] = None,
    tls_cert: Annotated[
        Path | None, typer.Option(envvar="FLOWER_UNLEARNING_TLS_CERT", help="Your certificate (PEM).")
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option(envvar="FLOWER_UNLEARNING_TLS_KEY", help="Its private key (PEM).")
    ] = None,
    federation_file: Annotated[
        Path | None,
        typer.Option(
            envvar=FILE_VARIABLE,
            help="On the server host: federation.toml, whose values are the defaults of the commands there.",
        ),
    ] = None,
) -> None:
    """Ask a live Flower federation to forget, and see what becomes of it."""
    any_tls = tls_ca or tls_cert or tls_key
    ctx.obj = Connection(server, TlsFiles(tls_ca, tls_cert, tls_key) if any_tls else None, federation_file)
    if federation_file is not None and ctx.invoked_subcommand in READ_THE_FILE:
        use_federation_file(ctx, federation_file)


app.command("request")(cli_requests.request)
app.command("status")(cli_requests.status)
app.command("list")(cli_requests.list_requests)
app.command("watch")(cli_watch.watch)
app.command("cancel")(cli_requests.cancel)
app.command("retry")(cli_requests.retry)
app.command("extend")(cli_deadlines.extend)
app.command("hold")(cli_deadlines.hold)
app.command("release")(cli_deadlines.release)
app.command("refuse")(cli_deadlines.refuse)
app.command("amend")(cli_deadlines.amend)
app.command("redact")(cli_deadlines.redact)
app.command("report")(cli_requests.report)
app.command("clients")(cli_listings.clients)
app.command("plan")(plan_command)
app.command("methods")(cli_listings.methods)
app.command("refusals")(cli_audit.refusals)
app.command("verify-ledger")(cli_audit.verify_ledger)
app.command("certificate-key")(cli_verify.certificate_key)
app.command("verify")(cli_verify.verify)
app.command("timestamp")(cli_verify.timestamp)
app.command("console")(console_command)
app.command("serve")(cli_serve.serve)
app.command("http-token")(http_token)
app.command("model")(model_command)
app.command("new")(new_command)
app.add_typer(cli_setup.app, name="setup")
app.command("start")(cli_start.start)
app.command("supervise")(cli_start.supervise)
app.command("check")(cli_operations.check)
app.command("erase-residue")(cli_operations.erase_residue)
app.command("renew")(renew_command)
app.command("backup")(cli_operations.backup)
app.command("restore")(cli_operations.restore)
for point in entry_points(group=ENTRY_POINTS):
    app.command(point.name)(point.load())


def main() -> None:
    """Run the command of the arguments, and explain what went wrong."""
    keep_private()
    outlive_readers()
    end_without_collecting()
    try:
        app()
    except Exception as exc:
        if os.environ.get(_DEBUG):
            raise
        _say(f"Unexpected error, probably a fault of this program: {type(exc).__name__}: {exc}")
        _say(f"Run it again with {_DEBUG}=1 to see where, and report it.")
        raise SystemExit(1) from None


def _say(message: str) -> None:
    Console(stderr=True, soft_wrap=True, highlight=False, markup=False).print(message)
