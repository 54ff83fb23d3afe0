"""An own app on real processes over sessions: own training, a frozen backbone, and data that stay in files."""

import shutil
from pathlib import Path

import pytest

from server.api.client import DeletionClient
from server.federation.checkpoints import CheckpointStore
from tests import own_pictures
from tests.federation import client
from tests.integration.deployments import FrugalDeployment
from tests.integration.live_federation import forget
from tests.programs import run_program
from unlearning.errors import UnsupportedRequest
from unlearning.requests import Granularity, Target

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_samples_of_files_are_forgotten_from_a_head_trained_by_its_own_loop(tmp_path: Path):
    """82 numbers travel; a method that needs derivatives is refused when it is asked for; the deletion ends."""
    run_program("flower-unlearn", "new", "pictures", "--directory", str(tmp_path))
    app = tmp_path / "pictures"
    shutil.copy(own_pictures.__file__, app / "pictures" / "task.py")
    project = app / "pyproject.toml"
    project.write_text(project.read_text().replace("depth = 1", f'files = "{tmp_path}"'))
    settings = {"num-clients": 2, "rounds": 0, "round-interval-s": 0.5, "transport": "session"}
    settings |= {"local-epochs": 10, "recovery-max-rounds": 2}
    with FrugalDeployment(
        tmp_path / "federation",
        num_clients=2,
        app_dir=app,
        run_config=settings,
        with_deletion_service=True,
        with_sessions=True,
    ) as deployment:
        layout = deployment.layout
        target = Target(Granularity.SAMPLE, "1", frozenset({"3", "17", "20"}))
        report = forget(deployment, target, "puf-special", after_rounds=3)
        assert report["measurements"][-1]["test"]["score"] > 0.9
        state = CheckpointStore(layout.state_dir / "checkpoints").newest()
        assert state is not None
        assert state.parameters.shape == (82,)
        with (
            DeletionClient(layout.deletion_address) as service,
            pytest.raises(UnsupportedRequest),
        ):
            service.submit(client("0"), method="newton-cg", idempotency_key="")
