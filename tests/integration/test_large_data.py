"""A site larger than what a process may hold: trained on, forgotten in part and measured in bounded batches.

In the gate tests/unit/unlearning/tasks/test_sources.py reads the same examples from files.
"""

import pytest

from benchmarks.speed.large_data import Peak, measure_memory

pytestmark = [pytest.mark.slow, pytest.mark.long]


def test_a_site_is_never_in_memory_whole(tmp_path):
    """The smallest form of the benchmark: a gigabyte of pictures, four as floats, and a fraction of it held."""
    with Peak() as before:
        pass
    found = measure_memory(tmp_path, 10**9)
    assert found["data"] > 0.99e9
    assert found["own memory"] - before.own < 0.6e9
    assert found["forgotten"] == -(-found["examples"] // 100)
