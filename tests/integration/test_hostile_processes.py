"""A federation of real processes in which one ClientApp answers with the worst: the others' rounds go on."""

import shutil

import pytest

from benchmarks.deployment import SUPEREXEC, LocalDeployment
from server.ledger import Ledger
from tests.integration.conftest import REPOSITORY
from tests.integration.hostile_client import FORGED, HOSTILE

pytestmark = [pytest.mark.slow, pytest.mark.long]


def test_the_rounds_of_the_others_go_on_whatever_one_client_answers(tmp_path):
    """One kind a round: each is refused or failed by name, the run completes, and no line of the log is forged."""
    app = tmp_path / "app"
    app.mkdir()
    shutil.copy(REPOSITORY / "README.md", app)
    text = (REPOSITORY / "pyproject.toml").read_text()
    (app / "pyproject.toml").write_text(
        text.replace('clientapp = "client.app:app"', 'clientapp = "tests.integration.hostile_client:app"')
    )
    config = {
        "dataset": "digits",
        "model": "logistic",
        "num-clients": 3,
        "rounds": len(FORGED),
        "evaluate-every": 0,
        "max-norm-factor": 0.0,
        "state-dir": str(tmp_path / "state"),
        "round-timeout-s": 120.0,
    }
    with LocalDeployment(
        tmp_path / "federation",
        num_clients=3,
        app_dir=app,
        run_config=config,
        environment={"PYTHONPATH": str(REPOSITORY)},
    ) as deployment:
        run_id = deployment.submit_run({})
        assert deployment.wait_until_finished(run_id, 600) == "finished:completed", deployment.control.log(
            run_id
        )
        log = deployment.control.log(run_id) + deployment.group(SUPEREXEC).log_text()
    ledger = Ledger.open(f"sqlite:///{tmp_path / 'state' / 'ledger.db'}")
    records = dict(zip(FORGED, [record.metrics for record in ledger.rounds()], strict=True))
    assert ledger.requests.select() == []
    [refusal] = ledger.refusals()
    ledger.close()
    others = {kind: metrics["participants"] for kind, metrics in records.items() if kind != "filing"}
    assert others == {kind: ["0", "1"] for kind in others}
    assert records["filing"]["participants"] == ["0", "1", HOSTILE]  # its model is good
    assert refusal.detail["count"] == 20
    for kind in set(FORGED) - {"raising", "filing"}:
        assert HOSTILE in records[kind]["refused"], kind
    assert records["raising"]["failed"][HOSTILE].isprintable()
    assert "2026-01-01 INFO" not in "\n".join(line[:16] for line in log.splitlines())
