"""The tree of errors that `unlearning/errors.py` draws is the tree of errors."""

import importlib
import pkgutil
import re

import client
import server
import strategies
import unlearning
from unlearning import errors


def test_the_drawn_tree_is_that_of_all_packages():
    """Those that server and client define stand in it like the others."""
    for package in (unlearning, strategies, server, client):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not found.name.endswith(("__main__", ".env")) and ".versions" not in found.name:
                importlib.import_module(found.name)
    assert drawn_children() == {name: sorted(found) for name, found in children(errors.FlowerUnlearningError)}


def drawn_children() -> dict[str, list[str]]:
    """Return the names of each drawn error's children."""
    path, found = ["FlowerUnlearningError"], {}
    for marks, name in re.findall(r"^([│ ]*[├└]── )(\w+) ", errors.__doc__ or "", re.MULTILINE):
        path[len(marks) // 4 :] = [name]
        found.setdefault(path[-2], []).append(name)
    return {name: sorted(names) for name, names in found.items()}


def children(error: type) -> list[tuple[str, list[str]]]:
    """Return each error that has children, with their names."""
    own = error.__subclasses__()
    below = [pair for child in own for pair in children(child)]
    return [(error.__name__, [child.__name__ for child in own]), *below] if own else below
