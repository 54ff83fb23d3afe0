"""What the registry promises to the rest of the program: nobody else calls a method by its name."""

import ast
import inspect
from pathlib import Path

import pytest

from unlearning.methods.registry import METHODS

ROOT = Path(__file__).parents[4]

OTHER_MEANINGS = {
    ("benchmarks/bench/columns.py", "retrain"),  # the row of the retrained model, whatever the methods are
    ("unlearning/tasks/partitions.py", "natural"),  # the data set's own division among clients
    ("unlearning/tasks/settings.py", "natural"),
    ("unlearning/tasks/loading.py", "natural"),
}
"""Where a word that is also a method's name means something else."""


@pytest.mark.parametrize("package", ["unlearning", "strategies", "client", "server", "benchmarks/bench"])
def test_nothing_names_a_method_but_the_method_itself(package):
    """What the program must know of a method it asks the method; a table by name would forget the next one."""
    own = {name: Path(inspect.getfile(type(METHODS[name]))) for name in METHODS}
    found = {
        (str(file.relative_to(ROOT)), node.value)
        for file in (ROOT / package).rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and node.value in METHODS
        and file != own[node.value]
    }
    assert found - OTHER_MEANINGS == set()
    assert {one for one in OTHER_MEANINGS if one[0].startswith(f"{package}/")} <= found
