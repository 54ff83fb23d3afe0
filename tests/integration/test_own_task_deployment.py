"""An own app on real processes over sessions: own training, a frozen backbone, and data that stay in files."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from server.api.client import DeletionClient
from server.federation.checkpoints import CheckpointStore
from server.ledger import Ledger
from server.processes.flower_control import flower_environment, program
from tests import own_pictures
from tests.integration.deployments import FrugalDeployment
from unlearning.errors import UnsupportedRequest
from unlearning.requests import Granularity, Status, Target

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

WAIT_S = 400.0


def test_samples_of_files_are_forgotten_from_a_head_trained_by_its_own_loop(tmp_path: Path):
    """82 numbers travel; a method that needs derivatives is refused when it is asked for; the deletion ends."""
    done = [program("flower-unlearn"), "new", "pictures", "--directory", str(tmp_path)]
    subprocess.run(done, env=flower_environment(), check=True, capture_output=True, timeout=120)
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
        deployment.submit_run()
        ledger = Ledger.open(layout.ledger_url)
        deployment.wait_until(lambda: len(list(ledger.all_rounds())) >= 3, WAIT_S, "three rounds are over")
        service = DeletionClient(layout.deletion_address)
        with pytest.raises(
            UnsupportedRequest, match=r"trains by its own function pictures\.task\.own_training"
        ):
            service.submit(Target(Granularity.CLIENT, "0"), method="newton-cg", idempotency_key="")
        target = Target(Granularity.SAMPLE, "1", frozenset({"3", "17", "20"}))
        request = service.submit(target, method="puf-special", idempotency_key="")
        deployment.wait_until(lambda: not ledger.get(request.id).is_open, WAIT_S, "the deletion is over")
        assert ledger.get(request.id).status is Status.COMPLETED
        state = CheckpointStore(layout.state_dir / "checkpoints").newest()
        assert state is not None
        assert state.parameters.shape == (82,)
        (path,) = layout.state_dir.glob("reports/*/report.json")
        report = json.loads(path.read_text(encoding="utf-8"))
        assert report["measurements"][-1]["test"]["score"] > 0.9
