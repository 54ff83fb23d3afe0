"""`flower-unlearn console`: the officer's pages in a browser."""

from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from server.cli.connection import connection_of, user_name
from unlearning.errors import ConfigurationError


def console_command(
    ctx: typer.Context,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="The port on this machine; 0: any free one.")
    ] = 0,
    no_browser: Annotated[
        bool, typer.Option("--no-browser", help="Print the link only; open no browser.")
    ] = False,
    public_key: Annotated[
        Path | None,
        typer.Option(help="The public key of the server's certificates (PEM), to check their signatures."),
    ] = None,
) -> None:
    """Open the deletion requests, the register and the federation as pages in a browser on this machine."""
    try:
        from server.console.launch import Settings, run_console
    except ModuleNotFoundError as exc:
        raise ConfigurationError(
            [
                f"The console needs {exc.name}, which is not installed: pip install 'flower-unlearning[console]'."
            ]
        ) from exc
    connection = connection_of(ctx)
    settings = Settings(
        address=connection.server,
        tls=connection.tls,
        name=user_name(),
        port=port,
        opens_browser=not no_browser,
        public_key=public_key,
    )
    with suppress(KeyboardInterrupt):  # how the console is meant to end
        run_console(settings, typer.echo)
