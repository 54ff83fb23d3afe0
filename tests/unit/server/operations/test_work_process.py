"""What needs PyTorch runs in a process beside the service's, which itself never imports it."""

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from server.ledger import Ledger
from server.operations.work_process import WorkProcess
from server.service.statuses import ServiceUnavailable
from tests.deletion_service import LiveLoop
from tests.programs import lives
from tests.waiting import HANGS_S, WAIT_S, wait_until
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


def test_a_call_that_takes_long_delays_no_other(work, tmp_path):
    """As a list of 100,000 samples beside a filing: each of these calls ends once the other one has begun."""
    pipe = str(tmp_path / "pipe")
    os.mkfifo(pipe)
    with ThreadPoolExecutor(2) as pool:
        calls = [pool.submit(work.run, "os:open", pipe, how) for how in (os.O_RDONLY, os.O_WRONLY)]
        try:
            assert all(call.result(timeout=WAIT_S) > 0 for call in calls)
        finally:
            os.close(os.open(pipe, os.O_RDWR))


def test_calls_at_once_share_one_ledger(tmp_path):
    """Each of them brings one; a database is opened once."""
    ledger = Ledger.open(f"sqlite:///{tmp_path}/ledger.db")
    travelling = pickle.dumps(ledger)
    ledger.close()
    with ThreadPoolExecutor(8) as pool:
        opened = list(pool.map(pickle.loads, [travelling] * 8))
    assert len(set(map(id, opened))) == 1
    opened[0].close()


def test_a_result_that_cannot_travel_is_an_error(work):
    """No caller waits for it."""
    with pytest.raises(RuntimeError, match="pickle"):
        work.run("threading:Lock")


@pytest.mark.slow
def test_a_process_without_calls_ends():
    """So that the memory is free again."""
    work = WorkProcess(idle_s=0.05)
    first = work.run("os:getpid")
    wait_until(lambda: not lives(first))
    assert work.run("os:getpid") != first  # the next call is answered
    work.close()


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None  # an import of it fails

from contextlib import suppress
from pathlib import Path
from server.ledger import Ledger, NewRequest
from server.ledger import Ledger
from server.operations.work_process import WorkProcess
from server.service.access import Caller
from server.service.calls import Role
from server.service.deletion_service import DeletionService
from server.service.limits import Limits
from unlearning.errors import RequestError
from unlearning.requests import Granularity, Target

ledger, work = Ledger.open(sys.argv[1]), WorkProcess()
service = DeletionService(ledger, Path(), limits=Limits(), run_step=work.run)
ada = Caller("ada", Role.OPERATOR)
methods = [one.name for one in service.methods(ada)]
for target in (
    Target(Granularity.CLIENT, "3"),
    Target(Granularity.CLASS, class_label=2),
    Target(Granularity.SAMPLE, "3", sample_ids=frozenset("ab")),
):
    service.plan(ada, target)
    for name in ("", *methods, "no method"):
        for parameters in ({}, {"wrong": 1}):
            given = {"target": target, "method": name, "parameters": parameters, "submitted_by": ""}
            with suppress(RequestError):
                service.submit(ada, NewRequest(**given, idempotency_key=f"{target.granularity} {name} {parameters}"))
work.close()
print(len(ledger.requests.select()))
"""


def test_no_answer_brings_pytorch_into_the_service(tmp_path):
    """Descriptions, plans, filings and refusals of every method: the service stays as small as it began."""
    url = f"sqlite:///{tmp_path}/ledger.db"
    ledger = Ledger.open(url)
    LiveLoop(ledger).announce()
    ledger.close()
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, url],
        capture_output=True,
        text=True,
        check=False,
        timeout=HANGS_S,
    )
    assert int(done.stdout) > 3, done.stderr
