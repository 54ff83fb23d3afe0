"""What a supervisor is given in tests: settings without a federation's file."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from server.processes.flower_control import ConfigValue, FlowerControl, Run


@dataclass(frozen=True)
class OneRun:
    """A run of given settings on a deployment's SuperLink, as a supervisor submits it."""

    control: FlowerControl
    settings: Mapping[str, ConfigValue] = field(default_factory=dict)

    def runs(self) -> list[Run]:
        return self.control.runs()

    def submit(self) -> int:
        return self.control.submit_run(self.settings)
