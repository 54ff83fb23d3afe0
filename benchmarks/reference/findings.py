"""The table of docs/results/README.md: how near some methods end to retraining, from the committed comparisons."""

from collections.abc import Iterable

from benchmarks.tables import table
from server.requests.comparisons import known

_TITLES = (
    "CIFAR-10, CNN, IID, one client",
    "CIFAR-10, CNN, α = 0.1, one client",
    "FashionMNIST, LeNet, IID, one client",
    "CIFAR-10, CNN, IID, a class",
)
_METHODS = ("natural", "puf-special", "puf-regular", "federaser", "fedau", "not", "hf-kcu", "gradient-ascent")


def lines() -> Iterable[str]:
    """Return a line per method and a column per comparison."""
    there = [one for title in _TITLES for one in known() if one.title == title]
    rows = [["doing nothing", *(one.nothing.text for one in there)]]
    for name in _METHODS:
        cells = [one.methods[name].text if name in one.methods else "–" for one in there]
        rows.append([f"[`{name}`](../reference-method-{name}.md)", *cells])
    return table(["", *(f"[{one.title}]({one.page.removeprefix('results/')})" for one in there)], rows)
