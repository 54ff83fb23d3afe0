"""SIGKILL of real sites at each stage of a round of secure aggregation: the model is the sum of those that remained."""

import shutil
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.deployment import LocalDeployment, supernode
from server.federation.checkpoints import CheckpointStore
from server.ledger import Ledger, RoundRecord
from strategies.settings.run_config import RunSettings
from tests.integration.conftest import REPOSITORY
from tests.integration.deployments import FrugalDeployment
from tests.waiting import HANGS_S
from unlearning.local import begin, learn
from unlearning.parameters import Vector
from unlearning.tasks import load_site, make_task

pytestmark = [pytest.mark.slow, pytest.mark.long]

NUM_CLIENTS = 4
SETTINGS = {
    "dataset": "digits",
    "model": "logistic",
    "partition": "iid",
    "learning-rate": 0.5,
    "num-clients": NUM_CLIENTS,
    "max-examples": 400,
    "rounds": 0,
    "round-interval-s": 2.0,
    "evaluate-every": 0,
    "threshold": 0.5,
    "wait-timeout-s": 120.0,
    "round-timeout-s": 120.0,
}
IN_THE_SUM = {"advertised": 3, "shared": 3, "masked": 3, "confirmed": 4, "unmasked": 4}
"""By what a site had made durable when it was killed, before it could answer: clients in the round's sum."""


class Federation:
    """Four sites that share rounds over sessions, and what the ledger says of them."""

    def __init__(self, directory: Path) -> None:
        app = directory / "app"
        app.mkdir()
        shutil.copy(REPOSITORY / "README.md", app)
        text = (REPOSITORY / "pyproject.toml").read_text()
        (app / "pyproject.toml").write_text(
            text.replace('"client.app:app"', '"tests.integration.waiting_client:app"')
        )
        self.deployment: LocalDeployment = FrugalDeployment(
            directory / "federation",
            num_clients=NUM_CLIENTS,
            app_dir=app,
            run_config=SETTINGS,
            with_sessions=True,
            secure_aggregation=True,
            environment={"PYTHONPATH": str(REPOSITORY)},
        )
        self.state_dir = directory / "state"
        self.deployment.run_config |= {"transport": "session", "state-dir": str(self.state_dir)}
        self.seen = 0

    def rounds(self) -> list[RoundRecord]:
        path = self.state_dir / "ledger.db"
        if not path.exists():
            return []
        with closing(Ledger.open(f"sqlite:///{path}")) as ledger:
            return sorted(ledger.rounds(), key=lambda record: record.round)

    def next_round(self, *, in_sum: int | None, what: str) -> RoundRecord:
        """The next round, from those seen on, that was over so many clients; None: that was given up."""

        def found() -> RoundRecord | None:
            later = (record for record in self.rounds() if record.round > self.seen)
            return next((one for one in later if size(one) == in_sum), None)

        self.deployment.wait_until(lambda: found() is not None, HANGS_S, what, poll_s=0.5)
        record = found()
        assert record is not None
        self.seen = record.round
        return record

    def kill_at(self, client: int, stage: str) -> None:
        """Kill a site with SIGKILL when it has made this stage of its next round durable."""
        directory = self.deployment.layout.client_dir(client)
        (directory / "wait-at").write_text(stage)
        waits = directory / "waits"
        self.deployment.wait_until(waits.exists, HANGS_S, f"client {client} is at {stage}", poll_s=0.05)
        newest = self.rounds()
        self.seen = newest[-1].round if newest else 0
        self.deployment.kill(supernode(client))
        waits.unlink()


def size(record: RoundRecord) -> int | None:
    secure = record.metrics.get("secure")
    return None if secure is None else secure["in_sum"]


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    federation = Federation(tmp_path_factory.mktemp("secure-kills"))
    with federation.deployment as deployment:
        deployment.submit_run()
        federation.next_round(in_sum=NUM_CLIENTS, what="a round of all")
        yield federation


@pytest.mark.parametrize("stage", IN_THE_SUM)
def test_a_site_killed_at_a_stage_is_left_out_or_its_vector_is_in_the_sum(
    live: Federation, stage: str
) -> None:
    """The round ends with those that are left; the site comes back, and the next round is whole."""
    live.kill_at(0, stage)
    record = live.next_round(in_sum=IN_THE_SUM[stage], what=f"the round without the site at {stage}")
    assert "0" in record.metrics["failed"]
    assert ("0" in record.metrics["participants"]) == (IN_THE_SUM[stage] == NUM_CLIENTS)
    live.deployment.start(supernode(0))
    live.next_round(in_sum=NUM_CLIENTS, what="a round of all")


def test_with_too_few_sites_left_the_round_is_given_up_and_the_next_one_runs(live: Federation) -> None:
    """Two of four have sent masked vectors; the server learns nothing of them."""
    live.kill_at(0, "advertised")
    live.next_round(in_sum=3, what="a round of three")
    live.kill_at(1, "shared")
    record = live.next_round(in_sum=None, what="a round is given up")
    assert record.metrics["participants"] == []
    for client in (0, 1):
        live.deployment.start(supernode(client))
    live.next_round(in_sum=NUM_CLIENTS, what="a round of all")


def test_the_model_is_the_one_of_the_sums_of_those_that_remained(live: Federation) -> None:
    """Every round is done again in this process in the clear, by the clients that the ledger names."""
    state = CheckpointStore(live.state_dir / "checkpoints").newest()
    assert state is not None
    records = [record for record in live.rounds() if record.round <= state.round]
    assert {size(record) for record in records} >= {3, NUM_CLIENTS, None}
    np.testing.assert_allclose(state.parameters, in_the_clear(records), rtol=0, atol=1e-5)


def in_the_clear(records: list[RoundRecord]) -> Vector:
    """The model of these rounds, each by its participants; one that was given up or not committed changes nothing."""
    settings = RunSettings().with_changes({**SETTINGS, "state-dir": ""})
    task = make_task(settings.task())
    sites = {str(client): load_site(settings.task(), client).train for client in range(NUM_CLIENTS)}
    learnt = begin(task, settings.training(1))
    for record in records:
        is_lost = size(record) is None or "not_committed" in record.metrics
        lost = record.round - learnt.next_round + is_lost
        learnt = replace(learnt, exchanges=learnt.exchanges + lost)
        if not is_lost:
            there = {name: sites[name] for name in record.metrics["participants"]}
            learnt = learn(task, there, learnt, rounds=1)
    return learnt.parameters
