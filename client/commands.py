"""How the commands on a data owner's machine end."""

import sys
from collections.abc import Sequence

import typer

from unlearning.durable_files import keep_private
from unlearning.errors import FlowerUnlearningError


def run_command(app: typer.Typer, arguments: Sequence[str] | None = None, name: str | None = None) -> None:
    """Run the command; errors are one sentence, not a stack trace.

    arguments, name: instead of those with which the process was started.
    """
    keep_private()
    try:
        app(args=arguments, prog_name=name)
    except (FlowerUnlearningError, OSError, UnicodeError) as exc:
        typer.echo(f"Error: {exc}", err=True)
        sys.exit(2)
