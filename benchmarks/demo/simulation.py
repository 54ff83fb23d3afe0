"""Flower's Ray simulation on this machine, started and ended like a deployment: for the demo.

`flwr run . local` starts a SuperLink that nobody stops. This starts the same kind of SuperLink and the
SuperExec that runs its simulations. All of Ray's processes belong to the SuperExec's process group.
"""

import tempfile
from collections.abc import Mapping
from pathlib import Path

from benchmarks.deployment import SUPERLINK, LocalDeployment
from server.operations.flower_control import ConfigValue, config_argument


class LocalSimulation(LocalDeployment):
    """A SuperLink for simulations and its SuperExec; a run has `num_clients` virtual SuperNodes.

    Client i is the client of id `str(i)`. Its memory lasts as long as the run. `environment` adds environment variables
    to every program.
    """

    _SERVER_APP = "flwr-simulation"

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
        self._run_options = ("--federation-config", config_argument(federation))
        self.run_app_in(app_dir)

    def stop(self) -> None:
        """End every process, and Ray's directory with them."""
        super().stop()
        self._ray.cleanup()
