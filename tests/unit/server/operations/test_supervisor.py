"""The supervisor submits a failed run again, once, after a wait, and leaves every other run alone."""

import json
import subprocess
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from server.operations.supervisor import Leave, Resubmit, Supervisor, decide
from server.processes.flower_control import FlowerControl, Run
from tests.supervised import OneRun
from unlearning.growing_pause import GrowingPause

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


def test_a_failed_run_is_submitted_again():
    """What ended in failure, long enough ago, is submitted now."""
    assert decide([a_run("finished:failed")], now=NOW, pause=PAUSE).after_s == 0


@pytest.mark.parametrize("status", ["pending", "starting", "running"])
def test_never_two_runs_at_once(status):
    """A live run keeps the supervisor still, wherever it stands in the list."""
    live, failed = a_run(status, number=2), a_run("finished:failed")
    assert isinstance(decide([live, failed], now=NOW, pause=PAUSE), Leave)
    assert isinstance(decide([failed, live], now=NOW, pause=PAUSE), Leave)


@pytest.mark.parametrize("status", ["finished:completed", "finished:stopped"])
def test_a_run_that_is_over_stays_over(status):
    """Completed, or stopped by an operator: nothing is submitted, whatever failed before."""
    assert isinstance(decide([a_run(status), a_run("finished:failed")], now=NOW, pause=PAUSE), Leave)


def test_a_failure_after_a_completed_run_is_a_failure():
    """Only the newest run counts."""
    runs = [a_run("finished:failed"), a_run("finished:completed")]
    assert isinstance(decide(runs, now=NOW, pause=PAUSE), Resubmit)


def test_the_first_run_is_submitted_too():
    """So the run's settings stand in one place."""
    assert decide([], now=NOW, pause=PAUSE).after_s == 0


def test_the_wait_counts_from_the_failure():
    """Of ten seconds' wait, four have passed."""
    runs = [a_run("finished:failed", ended_s_ago=4)]
    assert decide(runs, now=NOW, pause=PAUSE).after_s == 6


def test_failures_in_a_row_double_the_wait():
    """The third failure in a row waits four times as long as the first."""
    runs = [a_run("finished:failed", ended_s_ago=0)] * 3
    assert decide(runs, now=NOW, pause=PAUSE).after_s == 40


def test_the_wait_is_bounded():
    """However many failures: the longest wait."""
    runs = [a_run("finished:failed", ended_s_ago=0)] * 2000
    assert decide(runs, now=NOW, pause=PAUSE).after_s == 60


def test_a_long_life_forgives_earlier_failures():
    """A run that lived long before it failed is a first failure again."""
    runs = [a_run("finished:failed", ended_s_ago=0, lived_s=700)] + [a_run("finished:failed")] * 5
    assert decide(runs, now=NOW, pause=PAUSE).after_s == 10


def test_failures_before_a_long_life_do_not_count():
    """One short life after a long one: the second in a row is the first that counts."""
    runs = [a_run("finished:failed", ended_s_ago=0), a_run("finished:failed", lived_s=700)]
    assert decide(runs, now=NOW, pause=PAUSE).after_s == 10


def test_a_clock_ahead_does_not_lengthen_the_wait():
    """A failure in the future, by a clock that is ahead, waits no longer than one right now."""
    runs = [a_run("finished:failed", ended_s_ago=-50)]
    assert decide(runs, now=NOW, pause=PAUSE).after_s == 10


@dataclass
class FakeFlower:
    """The `flwr` command, with the answers that the tests want."""

    runs: list[dict[str, object]] = field(default_factory=list)
    is_reachable: bool = True
    takes_runs: bool = True
    submitted: list[list[str]] = field(default_factory=list)

    def __call__(self, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        _, verb, *arguments = command
        if not self.is_reachable:
            answer: dict[str, object] = {"success": False, "error-message": "unavailable"}
        elif verb == "list":
            answer = {"success": True, "runs": self.runs}
        elif self.takes_runs:
            self.submitted.append(arguments)
            answer = {"success": True, "run-id": "77"}
        else:
            answer = {"success": False, "error-message": "no"}
        # Flower prints remarks before the JSON, and ends with 0 in any case.
        return subprocess.CompletedProcess(
            list(command), 0, f"Note: {{so}} it is.\n{json.dumps(answer)}\n", ""
        )


def row(status: str, app: str = "tests/app") -> dict[str, object]:
    return {
        "run-id": "11",
        "fab-id": app,
        "status": status,
        "status-details": "it broke",
        "elapsed": 30.0,
        "finished-at": "2026-05-04 11:00:00Z" if status.startswith("finished") else "N/A",
    }


@pytest.fixture
def flower():
    return FakeFlower()


@pytest.fixture
def supervisor(flower, tmp_path: Path):
    (tmp_path / "pyproject.toml").write_text(
        '[project]\nname = "app"\n[tool.flwr.app]\npublisher = "tests"\n'
    )
    control = FlowerControl(tmp_path, "here", run_command=flower)
    run = OneRun(control, {"rounds": 0, "model": "cnn"})
    return Supervisor(run, pause=PAUSE, now=lambda: NOW)


def test_the_run_is_submitted_with_its_configuration(flower, supervisor, tmp_path):
    """The new run gets the settings that the supervisor was given."""
    flower.runs = [row("finished:failed")]
    supervisor.step()
    [arguments] = flower.submitted
    assert arguments == [
        *(str(tmp_path), "here", "--run-config", 'rounds=0 model="cnn"', "--format", "json"),
    ]


def test_an_unreachable_superlink_is_not_a_failed_run(flower, supervisor):
    """While nobody answers nothing is submitted; when the SuperLink is back it is."""
    flower.runs = [row("finished:failed")]
    flower.is_reachable = False
    supervisor.step()
    assert flower.submitted == []
    flower.is_reachable = True
    supervisor.step()
    assert len(flower.submitted) == 1


def test_other_apps_runs_are_none_of_its_business(flower, supervisor):
    """Neither does another app's failure matter nor does its live run hinder."""
    flower.runs = [row("running", app="somebody/else"), row("finished:failed")]
    supervisor.step()
    assert len(flower.submitted) == 1


def test_a_refused_submission_is_tried_again(flower, supervisor):
    """A submission that fails costs one look, not the supervisor."""
    flower.runs, flower.takes_runs = [row("finished:failed")], False
    supervisor.step()
    flower.takes_runs = True
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


def test_it_stops_when_told(flower, supervisor):
    """Told to stop, it ends without a further look."""
    stop = threading.Event()
    stop.set()
    flower.runs = [row("finished:failed")]
    supervisor.run(stop)
    assert flower.submitted == []


def test_a_surprise_does_not_end_it(flower, supervisor):
    """An answer that nobody foresaw is logged, and the next look is taken."""
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


def test_a_clock_that_was_put_back_does_not_hold_up_the_federation():
    """The run ended a year from now, says the SuperLink: waiting until then helps nobody."""
    runs = [a_run("finished:failed", ended_s_ago=-365 * 86400)]
    assert decide(runs, now=NOW, pause=PAUSE).after_s == 0  # type: ignore[union-attr]


def test_clocks_that_differ_by_seconds_change_no_wait():
    """Else a SuperLink whose clock is ahead would be asked again and again without a pause."""
    runs = [a_run("finished:failed", ended_s_ago=-3)]
    assert decide(runs, now=NOW, pause=PAUSE).after_s == PAUSE.first_s  # type: ignore[union-attr]
