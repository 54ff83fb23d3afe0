"""A federation of the trivial app as real processes, which a file's tests share, and what its clients answered."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from benchmarks.deployment import LocalDeployment
from server.operations.flower_control import ConfigValue
from tests.integration.deployments import SELDOM, ForkedDeployment

REPOSITORY = Path(__file__).parents[2]
TRIVIAL_APP = Path(__file__).parent / "trivial_app"


@dataclass(frozen=True)
class Trivial:
    """A federation of the trivial app, and the file in which the app writes down each answer."""

    deployment: LocalDeployment
    progress: Path

    def submit(self, **settings: ConfigValue) -> int:
        """Submit a run, of which alone the answers then are."""
        self.progress.unlink(missing_ok=True)
        return self.deployment.submit_run({name.replace("_", "-"): value for name, value in settings.items()})

    def answers(self) -> list[tuple[int, str]]:
        """Return the run's answers so far, as (round, client id), in the order of their arrival."""
        lines = self.progress.read_text().splitlines() if self.progress.exists() else []
        return [(int(number), client) for number, client in (line.split() for line in lines)]


@pytest.fixture(scope="module")
def trivial(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trivial]:
    """Two clients with TLS and registered keys, by the scripts of deploy/; in the end it is asked to end.

    It ends with the file's tests.
    """
    # The bundle carries no code, so the app's modules are "installed" by putting them on the path.
    installed = [str(TRIVIAL_APP / "installed"), *filter(None, [os.environ.get("PYTHONPATH")])]
    directory = tmp_path_factory.mktemp("trivial")
    progress = directory / "progress"
    with ForkedDeployment(
        directory / "federation",
        num_clients=2,
        app_dir=TRIVIAL_APP,
        run_config={"num-nodes": 2, "progress": str(progress)},
        secure=True,
        environment={
            "PYTHONPATH": os.pathsep.join(installed),
            **SELDOM,
        },
    ) as deployment:
        yield Trivial(deployment, progress)
