"""The `flwr` command for tests, without a SuperLink."""

import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from server.operations.flower_control import CommandRunner, FlowerControl


@dataclass
class FakeFlower:
    """A SuperLink's answers, as the tests want them.

    nodes: the states of its SuperNodes. submitted: the arguments of each `flwr run` that it took.
    """

    runs: list[dict[str, object]] = field(default_factory=list)
    nodes: Sequence[str] = ()
    is_reachable: bool = True
    takes_runs: bool = True
    submitted: list[list[str]] = field(default_factory=list)

    def __call__(self, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        _, verb, *arguments = command
        answer: dict[str, object] = {"success": True}
        if not self.is_reachable or (verb == "run" and not self.takes_runs):
            answer = {"success": False, "error-message": "unavailable"}
        elif verb == "list":
            answer["runs"] = self.runs
        elif verb == "supernode":
            answer["nodes"] = [{"status": status} for status in self.nodes]
        else:
            self.submitted.append(arguments)
            answer["run-id"] = "77"
        # Flower prints remarks before the JSON, and ends with 0 in any case.
        return subprocess.CompletedProcess(
            list(command), 0, f"Note: {{so}} it is.\n{json.dumps(answer)}\n", ""
        )


def row(status: str, app: str = "tests/app") -> dict[str, object]:
    """What the SuperLink says of run 11."""
    return {
        "run-id": "11",
        "fab-id": app,
        "status": status,
        "status-details": "it broke",
        "elapsed": 30.0,
        "finished-at": "2026-05-04 11:00:00Z" if status.startswith("finished") else "N/A",
    }


def control_of_app(directory: Path, flower: CommandRunner) -> FlowerControl:
    """The control of `tests/app`, which is written to `directory`."""
    (directory / "pyproject.toml").write_text(
        '[project]\nname = "app"\n[tool.flwr.app]\npublisher = "tests"\n'
    )
    return FlowerControl(directory, "here", run_command=flower)
