"""The command `flower-unlearn`: file deletion requests, follow them, and run the deletion service.

Each command is a function in one of the modules beside this one, and one line here, but for the verbs on a request,
which come from the service's table of calls; `demo` and `bench`, which no server runs, are in `benchmarks/` and come as
entry points of the installed package. A command is imported when it is called or shown. How commands end and print is
in `strategies/command_line.py`.
"""

import os
from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Annotated, Any, TypeAlias

os.environ.setdefault(
    "GRPC_VERBOSITY", "NONE"
)  # gRPC reads it when it is imported; our messages say what failed

import click
import typer

from server.cli.connection import DEFAULT_SERVER, READ_THE_FILE, Connection, use_federation_file
from server.service.calls import VERBS, Role
from strategies.command_line import Command, Printing, Program, run_program
from strategies.tls_files import TlsFiles

FILE_VARIABLE = "FLOWER_UNLEARNING_FILE"
ENTRY_POINTS = "flower_unlearning.commands"
EPILOG = (
    "Exit codes: 0 done; 1 failed, or what was checked is not well; 2 wrong use or settings; 3 refused; "
    "4 the service or its ledger cannot be reached. Into a pipe, data is tab-separated text."
)

OFFICER = "Requests and their proofs (officer, operator)"
OPERATOR = "The running federation (operator)"
SETTING_UP = "Setting up and looking after hosts"
RESEARCHER = "Trying, comparing and your own app (researcher)"
_VERB = "verbs"
"""In the place of a function: what VERBS has under the command's name."""
_Panels: TypeAlias = Mapping[str, Mapping[str, str]]
_PRINTING: _Panels = {
    OFFICER: {
        "request": "request_commands:request",
        "status": "request_commands:status",
        "list": "request_commands:list_requests",
        "watch": "request_commands:watch",
        **{name: _VERB for name, verb in VERBS.items() if Role.OFFICER in verb.roles},
        "report": "request_commands:report",
        "plan": "plan_command:plan_command",
        "verify": "verification:verify",
        "verify-ledger": "verification:verify_ledger",
        "timestamp": "verification:timestamp",
    },
    OPERATOR: {
        **{name: _VERB for name, verb in VERBS.items() if Role.OFFICER not in verb.roles},
        "clients": "listings:clients",
        "refusals": "listings:refusals",
        "start": "host_commands:start",
        "backup": "host_commands:backup",
        "restore": "host_commands:restore",
        "erase-residue": "host_commands:erase_residue",
        "prune": "host_commands:prune_command",
    },
    SETTING_UP: {
        "check": "host_commands:check",
        "certificate-key": "verification:certificate_key",
        "http-token": "host_commands:http_token",
        "renew": "host_commands:renew_command",
    },
    RESEARCHER: {
        "methods": "listings:methods",
        "model": "app_commands:model_command",
        "new": "app_commands:new_command",
    },
}
"""The commands that print data, by who needs them: module and function."""
_OTHERS: _Panels = {
    SETTING_UP: {"setup": "setup_commands:app"},
    OFFICER: {"console": "service_commands:console_command"},
    OPERATOR: {
        "serve": "service_commands:serve",
        "supervise": "host_commands:supervise",
    },
}
_PLACES = {
    name: (place, panel, kind)
    for kind, panels in ((Printing, _PRINTING), (Command, _OTHERS))
    for panel, places in panels.items()
    for name, place in places.items()
}


class Commands(Program):
    """The commands of `flower-unlearn`, each of them made when it is called or shown."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command of a name; of a name that none has all are made, for one of them may be proposed."""
        if cmd_name not in self.commands:
            known = self.list_commands(ctx)
            self.commands.update({name: _made(name) for name in ([cmd_name] if cmd_name in known else known)})
        return self.commands.get(cmd_name)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names, in the order of the panels."""
        return [*_PLACES, *_added()]


def _made(name: str) -> click.Command:
    if name not in _PLACES:
        return _command(name, _added()[name].load(), RESEARCHER, Printing if name == "bench" else Command)
    place, panel, kind = _PLACES[name]
    return _command(name, _found(name, place), panel, kind)


def _found(name: str, place: str) -> Any:
    if place == _VERB:
        from server.cli.verbs import plain_command

        return plain_command(name, VERBS[name])
    module, _, function = place.partition(":")
    return getattr(import_module(f"server.cli.{module}"), function)


def _added() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=ENTRY_POINTS)}


def _command(name: str, found: Any, panel: str, kind: type[Command]) -> click.Command:
    alone = typer.Typer()
    if isinstance(found, typer.Typer):
        alone.add_typer(found, name=name, rich_help_panel=panel)
    else:
        alone.command(name, cls=kind, rich_help_panel=panel)(found)
    return typer.main.get_group(alone).commands[name]


app = typer.Typer(
    name="flower-unlearn",
    cls=Commands,
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


def main() -> None:
    """Run the command, as `run_program` does."""
    run_program(app)
