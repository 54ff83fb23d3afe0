"""Names of Flower that are not of its public API, and those that releases have moved: each is there in this release.

The list is what the code imports, so no use of such a name can be left out. `make newest-flower` runs this first; of
the release that is installed the other tests import each of them.
"""

import ast
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]
USERS = ("benchmarks", "client", "server", "strategies", "tests")


def imported(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the module and the name of each import of Flower in a file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "flwr":
            yield from ((str(node.module), name.name) for name in node.names)
        if isinstance(node, ast.Import):
            yield from ((name.name, "") for name in node.names if name.name.partition(".")[0] == "flwr")


def is_there(module: str, name: str) -> bool:
    try:
        found = import_module(module)
    except ImportError:
        return False
    return not name or hasattr(found, name)


@pytest.mark.slow
@pytest.mark.long
def test_flower_has_every_name_that_is_imported_of_it() -> None:
    """What is missing is listed with the files to change."""
    users: dict[tuple[str, str], list[str]] = {}
    for folder in USERS:
        for path in (REPOSITORY / folder).rglob("*.py"):
            for found in imported(path):
                users.setdefault(found, []).append(str(path.relative_to(REPOSITORY)))
    assert ("flwr.proto.node_pb2", "NodeInfo") in users
    missing = [
        f"{module} has no {name}, which {', '.join(sorted(set(files)))} import(s)"
        for (module, name), files in sorted(users.items())
        if not is_there(module, name)
    ]
    assert not missing, f"Flower {version('flwr')}: " + "; ".join(missing)
