"""Exact ridge on real processes over sessions: sums travel, and the models are those of one process to the bit."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from server.api.client import DeletionClient
from server.cli import app
from server.ledger import Ledger
from strategies.run_config import RunSettings
from tests.integration.conftest import REPOSITORY
from tests.integration.deployments import FrugalDeployment
from tests.integration.live_federation import OVER_SESSIONS, SETTINGS, hashes
from tests.integration.test_every_method import run, served_in_process
from unlearning.requests import Status
from unlearning.tasks import load_site

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(900)]

NUM_CLIENTS = 3
RUN_CONFIG: Mapping[str, Any] = {
    **SETTINGS,
    "num-clients": NUM_CLIENTS,
    "prepare": "exact-ridge",
    "rounds": 2,
    "recovery-max-rounds": 0,
    "max-examples": 300,
    "attack-samples": 10,
}


def test_a_client_samples_and_a_class_are_forgotten_to_the_same_bits(tmp_path: Path) -> None:
    """The requests are filed by the command that people use; the reports carry the certificate."""
    ids = sorted(load_site(RunSettings.from_run_config(RUN_CONFIG).task(), 0).train.ids.tolist())[:5]
    (tmp_path / "ids.txt").write_text("\n".join(ids))
    deployment = FrugalDeployment(
        tmp_path / "federation",
        num_clients=NUM_CLIENTS,
        app_dir=REPOSITORY,
        run_config={**RUN_CONFIG, **OVER_SESSIONS},
        with_deletion_service=True,
        with_sessions=True,
    )
    deployment.layout.state_dir.mkdir(parents=True)
    ledger = Ledger.open(deployment.layout.ledger_url)
    with deployment, DeletionClient(deployment.layout.deletion_address) as service:
        run(deployment)
        for target in ("--client 1", f"--client 0 --samples {tmp_path / 'ids.txt'}", "--class 3"):
            command = ["--server", deployment.layout.deletion_address, "request", *target.split()]
            done = CliRunner().invoke(app, [*command, "--method", "exact-ridge"])
            assert done.exit_code == 0, done.output
        run(deployment)
        requests = ledger.list_requests()
        assert [one.status for one in requests] == [Status.COMPLETED] * 3, [one.reason for one in requests]
        reports = [json.loads(service.report(one.id).json) for one in requests]
    ledger.close()
    replayed = served_in_process(tmp_path / "in-process", RUN_CONFIG, requests, ids)
    assert [hashes(one) for one in requests] == [hashes(one) for one in replayed]
    for request, report in zip(requests, reports, strict=True):
        assert request.result["model_hash_unlearned"] != request.result["model_hash_before"]
        assert report["unlearning"]["findings"]["certificate"].startswith("exact: ")
