"""Lists of pages: the decisions, and the results with the command that makes each."""

import re
from collections.abc import Iterator
from pathlib import Path

from benchmarks.tables import table

_ROOT = Path(__file__).parents[2]
_DOCS = _ROOT / "docs"
_RESULTS = _DOCS / "results"
_OF_OTHER_PAGES = {"distances": "python -m benchmarks.choosing"}
BY_HAND = frozenset({"README", "claims", "pages"})
"""The pages of results that no experiment makes."""


def decisions() -> Iterator[str]:
    """Yield a line per decision."""
    for path in sorted(_DOCS.glob("decision-*.md")):
        yield f"- [{_title(path)}]({path.name})"


def results() -> list[str]:
    """Return a line per page of results."""
    paths = [path for path in sorted(_RESULTS.glob("*.md")) if path.stem not in BY_HAND]
    return table(
        ["page", "made by"], [(f"[{_title(path)}]({path.name})", f"`{_command(path)}`") for path in paths]
    )


def _title(path: Path) -> str:
    return path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")


def _command(path: Path) -> str:
    """Return what makes a page: as it says itself, else as the program's own docstring does.

    Raises:
        ValueError: neither says it.
    """
    own = re.search(r"(?m)^    (flower-unlearn bench .+)$", path.read_text(encoding="utf-8"))
    if own is not None or path.stem in _OF_OTHER_PAGES:
        return own[1] if own is not None else _OF_OTHER_PAGES[path.stem]
    for program in sorted((_ROOT / "benchmarks").rglob("*.py")):
        wanted = rf"(?m)^ *(python -m benchmarks.* docs/results/{path.stem}(?= |$).*)$"
        if (found := re.search(wanted, program.read_text(encoding="utf-8"))) is not None:
            return found[1].partition(" [")[0].strip()
    raise ValueError(f"{path.name}: say in its program's docstring by which command it is made.")
