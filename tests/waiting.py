"""Waiting for a fact that only another look shows."""

import time
from collections.abc import Callable

POLL_S = 0.02

WAIT_S = 120.0
"""What one process does takes less, on the slowest machine; only a test that fails waits as long."""

HANGS_S = 1800.0
"""What several processes do takes less, on the slowest machine; only a test that fails waits as long."""


def wait_until(
    holds: Callable[[], bool], timeout_s: float = WAIT_S, what: str = "what was waited for"
) -> None:
    """Return as soon as it holds; after `timeout_s` fail with what was waited for."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, f"Waited {timeout_s:g} s in vain for {what}."
        time.sleep(POLL_S)
