"""Tables and figures as the command line prints them."""

from collections.abc import Mapping, Sequence
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table


def measured_text(measured: Mapping[str, Any]) -> str:
    """Return what past deletions by a method took; a dash before the first."""
    if not measured:
        return "–"
    return (
        f"{measured['seconds']:.3g} s, {size_text(measured['bytes'])} "
        f"({measured['deletions']} deletion(s), median; {measured['recovery_rounds']:g} recovery round(s))"
    )


def size_text(count: float) -> str:
    """Return a number of bytes with a unit."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def show_table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], empty: str = "", *, has_long_cells: bool = False
) -> None:
    """Print a table; the sentence `empty` where it has no row. has_long_cells: beside short names."""
    if not rows:
        typer.echo(empty)
        return
    table = Table(*columns, show_lines=has_long_cells)
    table.columns[0].no_wrap = has_long_cells
    for row in rows:
        table.add_row(*(escape(cell) for cell in row))
    Console().print(table)
