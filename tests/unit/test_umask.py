"""Tests are independent of what the apps before them set for their process."""

import os

import pytest

from tests.conftest import UMASK


@pytest.fixture(scope="module")
def shared_app() -> None:
    """As a federation that a module's tests share: it runs before the first, and keeps what it makes private."""
    os.umask(0o077)


def test_a_test_has_the_umask_of_the_session(shared_app: None):
    """Else the directories that it makes are closed to the users of the guide's services."""
    assert os.umask(UMASK) == UMASK
