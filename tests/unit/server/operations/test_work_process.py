"""What needs PyTorch runs in a process beside the service's, which itself never imports it."""

import os
import signal
from collections.abc import Iterator

import pytest

from server.operations.work_process import WorkProcess
from server.service.statuses import ServiceUnavailable
from tests.programs import lives
from tests.waiting import wait_until
from unlearning.errors import MethodFailed, RequestNotFound


@pytest.fixture(scope="module")
def work() -> Iterator[WorkProcess]:
    work = WorkProcess()
    yield work
    work.close()


def test_an_answer_comes_from_another_process_and_an_error_with_its_code(work):
    """As if the function had been called here."""
    assert work.run("os:getpid") != os.getpid()
    with pytest.raises(RequestNotFound):
        work.run("server.ledger.records:request_number", "no id")


@pytest.mark.parametrize(
    "error", [MethodFailed("why", retryable=True, code="lost", client="3"), RequestNotFound("none", code="c")]
)
def test_an_error_travels_whole(work, error):
    """Whatever its class takes: message, code and fields."""
    back = work.run("copy:copy", error)
    assert (type(back), str(back), vars(back)) == (type(error), str(error), vars(error))


def test_a_process_that_was_killed_ends_its_calls_and_is_started_again(work):
    """The caller is told to send it again; the next call is answered."""
    first = work.run("os:getpid")
    with pytest.raises(ServiceUnavailable):
        work.run("os:kill", first, signal.SIGKILL)
    assert work.run("os:getpid") != first


@pytest.mark.slow
def test_a_process_without_calls_ends():
    """So that the memory is free again."""
    work = WorkProcess(idle_s=0.05)
    first = work.run("os:getpid")
    wait_until(lambda: not lives(first))
    assert work.run("os:getpid") != first  # the next call is answered
    work.close()
