"""Short waits of a SuperNode: how they grow, what of Flower's they replace, and where they leave it as it is."""

import inspect
import subprocess
import sys
import time
from types import ModuleType

import pytest
from flwr.supernode import start_client_internal
from typer.testing import CliRunner

from client.cli import app
from client.worker import short_waits
from client.worker.paths import WorkerPaths
from client.worker.short_waits import SHORTEST_S, PatientClock, shorten


class Slept:
    """A clock that only sleeping moves on, and what was slept."""

    def __init__(self) -> None:
        self.now = 100.0
        self.pauses: list[float] = []
        self.clock = PatientClock(clock=lambda: self.now, sleep=self.sleep)

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


def test_pauses_grow_from_the_shortest_to_flowers_own():
    """A tenth of what was waited: after half a minute as seldom as Flower, and never more seldom."""
    slept = Slept()
    for _ in range(80):
        slept.clock.sleep(3)
    assert slept.pauses[0] == SHORTEST_S
    assert slept.pauses == sorted(slept.pauses)
    assert slept.pauses[-1] == 3
    asked_by = 100 + sum(pause for pause in slept.pauses if pause < 3)
    assert asked_by < 100 + 10 * 3 + 3


def test_another_wait_begins_with_the_shortest_pause():
    """A message came, which Flower waits for in pauses of another length; so did the next one."""
    slept = Slept()
    for seconds in [3] * 80 + [0.5] * 40 + [3]:
        slept.clock.sleep(seconds)
    assert slept.pauses[80] == SHORTEST_S
    assert max(slept.pauses[80:120]) == 0.5
    assert slept.pauses[120] == SHORTEST_S


def other_flower(monkeypatch: pytest.MonkeyPatch, source: str = "", **names: object) -> ModuleType:
    """A module like the loop of the installed Flower, but for these names or this source."""
    module = ModuleType("loop")
    vars(module).update({"time": time, "pull_objects": start_client_internal.pull_objects, **names})
    text = inspect.getsource(start_client_internal) + source
    monkeypatch.setattr(short_waits.inspect, "getsource", lambda _: text)
    return module


def test_the_installed_flower_is_as_expected(monkeypatch):
    """Both names are replaced, and what is pulled is asked for again sooner."""
    module = other_flower(monkeypatch)
    assert shorten(module) == ""
    assert isinstance(module.time, PatientClock)
    assert module.pull_objects.keywords == {"initial_backoff": 0.1}


@pytest.mark.parametrize(
    ("source", "names", "reason"),
    [
        ("\ntime.monotonic()", {}, "more of the module time"),
        ("", {"time": time.sleep}, "by the module time"),
        ("", {"pull_objects": lambda _: {}}, "initial_backoff"),
        ("", {"pull_objects": None}, "initial_backoff"),
    ],
)
def test_another_flower_keeps_its_waits(monkeypatch, source, names, reason):
    """Nothing is replaced where one thing is not as expected."""
    module = other_flower(monkeypatch, source, **names)
    before = dict(vars(module))
    assert reason in shorten(module)
    assert vars(module) == before


def test_its_program_bears_flowers_name_and_runs_flowers(tmp_path):
    """So `check` and who looks at processes find a SuperNode."""
    tmp_path.chmod(0o700)
    program = WorkerPaths(tmp_path).short_waits_program()
    assert program.endswith("/flower-supernode")
    said = subprocess.run([sys.executable, program, "--version"], capture_output=True, text=True, check=True)
    assert said.stdout.startswith("Flower version:")


def test_short_waits_take_the_worker():
    """Without one a message takes so long that they would be lost in it."""
    ran = CliRunner().invoke(app, ["node", "--no-worker", "--short-waits", "--", "--insecure"])
    assert ran.exit_code == 2
    assert "--short-waits" in ran.output
    assert "leave" in ran.output
