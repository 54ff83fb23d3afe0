"""The command `flower-unlearn`: file deletion requests, follow them, and run the deletion service.

Each command is a function in one of the modules beside this one, and one line here, but for the verbs on a request,
which come from the service's table of calls; `demo` and `bench`, which no server runs, are in `benchmarks/` and come as
entry points of the installed package. Errors reach the user as one message on stderr: exit code 2 for a refusal, 1 for
anything else, never a stack trace.
"""

import logging
import os
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from typer.core import TyperGroup

from server.cli import (
    app_commands,
    host_commands,
    listings,
    plan_command,
    request_commands,
    service_commands,
    setup_commands,
    verbs,
    verification,
)
from server.cli.connection import DEFAULT_SERVER, READ_THE_FILE, Connection, use_federation_file
from server.operations.federation_toml import VARIABLE as FILE_VARIABLE
from server.service.calls import VERBS
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


app.command("request")(request_commands.request)
app.command("status")(request_commands.status)
app.command("list")(request_commands.list_requests)
app.command("watch")(request_commands.watch)
for name, verb in VERBS.items():
    app.command(name)(verbs.plain_command(name, verb))
app.command("report")(request_commands.report)
app.command("clients")(listings.clients)
app.command("plan")(plan_command.plan_command)
app.command("methods")(listings.methods)
app.command("refusals")(listings.refusals)
app.command("verify-ledger")(verification.verify_ledger)
app.command("certificate-key")(verification.certificate_key)
app.command("verify")(verification.verify)
app.command("timestamp")(verification.timestamp)
app.command("console")(service_commands.console_command)
app.command("serve")(service_commands.serve)
app.command("http-token")(host_commands.http_token)
app.command("model")(app_commands.model_command)
app.command("new")(app_commands.new_command)
app.add_typer(setup_commands.app, name="setup")
app.command("start")(host_commands.start)
app.command("supervise")(host_commands.supervise)
app.command("check")(host_commands.check)
app.command("erase-residue")(host_commands.erase_residue)
app.command("renew")(host_commands.renew_command)
app.command("backup")(host_commands.backup)
app.command("restore")(host_commands.restore)
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
