"""How a demo begins: in a directory of its own; on a busy machine Ray gets more time, and the end is a sentence."""

from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

from benchmarks.demo import demo_command
from benchmarks.demo import story as demo_story
from benchmarks.demo.story import MAX_STARTS, RAY_GAVE_UP, RunFollower
from unlearning.errors import DeploymentError

LOG = f"Traceback (most recent call last):\n  File node.py\nException: {RAY_GAVE_UP}. This could happen ..."


def story_whose_runs_end(logs, monkeypatch) -> tuple[RunFollower, list[int]]:
    """Every run fails at once; the n-th leaves the n-th of `logs`."""
    monkeypatch.setattr(demo_story, "_ASK_EVERY_S", -1.0)
    submitted: list[int] = []

    def submit_run() -> int:
        submitted.append(len(submitted) + 1)
        return submitted[-1]

    def wait_until(predicate, *_args, **_options) -> None:
        while not predicate():
            pass

    run = SimpleNamespace(is_finished=True, status="finished:failed", details="")
    control = SimpleNamespace(run=lambda _: run, log=lambda number: logs[number - 1])
    federation = SimpleNamespace(
        submit_run=submit_run, server_app_pid=lambda: None, control=control, wait_until=wait_until
    )
    ledger = SimpleNamespace(events=SimpleNamespace(page=lambda **_: []), rounds=lambda **_: [])
    story = RunFollower(federation, ledger, MagicMock())
    story.begin()
    return story, submitted


def test_a_ray_that_gave_up_is_started_again_and_in_the_end_one_sentence_says_so(monkeypatch):
    """No stack trace, which would not say what to do."""
    story, submitted = story_whose_runs_end([LOG] * (MAX_STARTS + 1), monkeypatch)
    with pytest.raises(DeploymentError) as caught:
        story.wait_until(lambda: False, "the deletion is over")
    assert len(submitted) == MAX_STARTS
    assert "Traceback" not in str(caught.value)
    assert "busy" in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_a_run_that_failed_for_another_reason_is_not_repeated(monkeypatch):
    """Its log says why."""
    story, submitted = story_whose_runs_end(["ValueError: no such data set"], monkeypatch)
    with pytest.raises(DeploymentError):
        story.wait_until(lambda: False, "the deletion is over")
    assert submitted == [1]


def test_two_demos_that_begin_in_one_second_have_a_directory_each(tmp_path, monkeypatch):
    """`make --jobs 2 demo demo-simulation`: the second found the keys of the first."""
    monkeypatch.chdir(tmp_path)
    made = {demo_story._new_directory(None) for _ in range(3)}
    assert len(made) == 3
    assert all(not any(one.iterdir()) and one.stat().st_mode & 0o077 == 0 for one in made)


def test_brackets_in_a_directory_are_printed_as_they_are(monkeypatch, capsys):
    """They are no markup, which left the end of the path out."""
    monkeypatch.setattr(
        demo_story, "tell", lambda console, **options: console.print(f"In {options['directory']}")
    )
    demo_command(directory=Path("runs[simulation]"))
    assert "runs[simulation]" in capsys.readouterr().out
