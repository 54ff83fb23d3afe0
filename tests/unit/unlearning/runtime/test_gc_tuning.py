"""No garbage is looked for while a program imports, and none when it ends."""

import gc
import subprocess
import sys

import pytest

from unlearning.runtime.gc_tuning import nothing_collected

AT_THE_END = """
import atexit, gc
atexit.register(lambda: print(gc.get_freeze_count() > 1000))  # the last of all that is called
from {module} import {function} as start
start({argument})
"""


def fail_to_import() -> None:
    with nothing_collected():
        assert not gc.isenabled()
        raise ImportError("no such module")


@pytest.mark.parametrize("was_enabled", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.slow
def test_imports_are_not_looked_through(was_enabled):
    """And the collector is afterwards as it was, but for what it need not look through; also where an import fails."""
    before = gc.isenabled()
    gc.unfreeze()
    try:
        (gc.enable if was_enabled else gc.disable)()
        with pytest.raises(ImportError):
            fail_to_import()
        assert gc.isenabled() is was_enabled
        assert gc.get_freeze_count() > 1000
    finally:
        (gc.enable if before else gc.disable)()


@pytest.mark.parametrize(
    ("module", "function", "argument"),
    [
        ("unlearning.runtime.gc_tuning", "end_without_collecting", ""),
        ("strategies.command_line", "run_program", "lambda: None"),
        ("builtins", "abs", "1"),
    ],
)
def test_a_program_ends_without_collecting(module, function, argument):
    """One of Python's own does not, so that the test can fail."""
    code = AT_THE_END.format(module=module, function=function, argument=argument)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == f"{module != 'builtins'}\n"
