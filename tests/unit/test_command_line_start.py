"""Both command lines start at once, and a process that waits has imported nothing that computes."""

import subprocess
import sys

import pytest

CALLING = ("server.cli.request_commands", "server.service.client")
COMPUTES = ("torch", "sklearn", "matplotlib", "pandas", "ray", "flwr")


def imported_of(names: tuple[str, ...], modules: tuple[str, ...]) -> str:
    """Import modules in a new process; return which of the names were imported too."""
    code = f"import sys\nfor name in {modules}: __import__(name)\nprint(*sorted({{*{names}}} & sys.modules.keys()))"
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.strip()


@pytest.mark.parametrize("command_line", ["server.cli", "client.cli"])
def test_the_command_line_loads_no_heavy_library(command_line: str) -> None:
    """PyTorch, SciPy and Flower take seconds to import, SQLAlchemy and NumPy tenths; who needs them imports them."""
    heavy = (
        *COMPUTES,
        "scipy",
        "alembic",
        *(("numpy", "sqlalchemy") if command_line == "server.cli" else ()),
    )
    assert imported_of(heavy, (command_line, *CALLING)) == ""


def test_what_waits_loads_nothing_that_computes() -> None:
    """Service, console and supervisor, as they are before anyone calls them: PyTorch takes 500 MB."""
    modules = ("server.console.launch", "server.operations.metrics", "server.operations.service_metrics")
    more = ("server.operations.supervisor", "server.service.http_server", "server.service.grpc_server")
    assert imported_of(COMPUTES, (*modules, *more)) == ""
