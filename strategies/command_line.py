"""What the programs of both sides share: how a command ends, `--version`, `--json`, and how data is printed.

A command prints data with `show_table`, `show_fields` or `show_lines`: for people in a terminal, as lines of
tab-separated cells into a pipe or a file, as one JSON document with `--json`, which `Printing` adds to it. An error
ends it with one message on stderr and the `exit_code` of the error's class.
"""

import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import version
from typing import Any

import click
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from typer.core import TyperCommand, TyperGroup

from unlearning.errors import FlowerUnlearningError
from unlearning.protocol import own_version
from unlearning.runtime.command_output import carries_unicode, outlive_readers
from unlearning.runtime.durable_files import keep_private
from unlearning.runtime.gc_tuning import end_without_collecting
from unlearning.runtime.json_codec import to_plain

_DEBUG = "FLOWER_UNLEARNING_DEBUG"
_JSON = "flower-unlearning.json"


class Program(TyperGroup):
    """The commands of one program: with `--version`, and every error one message and an exit code."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.params.append(_flag("--version", "Print the version and exit.", _print_version))

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command that the arguments name.

        Raises:
            typer.Exit: it ended with an error, which has been printed.
        """
        try:
            return super().invoke(ctx)
        except (FlowerUnlearningError, OSError, UnicodeError) as exc:
            _print_error(str(exc))
            raise typer.Exit(getattr(exc, "exit_code", 1)) from exc


class Command(TyperCommand):
    """A command to which an option that is given and empty is not the same as one that is left out."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run it; not where an option is empty, as of a variable that is not set, and would count as left out.

        Raises:
            click.BadParameter: names the option.
        """
        for one in self.params:
            is_given = ctx.get_parameter_source(one.name or "") is click.core.ParameterSource.COMMANDLINE
            # An empty path would be the present folder.
            is_path = isinstance(one, click.Option) and one.type.name == "path"
            if is_given and ctx.params.get(one.name or "") == "" and (one.default == "" or is_path):
                raise click.BadParameter("It is empty. Give a value, or leave it out.", ctx, one)
        return super().invoke(ctx)


class Printing(Command):
    """A command that prints data: with `--json`."""

    def __init__(self, *names: Any, **given: Any) -> None:
        super().__init__(*names, **given)
        self.params.append(_flag("--json", "Print JSON, for scripts.", _note_json))


def run_program(app: typer.Typer) -> None:
    """Run the command of the arguments; an error that is a fault of the program is one message, too."""
    keep_private()
    outlive_readers()
    end_without_collecting()
    try:
        app()
    except Exception as exc:
        if os.environ.get(_DEBUG):
            raise
        _print_error(f"Unexpected error, probably a fault of this program: {type(exc).__name__}: {exc}")
        _print_error(f"Run it again with {_DEBUG}=1 to see where, and report it.")
        raise SystemExit(1) from None


def wants_json() -> bool:
    """Return whether the command that runs is to print JSON."""
    context = click.get_current_context(silent=True)
    return context is not None and _JSON in context.meta


def say(text: str) -> None:
    """Print a sentence for people, which `--json` moves to stderr."""
    typer.echo(text, err=wants_json())


def show_json(data: Any, *, indent: int | None = 2) -> None:
    """Print a dataclass or plain values as JSON."""
    typer.echo(json.dumps(to_plain(data), indent=indent, ensure_ascii=not carries_unicode()))


def show_lines(*lines: Sequence[object], data: Any) -> None:
    """Print lines of cells; with `--json` `data` on one line, so that a command may print several."""
    if wants_json():
        show_json(data, indent=None)
        return
    for cells in lines:
        typer.echo("  ".join(map(str, cells)) if _is_terminal() else _tab_separated(cells))


def show_fields(fields: Iterable[tuple[str, object]], data: Any = None) -> None:
    """Print names and values, the values below each other; with `--json` `data`, by default an object of them."""
    if wants_json():
        show_json(dict(fields) if data is None else data)
        return
    for name, value in fields:
        typer.echo(f"{name + ':':<13}{value}" if _is_terminal() else _tab_separated((name, value)))


def show_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    empty: str = "",
    *,
    data: Any = None,
    has_long_cells: bool = False,
    title: str = "",
) -> None:
    """Print a table; in a terminal the sentence `empty` in place of one without rows, else on stderr.

    data: what `--json` prints; by default a list with an object for each row. has_long_cells: beside short names.
    """
    if wants_json():
        show_json([dict(zip(columns, row, strict=True)) for row in rows] if data is None else data)
    elif empty and not rows and _is_terminal():
        typer.echo(empty)
    elif not _is_terminal():
        if not rows:
            typer.echo(empty, err=True)
        for row in (columns, *rows):
            typer.echo(_tab_separated(row))
    else:
        table = Table(*columns, show_lines=has_long_cells, title=escape(title) or None)
        table.columns[0].no_wrap = has_long_cells
        for row in rows:
            table.add_row(*(escape(cell) for cell in row))
        Console(emoji=False).print(table)


def _is_terminal() -> bool:
    return sys.stdout.isatty()


def _tab_separated(cells: Iterable[object]) -> str:
    return "\t".join(" ".join(str(cell).split()) for cell in cells)


def _flag(name: str, text: str, act: Callable[[click.Context, click.Parameter, bool], None]) -> click.Option:
    return click.Option([name], is_flag=True, is_eager=True, expose_value=False, help=text, callback=act)


def _print_version(ctx: click.Context, _: click.Parameter, is_given: bool) -> None:
    if is_given and not ctx.resilient_parsing:
        versions: Mapping[str, object] = {
            "flower-unlearning": version("flower-unlearning"),
            "protocol": own_version(),
            "Flower": version("flwr"),
        }
        typer.echo(", ".join(f"{name} {number}" for name, number in versions.items()))
        raise typer.Exit


def _note_json(ctx: click.Context, _: click.Parameter, is_given: bool) -> None:
    if is_given:
        ctx.meta[_JSON] = True


def _print_error(message: str) -> None:
    Console(stderr=True, soft_wrap=True, highlight=False, markup=False, emoji=False).print(message)
