"""A supervisor in tests, and what it is given: settings without a federation's file."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from server.operations.supervisor import Supervisor
from server.processes.deployment import LocalDeployment
from server.processes.flower_control import ConfigValue, FlowerControl, Run
from unlearning.growing_pause import GrowingPause


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
    """A run whose SuperLink is asked, for a second of processor time, only where no ServerApp's process lives.

    While it does, what was going on at the last look still is.
    """

    deployment: LocalDeployment
    settings: Mapping[str, ConfigValue] = field(default_factory=dict)
    _seen: list[Run] = field(default_factory=list)

    def runs(self) -> list[Run]:
        is_known = bool(self._seen) and self._seen[0].status == "running"
        if not (is_known and self.deployment.server_app_pid() is not None):
            self._seen = self.deployment.control.runs()
        return self._seen

    def submit(self) -> int:
        return self.deployment.control.submit_run(self.settings)


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
