"""What only tests do to a deployment and ask of it."""

import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from benchmarks.deployment import LocalDeployment, supernode
from benchmarks.process_group import ProcessGroup
from tests.integration.forked_programs import ForkedProgram, Order, start_forked
from tests.waiting import HANGS_S
from unlearning.runtime.durable_files import OTHERS

SELDOM: Mapping[str, str] = {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "1.0"}
"""As often as a SuperExec looks for messages by itself; each look costs processor time, at every node."""


class ForkedGroup(ProcessGroup):
    """A program that is forked."""

    def _launch(self, log: IO[bytes]) -> ForkedProgram:
        order = Order(self.command, self._environment, str(self._directory), OTHERS, leads=True)
        return start_forked(order, log.fileno())


class ForkedDeployment(LocalDeployment):
    """A deployment whose programs are forked: see forked_programs.py."""

    _kind_of_group = ForkedGroup


class FrugalDeployment(ForkedDeployment):
    """A deployment that leaves the processors to the tests beside it.

    SuperExecs look for messages `SELDOM`. In the end its programs are
    not asked to end, which takes each of them some tenths of a second: what they do when they are asked,
    test_local_deployment.py and test_demo.py tell.
    """

    def __init__(
        self, directory: Path, *, environment: Mapping[str, str] | None = None, **settings: Any
    ) -> None:
        super().__init__(directory, environment={**SELDOM, **(environment or {})}, **settings)

    def stop(self) -> None:
        """End every process at once."""
        for name in self.names:
            self.group(name)._signal(signal.SIGKILL)
        super().stop()


def restart(deployment: LocalDeployment, name: str) -> None:
    """Kill one program, as a crash would, and start it again."""
    deployment.kill(name)
    deployment.start(name)


def kill_server_app(deployment: LocalDeployment) -> None:
    """End the ServerApp that runs now with SIGKILL; return when it is dead."""
    pid = deployment.server_app_pid()
    assert pid is not None, "no ServerApp runs"
    os.kill(pid, signal.SIGKILL)
    deployment.wait_until(lambda: deployment.server_app_pid() != pid, HANGS_S, "the ServerApp is dead")


def living_pids(deployment: LocalDeployment) -> list[int]:
    """List every living process that the deployment started or that those started."""
    return [process.pid for name in deployment.names for process in deployment.group(name).members()]


def connected_clients(deployment: LocalDeployment) -> list[int]:
    """List the clients whose SuperNode was given its node id since its last start."""
    return [
        client
        for client in range(deployment.layout.num_clients)
        if "SuperNode ID:"
        in deployment.group(supernode(client)).log_text().rpartition("Starting Flower SuperNode")[2]
    ]
