import os
import subprocess
import sys

import pytest

from tests.integration.conftest import REPOSITORY

pytestmark = [pytest.mark.slow, pytest.mark.long]


def test_the_bench_runs_in_its_smallest_form(tmp_path):
    """`make bench` is this without --smallest: each part prints its table and leaves its page."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--smallest", "--output", str(tmp_path)],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    page = (tmp_path / "rounds-simulation.md").read_text(encoding="utf-8")
    assert "| 10 virtual clients |" in page
    assert (tmp_path / "rounds-simulation.json").exists()
