"""Virtual clients on an existing Ray cluster of two nodes (`RAY_ADDRESS`): the same model as on one machine."""

import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from benchmarks.demo.simulation import LocalSimulation
from benchmarks.local_layout import free_ports
from server.federation.checkpoints import CheckpointStore
from server.operations.flower_control import ConfigValue, config_argument, flower_environment
from strategies.installation import program
from tests.programs import run_well
from tests.waiting import HANGS_S
from unlearning.parameters import content_hash

pytestmark = [pytest.mark.slow, pytest.mark.long]

RUN: Mapping[str, ConfigValue] = {"num-clients": 4, "rounds": 3}
WHERE = """
import pathlib, ray
pathlib.Path({seen!r}, ray.get_runtime_context().get_node_id()).touch()
"""
"""Written below the app's task: a worker says on which node it is."""


class Simulation(LocalSimulation):
    """With so many processors for each virtual client; Ray itself is told nothing."""

    cpus = 1

    def log_of_a_run(self) -> str:
        federation: dict[str, ConfigValue] = {"num-supernodes": 4, "client-resources-num-cpus": self.cpus}
        self.control.run_options = ("--federation-config", config_argument(federation))
        run_id = self.submit_run({})
        self.wait_until_finished(run_id, HANGS_S)
        return self.control.log(run_id)

    def model_of_a_run(self) -> str:
        log = self.log_of_a_run()
        state = CheckpointStore(self.layout.state_dir / "checkpoints").newest()
        assert state is not None, log
        assert state.round == RUN["rounds"], log
        return content_hash(state.parameters)


@contextmanager
def cluster(code: Path) -> Iterator[dict[str, str]]:
    """Two nodes with one processor each, which find the app in `code`; yields what leads programs to them."""
    address = f"127.0.0.1:{free_ports(1)[0]}"
    common = ["--num-cpus=1", "--disable-usage-stats", "--block"]
    with ExitStack() as stack:
        own = stack.enter_context(
            tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True)
        )
        port = address.rpartition(":")[2]
        head = ["--head", f"--port={port}", "--include-dashboard=false", f"--temp-dir={own}"]
        for arguments in (head, [f"--address={address}"]):
            command = [program("ray"), "start", *arguments, *common]
            process = stack.enter_context(
                subprocess.Popen(
                    command, env={**os.environ, "PYTHONPATH": str(code)}, stdout=subprocess.PIPE, text=True
                )
            )
            stack.callback(process.terminate)
            assert process.stdout is not None
            for line in process.stdout:
                if "Ray runtime started" in line:
                    break
        yield {"RAY_ADDRESS": address}


def app(directory: Path, where: str = "") -> Path:
    """A new app, with `where` below its task."""
    directory.mkdir()
    run_well([program("flower-unlearn"), "new", "hospital"], directory, flower_environment())
    made = directory / "hospital"
    task = made / "hospital" / "task.py"
    task.write_text(task.read_text(encoding="utf-8") + where, encoding="utf-8")
    return made


def test_two_nodes_share_the_virtual_clients_and_the_model_is_the_same(tmp_path: Path):
    seen = tmp_path / "seen"
    seen.mkdir()
    with Simulation(
        tmp_path / "alone", num_clients=4, app_dir=app(tmp_path / "app-1"), run_config=RUN
    ) as here:
        alone = here.model_of_a_run()
    shared = app(tmp_path / "app-2", WHERE.format(seen=str(seen)))
    with (
        cluster(shared) as there,
        Simulation(
            tmp_path / "cluster", num_clients=4, app_dir=shared, run_config=RUN, environment=there
        ) as here,
    ):
        assert here.model_of_a_run() == alone
        assert len(list(seen.iterdir())) == 2
        here.cpus = 2
        assert "Lowering these resources could help" in here.log_of_a_run()
