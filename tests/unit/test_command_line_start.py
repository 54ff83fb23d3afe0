"""Both command lines start at once."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize("command_line", ["server.cli", "client.cli"])
def test_the_command_line_loads_no_heavy_library(command_line: str) -> None:
    """PyTorch, SciPy and Flower take seconds to import, Alembic a tenth; who needs them imports them itself."""
    code = (
        f"import sys, {command_line}\n"
        "print({'torch', 'scipy', 'sklearn', 'flwr', 'ray', 'alembic'} & sys.modules.keys() or 'nothing')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "nothing\n"
