"""How the commands on a data owner's machine end."""

import sys

import typer

from unlearning.errors import FlowerUnlearningError
from unlearning.runtime.command_output import outlive_readers
from unlearning.runtime.durable_files import keep_private
from unlearning.runtime.gc_tuning import end_without_collecting


def run_command(app: typer.Typer) -> None:
    """Run the command; errors are one sentence, not a stack trace."""
    keep_private()
    outlive_readers()
    end_without_collecting()
    try:
        app()
    except (FlowerUnlearningError, OSError, UnicodeError) as exc:
        typer.echo(f"Error: {exc}", err=True)
        sys.exit(2)
