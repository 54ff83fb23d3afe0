"""The apps in examples/: each one's own test, and a deletion in Flower's simulation; on real processes by name."""

import json
import os
import sys
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from server.ledger import Ledger
from server.operations.flower_control import FLOWER_ENVIRONMENT, ConfigValue
from tests.federation import client
from tests.integration.conftest import REPOSITORY
from tests.integration.deployments import FrugalDeployment
from tests.integration.live_federation import forget
from tests.integration.own_app_deployment import simulate
from tests.ledgers import new_database
from tests.programs import run_well

pytestmark = pytest.mark.slow


@dataclass(frozen=True, kw_only=True)
class Example:
    """An app of examples/, and the smallest form in which it is run."""

    name: str
    num_clients: int
    method: str
    settings: Mapping[str, ConfigValue] = field(default_factory=dict)

    @property
    def directory(self) -> Path:
        return REPOSITORY / "examples" / self.name

    def python(self, *arguments: str, **environment: str) -> str:
        """Run Python in the app's directory; return what it printed."""
        path = os.pathsep.join([str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])])
        known = {**os.environ, **FLOWER_ENVIRONMENT, "PYTHONPATH": path}
        return run_well([sys.executable, *arguments], self.directory, {**known, **environment})

    def settings_in(self, directory: Path) -> dict[str, ConfigValue]:
        """Its settings, with made-up patients in `directory` where it wants patients."""
        if self.name != "hospitals":
            return {**self.settings}
        self.python("-m", "hospitals.made_up", str(directory / "data"))
        return {**self.settings, "hospitals.data": str(directory / "data")}


HOSPITALS = Example(name="hospitals", num_clients=4, method="puf-special", settings={"local-epochs": 8})
FINETUNE = Example(
    name="finetune",
    num_clients=4,
    method="newton-cg",
    settings={"num-clients": 4, "local-epochs": 4, "weight-decay": 0.001},
)
EXAMPLES = [pytest.param(one, id=one.name) for one in (HOSPITALS, FINETUNE)]
IN_THE_GATE = [EXAMPLES[0], pytest.param(FINETUNE, id=FINETUNE.name, marks=pytest.mark.long)]


@pytest.mark.parametrize("example", IN_THE_GATE)
def test_its_own_test_passes(example: Example):
    """As its README says."""
    assert " passed" in example.python("-m", "pytest", "-q", "-p", "no:cacheprovider")


@pytest.mark.long
def test_the_hospitals_ledger_may_be_in_postgresql(postgresql_server: str):
    """As its README says."""
    with new_database(postgresql_server) as url:
        known = url.render_as_string(hide_password=False)
        told = HOSPITALS.python(
            *("-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "test_a_hospital_is_forgotten"),
            FLOWER_UNLEARNING_LEDGER=known,
        )
        assert "1 passed" in told
        with closing(Ledger.open(known)) as ledger:
            assert [request.method for request in ledger.requests.select()] == [HOSPITALS.method]


@pytest.mark.long
@pytest.mark.parametrize("example", EXAMPLES)
def test_it_learns_and_forgets_in_simulation(example: Example, tmp_path: Path):
    """Its code comes to the nodes by Flower."""
    settings = {
        **example.settings_in(tmp_path),
        "rounds": 6,
        "recovery-max-rounds": 1,
        "requests": f"at=4 client=1 method={example.method}",
    }
    state = simulate(tmp_path / "federation", example.directory, settings, num_clients=example.num_clients)
    (path,) = state.glob("reports/*/report.json")
    check(example, json.loads(path.read_text(encoding="utf-8")))


@pytest.mark.long
@pytest.mark.parametrize("example", EXAMPLES)
def test_it_learns_and_forgets_on_real_processes(example: Example, tmp_path: Path):
    """By the deletion service."""
    with FrugalDeployment(
        tmp_path / "federation",
        num_clients=example.num_clients,
        app_dir=example.directory,
        run_config={
            **example.settings_in(tmp_path),
            "rounds": 0,
            "round-interval-s": 0.5,
            "recovery-max-rounds": 2,
        },
        with_deletion_service=True,
        with_sessions=True,
    ) as deployment:
        deployment.run_config["transport"] = "session"
        check(example, forget(deployment, client("1"), example.method, after_rounds=4))


def check(example: Example, report: dict[str, Any]) -> None:
    """Client 1 is gone, and what is left of the model still knows more than chance."""
    assert report["request"]["client_id"] == "1"
    assert report["federation"]["task"] == example.name
    assert "1" not in report["federation"]["clients_retained"]
    for one in report["measurements"]:
        print(one["stage"], one["test"]["score"], (one["forgotten"] or {}).get("score"))
    assert report["measurements"][-1]["test"]["score"] > 0.6
