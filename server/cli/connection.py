"""How a command reaches the deletion service, and the arguments that several commands share."""

import getpass
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from server.api.client import DeletionClient
from server.state_directory.ledger_address import FILE_VARIABLE, VARIABLE
from strategies.tls_files import TlsFiles
from unlearning.errors import ConfigurationError

DEFAULT_SERVER = "127.0.0.1:9100"


@dataclass(frozen=True, slots=True)
class Connection:
    """The global options: where the service is, how to prove who one is, the federation's file."""

    server: str = DEFAULT_SERVER
    tls: TlsFiles | None = None
    federation_file: Path | None = None

    def client(self) -> DeletionClient:
        """Open a client of the service; close it after use."""
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
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]
