"""Flower's Ray simulation on this machine, started and ended like a deployment: for the demo.

`flwr run . local` starts a SuperLink that nobody stops. This starts the same kind of SuperLink and the
SuperExec that runs its simulations. All of Ray's processes belong to the SuperExec's process group.
"""

import subprocess
import tempfile
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from server.processes.deployment import SUPEREXEC, SUPERLINK, LocalDeployment
from server.processes.flower_control import ConfigValue, FlowerControl, config_argument, flower_environment
from server.processes.layout import FEDERATION

_SUBMIT_TIMEOUT_S = 90.0


class LocalSimulation(LocalDeployment):
    """A SuperLink for simulations and its SuperExec; a run has `num_clients` virtual SuperNodes.

    Client i is the client of id `str(i)`. Its memory lasts as long as the run. `environment` adds environment variables
    to every program.
    """

    def __init__(
        self,
        directory: Path,
        *,
        num_clients: int,
        app_dir: Path,
        run_config: Mapping[str, ConfigValue] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        # A directory of its own, because Ray's sockets do not fit below a long path.
        self._ray = tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True)
        environment = {"RAY_TMPDIR": self._ray.name, "RAY_USAGE_STATS_ENABLED": "0", **(environment or {})}
        super().__init__(
            directory, num_clients=0, app_dir=app_dir, run_config=run_config, environment=environment
        )
        server = self.layout.server_dir
        self._add(SUPERLINK, [*self.layout.superlink_command(), "--simulation"], server)
        self.run_config |= {"state-dir": str(self.layout.state_dir)}
        # One worker process for all clients: importing PyTorch in each costs more than a demo's training.
        federation: dict[str, ConfigValue] = {
            "num-supernodes": num_clients,
            "client-resources-num-cpus": 1,
            "init-args-num-cpus": 1,
        }
        self._options = ["--federation-config", config_argument(federation)]
        self._flower = {**flower_environment(server / "flower"), **environment}
        self.control = FlowerControl(app_dir, FEDERATION, run_command=self._run_command)

    def __enter__(self) -> Self:
        """Start both programs.

        Raises:
            DeploymentError: a program did not start.
        """
        try:
            return super().__enter__()
        except BaseException:
            self._ray.cleanup()
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop everything."""
        super().__exit__(kind, error, trace)
        self._ray.cleanup()

    def superlink_answers(self) -> bool:
        """Return whether the SuperLink answers over HTTP; a simulation's takes no SuperNodes."""
        try:
            with urllib.request.urlopen(f"http://{self.layout.control_address}/health", timeout=2) as answer:
                return bool(answer.status == 200)
        except OSError:  # urllib's errors among them
            return False

    def server_app_pid(self) -> int | None:
        """Return the process id of the simulation that runs now, which is also its ServerApp's."""
        for process in self._group(SUPEREXEC).members():
            if "flwr-simulation" in process.command:
                return process.pid
        return None

    def _run_command(self, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """Run a `flwr` command; a run is told how many SuperNodes to simulate."""
        options = self._options if command[1] == "run" else []
        return subprocess.run(
            [*command, *options],
            env=self._flower,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_SUBMIT_TIMEOUT_S,
            check=False,
        )
