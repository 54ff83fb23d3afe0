"""The command `flower-unlearn`: file deletion requests, follow them, and run the deletion service.

Each command is a function in one of the modules beside this one, and one line here, but for the verbs on a request,
which come from the service's table of calls; `demo` and `bench`, which no server runs, are in `benchmarks/` and come as
entry points of the installed package. How commands end and print is in `strategies/command_line.py`.
"""

import os
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, TypeAlias

os.environ.setdefault(
    "GRPC_VERBOSITY", "NONE"
)  # gRPC reads it when it is imported; our messages say what failed

import typer

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
from server.service.calls import VERBS, Role
from strategies.command_line import Printing, Program, run_program
from strategies.tls_files import TlsFiles

ENTRY_POINTS = "flower_unlearning.commands"
EPILOG = (
    "Exit codes: 0 done; 1 failed, or what was checked is not well; 2 wrong use or settings; 3 refused; "
    "4 the service or its ledger cannot be reached. Into a pipe, data is tab-separated text."
)

app = typer.Typer(
    name="flower-unlearn",
    cls=Program,
    help="Ask a live Flower federation to forget, and see what becomes of it.",
    epilog=EPILOG,
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


OFFICER = "Requests and their proofs (officer, operator)"
OPERATOR = "The running federation (operator)"
SETTING_UP = "Setting up and looking after hosts"
RESEARCHER = "Trying, comparing and your own app (researcher)"
_Panels: TypeAlias = Mapping[str, Mapping[str, Callable[..., None]]]
_verbs = {name: verbs.plain_command(name, verb) for name, verb in VERBS.items()}
_PRINTING: _Panels = {
    OFFICER: {
        "request": request_commands.request,
        "status": request_commands.status,
        "list": request_commands.list_requests,
        "watch": request_commands.watch,
        **{name: command for name, command in _verbs.items() if Role.OFFICER in VERBS[name].roles},
        "report": request_commands.report,
        "plan": plan_command.plan_command,
        "verify": verification.verify,
        "verify-ledger": verification.verify_ledger,
        "timestamp": verification.timestamp,
    },
    OPERATOR: {
        **{name: command for name, command in _verbs.items() if Role.OFFICER not in VERBS[name].roles},
        "clients": listings.clients,
        "refusals": listings.refusals,
        "start": host_commands.start,
        "backup": host_commands.backup,
        "restore": host_commands.restore,
    },
    SETTING_UP: {
        "check": host_commands.check,
        "certificate-key": verification.certificate_key,
        "http-token": host_commands.http_token,
        "renew": host_commands.renew_command,
    },
    RESEARCHER: {"methods": listings.methods, "model": app_commands.model_command},
}
"""The commands that print data, by who needs them."""
_OTHERS: _Panels = {
    OFFICER: {"console": service_commands.console_command},
    OPERATOR: {
        "serve": service_commands.serve,
        "supervise": host_commands.supervise,
        "erase-residue": host_commands.erase_residue,
    },
    RESEARCHER: {
        "new": app_commands.new_command,
        **{point.name: point.load() for point in entry_points(group=ENTRY_POINTS)},
    },
}
app.add_typer(setup_commands.app, name="setup", rich_help_panel=SETTING_UP)
for kind, panels in ((Printing, _PRINTING), (None, _OTHERS)):
    for panel, commands in panels.items():
        for name, command in commands.items():
            app.command(name, cls=kind, rich_help_panel=panel)(command)


def main() -> None:
    """Run the command, as `run_program` does."""
    run_program(app)
