"""How the commands on a data owner's machine end."""

import sys

import typer

from unlearning.errors import FlowerUnlearningError


def run_command(app: typer.Typer) -> None:
    """Run the command; errors are one sentence, not a stack trace."""
    try:
        app()
    except (FlowerUnlearningError, OSError, UnicodeError) as exc:
        typer.echo(f"Error: {exc}", err=True)
        sys.exit(2)
