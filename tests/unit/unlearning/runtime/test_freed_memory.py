"""What a process has freed inside `overwrite_freed` is in its memory no more."""

import subprocess
import sys

import pytest

from tests.residue import rows_in_memory

HOLDS_NOTHING = """
import sys
from contextlib import nullcontext
import numpy as np
from unlearning.runtime.freed_memory import overwrite_freed

with overwrite_freed() if sys.argv[1] == "overwritten" else nullcontext():
    rows = np.frombuffer(bytes(range(256)) * 64, dtype=np.uint8).reshape(64, 256) ^ 0x5A
    del rows
print("freed", flush=True)
sys.stdin.read()
"""
IN_A_CYCLE = """
import gc, sys
import numpy as np
from unlearning.runtime.freed_memory import overwrite_freed

gc.disable()
with overwrite_freed():
    pass
frozen = gc.get_freeze_count()
with overwrite_freed():
    rows = [np.frombuffer(bytes(range(256)) * 64, dtype=np.uint8).reshape(64, 256) ^ 0x5A]
    rows.append(rows)
    del rows
assert 0 < gc.get_freeze_count() <= frozen
print("freed", flush=True)
sys.stdin.read()
"""

ROW = bytes(value ^ 0x5A for value in range(256))


@pytest.mark.skipif(sys.platform != "linux", reason="another process's memory is read as Linux shows it")
@pytest.mark.parametrize(
    ("program", "found"),
    [((HOLDS_NOTHING, "overwritten"), False), ((HOLDS_NOTHING, "as ever"), True), ((IN_A_CYCLE,), False)],
    ids=["overwritten", "as-ever", "garbage-that-holds-itself"],
)
def test_what_is_freed_is_overwritten_in_every_use(program, found):
    """And without it lies there still, so that the test can fail.

    What was there before the first use is looked through no more; what came after it is.
    """
    with subprocess.Popen(
        [sys.executable, "-c", *program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "freed\n"
        assert bool(rows_in_memory(process.pid, [ROW])) is found
        process.stdin.close()
