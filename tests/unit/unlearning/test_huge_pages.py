"""Large tensors ask Linux for huge pages, unless the environment says no."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import WAIT_S

SMAPS = Path("/proc/self/smaps")
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage")
PROGRAM = """
import unlearning, torch
weights = torch.ones(4_000_000)
inside = False
for line in open("/proc/self/smaps"):
    first = line.split()[0]
    if "-" in first and not first.endswith(":"):
        low, high = (int(end, 16) for end in first.split("-"))
        inside = low <= weights.data_ptr() + 2**22 < high
    elif inside and first == "VmFlags:":
        print("hg" in line.split())
"""


@pytest.mark.skipif(not (SMAPS.exists() and HUGE_PAGES.exists()), reason="this kernel has no huge pages")
@pytest.mark.parametrize(("wish", "expected"), [(None, "True"), ("0", "False")])
def test_a_large_tensor_asks_for_huge_pages(wish, expected):
    environment = {key: value for key, value in os.environ.items() if key != "THP_MEM_ALLOC_ENABLE"}
    if wish is not None:
        environment["THP_MEM_ALLOC_ENABLE"] = wish

    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, timeout=WAIT_S
    )

    assert done.stdout.split() == [expected], done.stderr
