"""The command line starts at once."""

import subprocess
import sys


def test_the_command_line_loads_no_heavy_library() -> None:
    """PyTorch, SciPy and Flower take seconds to import; a command that needs them imports them itself."""
    code = (
        "import sys, server.cli\n"
        "print({'torch', 'scipy', 'sklearn', 'flwr', 'ray'} & sys.modules.keys() or 'nothing')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "nothing\n"
