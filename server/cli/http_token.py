"""`flower-unlearn http-token`: who may call the deletion service over HTTP."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from server.api.access import Role
from server.http_api.tokens import make_token, remove_tokens


def http_token(
    file: Annotated[Path, typer.Argument(help="The file of tokens, for `serve --http-tokens`.")],
    name: Annotated[str, typer.Argument(help="Who calls; with the role client, the client's id.")],
    role: Annotated[Role, typer.Option(help="What it may do, as a certificate's role.")] = Role.CLIENT,
    remove: Annotated[bool, typer.Option("--remove", help="Remove this caller's tokens instead.")] = False,
    remove_older: Annotated[
        bool, typer.Option("--remove-older", help="Remove this caller's tokens but the newest instead.")
    ] = False,
) -> None:
    """Make a token for a caller over HTTP and print it; the file keeps its hash. A caller may have two."""
    if remove or remove_older:
        count = remove_tokens(file, name, role, keep=0 if remove else 1)
        typer.echo(f"{count} token(s) of {name} as {role} removed; a running service has noticed.")
        return
    token = make_token(file, name, role, datetime.now(UTC))
    typer.echo(f"The token of {name} as {role}, shown this once:", err=True)
    typer.echo(token)
