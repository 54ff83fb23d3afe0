"""The errors that commands and APIs name, with the command's exit code, and what to do about a failed deletion."""

import importlib
import pkgutil
from collections import defaultdict
from collections.abc import Iterator

import client
import server
import strategies
import unlearning
from benchmarks.tables import table
from unlearning.advice import ADVICE
from unlearning.errors import FlowerUnlearningError

_EXITS = {1: "failed", 2: "wrong use", 3: "refused", 4: "cannot be reached"}


def lines() -> Iterator[str]:
    """Yield the tree of errors, then the advice for each code of a failed deletion."""
    _import_all()
    yield from ("## Errors by name", "")
    found = sorted(_all(FlowerUnlearningError), key=lambda kind: (kind.exit_code, kind.__name__))
    rows = [
        (f"`{kind.__name__}`", " ".join((kind.__doc__ or "").split("\n\n")[0].split()), _exit(kind.exit_code))
        for kind in found
        if not kind.__name__.startswith("_")
    ]
    yield from table(["error", "meaning", "exit code"], rows)
    yield from ("", "## Codes of failed deletions", "")
    codes = defaultdict(list)
    for code, advice in ADVICE.items():
        codes[advice].append(f"`{code}`")
    yield from table(
        ["codes", "what to do"], [(", ".join(of), _cell(advice)) for advice, of in codes.items()]
    )


def _exit(code: int) -> str:
    return f"{code}: {_EXITS[code]}"


def _cell(advice: str) -> str:
    return advice.replace("{id}", "ID").replace("|", "\\|")


def _import_all() -> None:
    """Import every module of the packages, so that each error is known wherever it is defined."""
    for package in (unlearning, strategies, client, server):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if "migrations" not in found.name:
                importlib.import_module(found.name)


def _all(kind: type[FlowerUnlearningError]) -> Iterator[type[FlowerUnlearningError]]:
    """Yield the errors below one that are defined in these packages."""
    for below in kind.__subclasses__():
        if below.__module__.partition(".")[0] in ("unlearning", "strategies", "client", "server"):
            yield below
        yield from _all(below)
