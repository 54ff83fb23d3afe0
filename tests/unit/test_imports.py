"""No circle of modules, whether imports run, wait inside a function or are there for types only."""

from graphlib import TopologicalSorter

import grimp
import pytest


@pytest.mark.parametrize("package", ["server", "client", "strategies", "unlearning", "benchmarks"])
def test_no_circle_of_modules(package: str) -> None:
    """A module can be read after those that it imports: they have an order."""
    graph = grimp.build_graph(package, cache_dir=None, exclude_type_checking_imports=False)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    TopologicalSorter(imports).prepare()
