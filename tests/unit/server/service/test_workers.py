"""Who computes in the service, and how much of it."""

import asyncio
import threading
import time

import pytest

from server.operations.work_process import WorkProcess
from server.service.access import Caller
from server.service.calls import Role
from server.service.statuses import ServiceUnavailable
from server.service.workers import OPERATORS, RESTS, Workers
from tests.waiting import WAIT_S

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


def test_it_rests_as_long_for_what_another_process_has_computed() -> None:
    """Lists are read, checked and filed in the process that knows the methods."""
    workers, work = Workers(), WorkProcess()
    work.run(f"{__name__}:compute")  # it has begun, and knows the function
    began_s = time.monotonic()
    asyncio.run(workers.run(Caller("a", Role.CLIENT), lambda: work.run(f"{__name__}:compute")))
    assert time.monotonic() - began_s >= (1 + RESTS) * COMPUTED_S
    work.close()
    workers.close()


def test_an_operators_thread_does_not_rest(monkeypatch) -> None:
    """Its answer goes out as soon as it is there."""
    monkeypatch.setattr("server.service.workers.time.sleep", lambda _: pytest.fail("it rests"))
    workers = Workers()
    assert asyncio.run(workers.run(Caller("o", Role.OPERATOR), compute)) >= COMPUTED_S
    workers.close()


def test_who_waits_for_a_thread_is_told_that_the_service_stops() -> None:
    """And whoever comes later, by an error that travels; what runs is finished, and its caller gets the answer."""
    workers, caller, goes_on = Workers(), Caller("o", Role.OPERATOR), threading.Event()
    all_run = threading.Barrier(OPERATORS + 1, timeout=WAIT_S)

    def hold() -> bool:
        all_run.wait()
        return goes_on.wait()

    async def all_calls() -> list[object]:
        running = [asyncio.create_task(workers.run(caller, hold)) for _ in range(OPERATORS)]
        waiting = asyncio.create_task(workers.run(caller, compute))
        await asyncio.to_thread(all_run.wait)  # then the tasks have begun, the last one too
        closing = asyncio.create_task(asyncio.to_thread(workers.close))
        [told] = await asyncio.gather(waiting, return_exceptions=True)
        [late] = await asyncio.gather(workers.run(caller, compute), return_exceptions=True)
        goes_on.set()
        await closing
        return [told, late, *await asyncio.gather(*running)]

    told, late, *answers = asyncio.run(all_calls())
    for error in (told, late):
        assert isinstance(error, ServiceUnavailable)
        assert "Send this again" in str(error)
    assert answers == [True] * OPERATORS


def test_a_caller_that_hung_up_is_not_told_anything() -> None:
    """Its task ends as cancelled, also when the service stops in the same moment."""
    workers, caller, goes_on = Workers(), Caller("o", Role.OPERATOR), threading.Event()
    all_run = threading.Barrier(OPERATORS + 1, timeout=WAIT_S)

    def hold() -> bool:
        all_run.wait()
        return goes_on.wait()

    async def hang_up() -> None:
        running = [asyncio.create_task(workers.run(caller, hold)) for _ in range(OPERATORS)]
        waiting = asyncio.create_task(workers.run(caller, compute))
        await asyncio.to_thread(all_run.wait)  # then the tasks have begun, the last one too
        waiting.cancel()
        closing = asyncio.create_task(asyncio.to_thread(workers.close))
        with pytest.raises(asyncio.CancelledError):
            await waiting
        goes_on.set()
        await asyncio.gather(closing, *running)

    asyncio.run(hang_up())
