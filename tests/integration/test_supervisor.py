"""The supervisor keeps real runs alive; a kill of the ServerApp under it is in test_kills.py."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from server.operations.supervisor import Supervisor
from server.processes.deployment import SUPERLINK, LocalDeployment
from server.processes.flower_control import ConfigValue
from tests.integration.conftest import Trivial
from tests.supervised import OneRun
from unlearning.growing_pause import GrowingPause

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

WAIT_S = 240.0


@pytest.fixture(scope="module")
def trivial(deploy_trivial: Callable[..., Trivial]) -> Trivial:
    """Two clients, whose runs the tests submit one after the other."""
    return deploy_trivial(num_clients=2)


@contextmanager
def supervised(deployment: LocalDeployment, **run_config: ConfigValue) -> Iterator[None]:
    supervisor = Supervisor(
        OneRun(deployment.control, {**deployment.run_config, **run_config}),
        pause=GrowingPause(first_s=0.5, longest_s=300.0),
        poll_s=3.0,
    )
    stop = threading.Event()
    thread = threading.Thread(target=supervisor.run, args=(stop,))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def statuses(deployment: LocalDeployment) -> list[str]:
    return [run.status for run in deployment.control.runs()]


def test_a_run_that_fails_is_submitted_again_and_completes(trivial: Trivial) -> None:
    """An app that fails once completes under supervision, and is then left alone."""
    deployment = trivial.deployment
    trivial.submit(rounds=1, fail_once=True)
    with supervised(deployment, **{"rounds": 1, "fail-once": True}):
        done = ["finished:completed", "finished:failed"]
        deployment.wait_until(
            lambda: statuses(deployment) == done, WAIT_S, "the second run completes", poll_s=3.0
        )
    assert sorted(trivial.answers()) == [(1, "0"), (1, "1")]


def test_a_killed_superlink_comes_back_and_its_run_goes_on(trivial: Trivial) -> None:
    """Its database knows the one run, which is completed; the supervisor waited and submitted nothing."""
    deployment = trivial.deployment
    before = statuses(deployment)
    run_id = trivial.submit(rounds=4)
    deployment.wait_until(lambda: len(trivial.answers()) >= 2, WAIT_S, "the first round is answered")
    with supervised(deployment, rounds=4):
        deployment.kill(SUPERLINK)
        assert not deployment.superlink_answers()
        deployment.start(SUPERLINK)
        deployment.wait_until(deployment.superlink_answers, WAIT_S, "the SuperLink is back")
        assert deployment.wait_until_finished(run_id, WAIT_S) == "finished:completed", deployment.control.log(
            run_id
        )
    assert statuses(deployment) == ["finished:completed", *before]
    assert sorted(trivial.answers()) == [(number, client) for number in (1, 2, 3, 4) for client in "01"]
