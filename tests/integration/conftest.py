"""Fixtures of the tests of real processes: federations of the trivial app, and what its clients answered."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from server.processes.deployment import LocalDeployment

REPOSITORY = Path(__file__).parents[2]
TRIVIAL_APP = Path(__file__).parent / "trivial_app"


@pytest.fixture
def progress(tmp_path: Path) -> Path:
    """The file in which the trivial app writes down each answer."""
    return tmp_path / "progress"


@pytest.fixture
def answers(progress: Path) -> Callable[[], list[tuple[int, str]]]:
    """Reads the answers so far, as (round, client id), in the order of their arrival."""

    def read() -> list[tuple[int, str]]:
        lines = progress.read_text().splitlines() if progress.exists() else []
        return [(int(number), client) for number, client in (line.split() for line in lines)]

    return read


@pytest.fixture
def deploy_trivial(tmp_path: Path, progress: Path) -> Iterator[Callable[..., LocalDeployment]]:
    """Starts a federation of the trivial app as Flower comes, without a worker; it ends with the test."""
    # The bundle carries no code, so the app's modules are "installed" by putting them on the path.
    installed = [str(TRIVIAL_APP / "installed"), *filter(None, [os.environ.get("PYTHONPATH")])]
    with ExitStack() as stack:

        def deploy(*, num_clients: int, secure: bool = False) -> LocalDeployment:
            return stack.enter_context(
                LocalDeployment(
                    tmp_path / "federation",
                    num_clients=num_clients,
                    app_dir=TRIVIAL_APP,
                    run_config={"num-nodes": num_clients, "progress": str(progress)},
                    secure=secure,
                    with_worker=False,  # it imports no PyTorch, so there is nothing to keep warm
                    environment={"PYTHONPATH": os.pathsep.join(installed)},
                )
            )

        yield deploy
