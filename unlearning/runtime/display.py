"""How results look in a notebook: HTML tables, pictures that are drawn only when `plot` is called, and progress."""

import sys
import time
from collections.abc import Iterator, Sequence
from html import escape
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

from unlearning.errors import ConfigurationError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Item = TypeVar("Item")

_NOT_BEFORE_S = 0.5
"""What takes less needs no bar."""
_shown: set[str] = set()
"""The title of the bar that is shown now; a loop inside another one shows none."""


def table(title: str, header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return an HTML table; every cell is escaped."""
    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    body = "".join(f"<tr>{''.join(f'<td>{escape(str(cell))}</td>' for cell in row)}</tr>" for row in rows)
    thead = f"<thead><tr>{head}</tr></thead>" if header else ""
    return f"<table><caption>{escape(title)}</caption>{thead}<tbody>{body}</tbody></table>"


def new_axes(columns: int = 1) -> "list[Axes]":
    """Return that many axes side by side in a new figure.

    Raises:
        ConfigurationError: matplotlib is not installed.
    """
    try:
        pyplot: Any = import_module("matplotlib.pyplot")
    except ImportError as exc:
        raise ConfigurationError(["plot() needs matplotlib: pip install matplotlib."]) from exc
    _, axes = pyplot.subplots(1, columns, figsize=(5 * columns, 3.2), layout="constrained", squeeze=False)
    return list(axes[0])


def with_progress(items: Sequence[Item], title: str) -> Iterator[Item]:
    """Yield the items; a Jupyter notebook shows how many are done, in a bar that goes away at the end."""
    if "ipykernel" not in sys.modules or _shown:
        yield from items
        return
    display: Any = import_module("IPython.display")
    began, handle = time.monotonic(), None
    _shown.add(title)
    try:
        for done, item in enumerate(items):
            if time.monotonic() - began > _NOT_BEFORE_S:
                bar = display.HTML(
                    f"{escape(title)} {done + 1} of {len(items)} "
                    f"<progress value={done} max={len(items)}></progress>"
                )
                if handle is None:
                    handle = display.display(bar, display_id=True)
                else:
                    handle.update(bar)
            yield item
    finally:
        _shown.discard(title)
        if handle is not None:
            handle.update(display.HTML(""))
