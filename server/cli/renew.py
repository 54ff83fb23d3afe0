"""`flower-unlearn renew`: certificates of the federation's authority for a new time."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from strategies.installation import CONFIG_DIR


def renew_command(
    certificate: Annotated[
        list[Path] | None, typer.Argument(help="The certificates, .pem; default: the server's.")
    ] = None,
    authority: Annotated[
        Path, typer.Option(help="The directory with the authority's ca.crt and ca.key.")
    ] = CONFIG_DIR / "certificates",
    address: Annotated[
        list[str] | None,
        typer.Option(
            help="A name or address under which clients reach the host, in place of those in the certificate; "
            "may be repeated."
        ),
    ] = None,
) -> None:
    """Make certificates again with the same names, roles and keys, valid from now on."""
    from server.operations.renewing import renew, uses

    for path in certificate or [authority / "server.pem"]:
        new = renew(path, authority, addresses=address or (), now=datetime.now(UTC))
        typer.echo(f"{path} is valid until {new.not_valid_after_utc:%Y-%m-%d}. {uses(new)}")
