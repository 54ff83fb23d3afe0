"""Who computes in the service, and how much of it."""

import asyncio
import time

import pytest

from server.api.access import Caller, Role
from server.api.workers import RESTS, Workers

COMPUTED_S = 0.02


def compute() -> float:
    """Keep the interpreter busy; how long this thread has had it."""
    began_s = time.thread_time()
    while (done_s := time.thread_time() - began_s) < COMPUTED_S:
        pass
    return done_s


@pytest.mark.parametrize("fails", [False, True])
def test_a_clients_thread_rests_after_it_has_computed(fails) -> None:
    """So clients together have a bounded share of the interpreter, however long their lists are."""

    def step() -> None:
        compute()
        if fails:
            raise ValueError

    workers = Workers()
    began_s = time.monotonic()
    try:
        asyncio.run(workers.run(Caller("a", Role.CLIENT), step))
    except ValueError:
        assert fails
    assert time.monotonic() - began_s >= (1 + RESTS) * COMPUTED_S
    workers.close()


def test_an_operators_thread_does_not_rest(monkeypatch) -> None:
    """Its answer goes out as soon as it is there."""
    monkeypatch.setattr("server.api.workers.time.sleep", lambda _: pytest.fail("it rests"))
    workers = Workers()
    assert asyncio.run(workers.run(Caller("o", Role.OPERATOR), compute)) >= COMPUTED_S
    workers.close()
