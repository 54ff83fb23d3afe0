"""Which page is made of what."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path

from benchmarks.reference import commands, errors, findings, grpc_api, http_api, lists, method_cards
from benchmarks.tables import between_marks

DOCS = Path(__file__).parents[2] / "docs"
_PART = "made by: python -m benchmarks.reference"
PAGES: Mapping[str, Callable[[], Iterable[str]]] = {
    **{f"reference-commands-{name}.md": partial(commands.lines, name) for name in commands.PROGRAMS},
    "reference-errors.md": errors.lines,
    "reference-grpc.md": grpc_api.lines,
    "reference-http.md": http_api.lines,
    "decisions.md": lists.decisions,
    "results/README.md": findings.lines,
    "results/pages.md": lists.results,
    "reference-methods.md": method_cards.index,
    **{
        f"reference-method-{name}.md": partial(method_cards.card, method)
        for name, method in method_cards.BUILT_IN.items()
    },
}


def made_again(name: str) -> str:
    """Return the page of a name in docs/ with its generated part as it is to be now; a new page where there is none.

    Raises:
        ValueError: the page has no marks.
    """
    path = DOCS / name
    begun = f"# {path.stem}\n\n<!-- {_PART} -->\n<!-- end of {_PART} -->\n"
    page = path.read_text(encoding="utf-8") if path.exists() else begun
    return between_marks(page, _PART, PAGES[name]())
