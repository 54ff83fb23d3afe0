"""How a command reaches the deletion service, and the arguments that several commands share."""

import getpass
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from server.api.client import DeletionClient
from server.api.tls import TlsFiles

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


RequestId = Annotated[str, typer.Argument(metavar="ID", help="A request's id, such as r-000007.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]
