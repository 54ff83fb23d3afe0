"""The supervisor keeps real runs alive; a kill of the ServerApp under it is in test_kills.py."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from server.operations.supervisor import Supervisor
from server.processes.deployment import SUPERLINK, LocalDeployment
from tests.integration.deployments import restart
from tests.supervised import OneRun
from unlearning.growing_pause import GrowingPause

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


@contextmanager
def supervised(deployment: LocalDeployment, **run_config) -> Iterator[None]:
    supervisor = Supervisor(
        OneRun(deployment.control, {**deployment.run_config, **run_config}),
        pause=GrowingPause(first_s=0.5, longest_s=300.0),
        poll_s=1.0,
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


def test_a_run_that_fails_is_submitted_again_and_completes(deploy_trivial, answers):
    """An app that fails once completes under supervision, and is then left alone."""
    deployment = deploy_trivial(num_clients=1)
    deployment.submit_run({"rounds": 1, "fail-once": True})
    with supervised(deployment, **{"rounds": 1, "fail-once": True}):
        done = ["finished:completed", "finished:failed"]
        deployment.wait_until(
            lambda: statuses(deployment) == done, 90, "the second run completes", poll_s=1.0
        )
    assert answers() == [(1, "0")]


def test_an_outage_of_the_superlink_submits_nothing(deploy_trivial, answers):
    """The SuperLink goes and comes back under supervision; the one run goes on and completes."""
    deployment = deploy_trivial(num_clients=1)
    run_id = deployment.submit_run({"rounds": 3})
    deployment.wait_until(lambda: len(answers()) >= 1, 60, "the first round is answered")
    with supervised(deployment, rounds=3):
        restart(deployment, SUPERLINK)
        deployment.wait_until(deployment.superlink_answers, 60, "the SuperLink is back")
        assert deployment.wait_until_finished(run_id, 120) == "finished:completed"
    assert statuses(deployment) == ["finished:completed"]
