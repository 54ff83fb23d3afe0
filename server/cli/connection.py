"""How a command reaches the deletion service, the arguments that several commands share, and the federation's file.

On the server host the file gives the defaults of the commands there.
"""

import getpass
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from datetime import date
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_type_hints

import typer
from typer.core import TyperGroup

from server.state_directory.ledger_address import FILE_VARIABLE, VARIABLE
from strategies.tls_files import TlsFiles
from unlearning.errors import ConfigurationError
from unlearning.gdpr import Ground

if TYPE_CHECKING:
    from server.operations.federation_toml import FederationFile
    from server.service.client import DeletionClient

DEFAULT_SERVER = "127.0.0.1:9100"
_METAVARS: Mapping[Any, str] = {date | None: "YYYY-MM-DD", Ground | None: "a-f"}


@dataclass(frozen=True, slots=True)
class Connection:
    """The global options: where the service is, how to prove who one is, the federation's file."""

    server: str = DEFAULT_SERVER
    tls: TlsFiles | None = None
    federation_file: Path | None = None

    def client(self) -> "DeletionClient":
        """Open a client of the service; close it after use."""
        from server.service.client import DeletionClient

        return DeletionClient(self.server, self.tls)


def connection_of(ctx: typer.Context) -> Connection:
    """Return the global options of this run of the command."""
    assert isinstance(ctx.obj, Connection), "server.cli.connection runs before every command"
    return ctx.obj


def user_name() -> str:
    """Return who files a request, where no certificate says so."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unnamed"  # a container may run as a user id without a name


def take_options(command: Callable[..., None], options: Mapping[str, tuple[Any, Any]]) -> None:
    """Give a command these arguments, by name: annotation and default, `...` where it must be given."""
    parameters = [
        Parameter(
            name,
            Parameter.KEYWORD_ONLY,
            annotation=kind,
            default=Parameter.empty if default is ... else default,
        )
        for name, (kind, default) in options.items()
    ]
    command.__dict__["__signature__"] = Signature(parameters, return_annotation=None)
    command.__annotations__ = {one.name: one.annotation for one in parameters}


def options_of(
    argument: str, kind: type, make: Callable[..., Any]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command an option for each field of a dataclass, in place of its argument, which is made of them.

    A field is annotated with its sentence; one that is no number is given as a text, "" where it is left out.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        hints, options = get_type_hints(kind, include_extras=True), dict[str, tuple[Any, Any]]()
        for one in signature(command).parameters.values():
            if one.name != argument:
                options[one.name] = (one.annotation, ... if one.default is Parameter.empty else one.default)
                continue
            for item in fields(kind):
                type_, text = get_args(hints[item.name])
                if type_ in (int, float):
                    options[item.name] = (Annotated[type_, typer.Option(help=text)], item.default)
                else:
                    option: Any = typer.Option(help=text, metavar=_METAVARS.get(type_))
                    options[item.name] = (Annotated[str, option], "")

        @wraps(command)
        def run(**given: Any) -> None:
            made = make(**{item.name: given.pop(item.name) for item in fields(kind)})
            command(**{argument: made}, **given)

        take_options(run, options)
        return run

    return decorate


def refuse_password(ctx: typer.Context, option: typer.CallbackParam, url: str) -> str:
    """Refuse a password in a ledger's URL on the command line, which every account of the machine can read.

    Raises:
        ConfigurationError: it has one; the password is not repeated.
    """
    source = ctx.get_parameter_source(str(option.name))
    if source is not None and source.name == "COMMANDLINE" and re.search(r"://[^/@\s:]*:[^@\s]+@", url):
        raise ConfigurationError(
            [
                "--ledger: it has a password, which every account of this machine can read here: change it. The "
                f"server's commands read the URL from the file of mode 600 that {FILE_VARIABLE} names; for a URL "
                "without a password PostgreSQL's library looks into PGPASSFILE and PGPASSWORD."
            ]
        )
    return url


LedgerUrl = Annotated[
    str,
    typer.Option(
        envvar=VARIABLE,
        help="URL of the ledger; default: SQLite in the state directory. One with a password is refused here: it "
        f"belongs into the file that {FILE_VARIABLE} names.",
        show_default=False,
        callback=refuse_password,
    ),
]
RequestId = Annotated[str, typer.Argument(metavar="ID", help="A request's id, such as r-000007.")]

READ_THE_FILE = frozenset(
    {"console", "serve", "check", "renew", "backup", "restore", "erase-residue", "prune"}
)
"""The commands whose options have defaults in the file; `start` and `supervise` are all about it."""


def use_federation_file(ctx: typer.Context, path: Path) -> None:
    """Make what the file says the defaults of the commands below `ctx`.

    Raises:
        ConfigurationError: it cannot be read, or a table names what its command has no option for, or a
            value that an option does not take.
    """
    from server.operations.federation_toml import read_federation_file, unknown_key

    options = read_federation_file(path).options()
    group = ctx.command
    assert isinstance(group, TyperGroup), "the commands of flower-unlearn are a group"
    wrong = []
    for table, name in (("service", "serve"), ("retention", "prune")):
        command = group.get_command(ctx, name)
        assert command is not None, "the group of flower-unlearn has this command"
        known = {str(parameter.name): parameter for parameter in command.params}
        typed = [one.replace("_", "-") for one in known]
        for one, value in sorted(options[name].items()):
            key = one.replace("_", "-")
            if one not in known:
                wrong.append(f"{path}: {table}.{unknown_key(key, typed)}")
            elif wanted := _wanted(known[one], value):
                wrong.append(f"{path}: {table}.{key}: give {wanted}, got {value!r}.")
    if wrong:
        raise ConfigurationError(wrong)
    ctx.default_map = {**(ctx.default_map or {}), **options}


def _wanted(parameter: Any, value: Any) -> str:
    """Say what an option takes in place of a file's value, which click would make something else of; empty: nothing.

    It reads `true` as 1, cuts 2.7 to 2, and takes a text for the list of its letters.
    """
    if getattr(parameter, "multiple", False):
        return "" if isinstance(value, list) else "a list in [ ]"
    match parameter.type.name.partition(" ")[0]:  # "integer range" is one, too
        case "integer":
            return "" if type(value) in (int, str) else "a whole number"
        case "float":
            return "" if type(value) in (int, float, str) else "a number"
        case "boolean":
            return "" if type(value) in (bool, str) else "true or false"
    return "" if isinstance(value, str) else "a text"


def federation_file_of(ctx: typer.Context) -> "FederationFile":
    """Return the file that the command names, or the one at its usual place.

    Raises:
        ConfigurationError: it cannot be read.
    """
    from server.operations.federation_toml import DEFAULT_PLACE, read_federation_file

    return read_federation_file(ctx.obj.federation_file or DEFAULT_PLACE)
