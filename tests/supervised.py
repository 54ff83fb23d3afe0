"""A supervisor in tests, and what it is given: settings without a federation's file."""

import math
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from benchmarks.deployment import LocalDeployment
from server.operations.flower_control import ConfigValue, FlowerControl, Run
from server.operations.supervisor import Supervisor
from unlearning.runtime.growing_pause import GrowingPause

_ASKED_EVERY_S = 15.0  # Flower gives a ServerApp up a minute after its last sign


@dataclass(frozen=True)
class OneRun:
    """A run of given settings on a deployment's SuperLink, as a supervisor submits it."""

    control: FlowerControl
    settings: Mapping[str, ConfigValue] = field(default_factory=dict)

    def runs(self) -> list[Run]:
        return self.control.runs()

    def submit(self) -> int:
        return self.control.submit_run(self.settings)


@dataclass
class SeldomAsked:
    """A run whose SuperLink is asked, for a second of processor time, only while no process of its ServerApp lives."""

    deployment: LocalDeployment
    _seen: list[Run] = field(default_factory=list)
    _asked_at: float = -math.inf

    def runs(self) -> list[Run]:
        is_known = bool(self._seen) and self._seen[0].status == "running"
        is_new = time.monotonic() < self._asked_at + _ASKED_EVERY_S
        if not is_known or not (is_new or self.deployment.server_app_pid()):
            self._seen, self._asked_at = self.deployment.control.runs(), time.monotonic()
        return self._seen

    def submit(self) -> int:
        run_id = self.deployment.submit_run()
        submitted = Run(run_id=run_id, app="", status="running", details="", lived_s=0.0, finished_at=None)
        self._seen, self._asked_at = [submitted], time.monotonic()
        return run_id


@contextmanager
def supervised(submission: OneRun | SeldomAsked, *, poll_s: float) -> Iterator[None]:
    """A supervisor looks at the run every `poll_s` seconds while the block runs."""
    supervisor = Supervisor(submission, pause=GrowingPause(first_s=0.5, longest_s=300.0), poll_s=poll_s)
    stop = threading.Event()
    thread = threading.Thread(target=supervisor.run, args=(stop,))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
