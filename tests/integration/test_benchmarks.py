import os
import sys

import pytest

from tests.integration.conftest import REPOSITORY
from tests.programs import run_well

pytestmark = [pytest.mark.slow, pytest.mark.long]


def test_the_bench_runs_in_its_smallest_form(tmp_path):
    """`make bench` is this without --smallest: each part prints its table and leaves its page."""
    command = [sys.executable, "-m", "benchmarks", "--smallest", "--output", str(tmp_path)]
    run_well(command, REPOSITORY, {**os.environ, "PYTHONPATH": str(REPOSITORY)})
    page = (tmp_path / "rounds-simulation.md").read_text(encoding="utf-8")
    assert "| 10 virtual clients |" in page
    assert (tmp_path / "rounds-simulation.json").exists()
