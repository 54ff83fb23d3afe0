"""`make test-slow` names its files, to begin with those that take longest."""

import subprocess

import pytest

from tests.conftest import WITH_SLOW_TESTS


def test_every_file_with_slow_tests_is_among_them(pytestconfig: pytest.Config):
    """Also where a fixture or a list of parameters marks them; it sees the files that this run has collected."""
    root = pytestconfig.rootpath
    said = subprocess.run(
        ["make", "--dry-run", "test-slow"], cwd=root, capture_output=True, text=True, check=True
    )
    named = {root / word for word in said.stdout.split() if word.startswith("tests/")}
    assert pytestconfig.stash[WITH_SLOW_TESTS] <= named
