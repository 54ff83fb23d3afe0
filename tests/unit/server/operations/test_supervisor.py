"""The supervisor submits a failed run again, once, after a wait, and leaves every other run alone."""

import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from server.operations.flower_control import Run
from server.operations.supervisor import Supervisor, decide
from tests.fake_flower import FakeFlower, control_of_app, row
from tests.supervised import OneRun
from unlearning.runtime.growing_pause import GrowingPause

NOW = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)
PAUSE = GrowingPause(first_s=10, longest_s=60)


def a_run(status: str, *, number: int = 1, lived_s: float = 30.0, ended_s_ago: float = 1000.0) -> Run:
    is_finished = status.startswith("finished")
    return Run(
        run_id=number,
        app="tests/app",
        status=status,
        details="N/A",
        lived_s=lived_s,
        finished_at=NOW - timedelta(seconds=ended_s_ago) if is_finished else None,
    )


FAILED = a_run("finished:failed")
FAILED_NOW = a_run("finished:failed", ended_s_ago=0)
FAILED_AFTER_A_LONG_LIFE = a_run("finished:failed", ended_s_ago=0, lived_s=700)


@pytest.mark.parametrize("status", ["pending", "starting", "running"])
def test_never_two_runs_at_once(status):
    """A live run keeps the supervisor still, wherever it is in the list."""
    live = a_run(status, number=2)
    assert decide([live, FAILED], now=NOW, pause=PAUSE).after_s is None
    assert decide([FAILED, live], now=NOW, pause=PAUSE).after_s is None


@pytest.mark.parametrize("status", ["finished:completed", "finished:stopped"])
def test_a_run_that_is_over_stays_over(status):
    """Completed, or stopped by an operator: nothing is submitted, whatever failed before."""
    assert decide([a_run(status), FAILED], now=NOW, pause=PAUSE).after_s is None


@pytest.mark.parametrize(
    ("runs", "after_s"),
    [
        pytest.param([], 0, id="the first run, so that its settings stand in one place"),
        pytest.param([FAILED], 0, id="a failure long enough ago"),
        pytest.param([FAILED, a_run("finished:completed")], 0, id="only the newest run counts"),
        pytest.param([a_run("finished:failed", ended_s_ago=4)], 6, id="the wait counts from the failure"),
        pytest.param([FAILED_NOW] * 3, 40, id="failures in a row double it"),
        pytest.param([FAILED_NOW] * 2000, 60, id="it is bounded"),
        pytest.param(
            [FAILED_AFTER_A_LONG_LIFE, *[FAILED] * 5], 10, id="a long life forgives earlier failures"
        ),
        pytest.param([FAILED_NOW, FAILED_AFTER_A_LONG_LIFE], 10, id="one before a long life does not count"),
        pytest.param([a_run("finished:failed", ended_s_ago=-4)], 6, id="a clock ahead does not lengthen it"),
        pytest.param(
            [a_run("finished:failed", ended_s_ago=-365 * 86400)],
            0,
            id="a clock that was put back does not lengthen it",
        ),
    ],
)
def test_a_run_is_submitted_after_a_wait(runs, after_s):
    """Ten seconds after the first failure, whatever the clock does."""
    assert decide(runs, now=NOW, pause=PAUSE).after_s == after_s


@pytest.fixture
def flower():
    return FakeFlower()


@pytest.fixture
def supervisor(flower, tmp_path: Path):
    run = OneRun(control_of_app(tmp_path, flower), {"rounds": 0, "model": "cnn"})
    return Supervisor(run, pause=PAUSE, now=lambda: NOW)


def test_the_run_is_submitted_with_its_configuration(flower, supervisor, tmp_path):
    """The new run gets the settings that the supervisor was given."""
    flower.runs = [row("finished:failed")]
    supervisor.step()
    settings = ["--run-config", 'rounds=0 model="cnn"']
    assert flower.submitted == [[str(tmp_path), "here", *settings, "--format", "json"]]


@pytest.mark.parametrize("lacking", ["is_reachable", "takes_runs"])
def test_a_superlink_that_does_not_answer_or_refuses_is_asked_again(flower, supervisor, lacking):
    """It is no failure of the run, and costs one look, not the supervisor."""
    flower.runs = [row("finished:failed")]
    setattr(flower, lacking, False)
    supervisor.step()
    assert flower.submitted == []
    setattr(flower, lacking, True)
    supervisor.step()
    assert len(flower.submitted) == 1


def test_other_apps_runs_are_none_of_its_business(flower, supervisor):
    """Neither does another app's failure matter nor does its live run hinder."""
    flower.runs = [row("running", app="somebody/else"), row("finished:failed")]
    supervisor.step()
    assert len(flower.submitted) == 1


def test_each_action_is_said_and_a_lasting_state_once(flower, supervisor, caplog):
    """The log tells of the submission with its reason, and does not repeat that there is nothing to do."""
    caplog.set_level("INFO")
    flower.runs = [row("running")]
    supervisor.step()
    supervisor.step()
    flower.runs = [row("finished:failed")]
    supervisor.step()
    first, second = (record.getMessage() for record in caplog.records)
    assert "run 11 is running" in first
    assert "Submitted run 77" in second
    assert "it broke" in second


def test_a_file_that_is_not_applied_is_said_once_and_restarts_nothing(flower, tmp_path, caplog):
    """Of a run that has begun; and again after another change."""
    said = ["rounds is 10 in the run and 0 in the file"]
    supervisor = Supervisor(
        OneRun(control_of_app(tmp_path, flower)), pause=PAUSE, now=lambda: NOW, unapplied=lambda: said
    )
    # At first the ServerApp has not written its settings yet.
    for lived_s, count in ((3.0, 0), (90.0, 1), (90.0, 1)):
        flower.runs = [{**row("running"), "elapsed": lived_s}]
        supervisor.step()
        assert sum("rounds is 10 in the run" in text for text in caplog.messages) == count
    said[0] = "rounds is 10 in the run and 5 in the file"
    supervisor.step()
    assert "and 5 in the file" in caplog.messages[-1]
    assert flower.submitted == []


def test_it_stops_when_told(flower, supervisor):
    """Told to stop, it ends without a further look."""
    stop = threading.Event()
    stop.set()
    flower.runs = [row("finished:failed")]
    supervisor.run(stop)
    assert flower.submitted == []


def test_a_surprise_does_not_end_it(flower, supervisor):
    """An unforeseen answer is logged, and the next look is taken."""
    stop = threading.Event()
    looks: list[int] = []

    def now() -> datetime:
        looks.append(1)
        if len(looks) == 1:
            raise ValueError("surprise")
        stop.set()
        return NOW

    supervisor = Supervisor(supervisor._submission, poll_s=0, now=now)
    flower.runs = [row("running")]
    supervisor.run(stop)
    assert len(looks) == 2
