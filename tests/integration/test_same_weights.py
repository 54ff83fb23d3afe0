"""In one process, in Flower's simulation and on real processes the same seed gives the same weights.

The same settings, with three deletions written into them, run on the in-process Grid, by `flwr run . local`
(Ray) and against a SuperLink with SuperNodes, over mutual TLS with certificates by the script and registered keys. A
model's hash is over its bits, so equal hashes are more than equality to a tolerance; the last weights are also compared
as numbers, so that a failure says how far apart they are. In the gate the demo tells its story in the simulation and on
processes.

The same with secure aggregation, by six methods for which sums suffice: sums of integers have no order, so the bits
are the same again, and within fixed point those of the run in the clear.
"""

import json
import subprocess
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from benchmarks.process_group import local_superlink
from server.federation.checkpoints import CheckpointStore
from server.ledger import Ledger
from server.operations.flower_control import ConfigValue, config_argument, flower_environment
from server.state_directory.ledger_address import ledger_url
from strategies.installation import program
from strategies.settings.run_config import RunSettings
from tests.acceptance.test_secure_aggregation import SecureFederation
from tests.federation import InProcessFederation
from tests.integration.conftest import REPOSITORY
from tests.integration.deployments import FrugalDeployment
from tests.integration.live_federation import OVER_SESSIONS, SETTINGS, hashes
from tests.waiting import HANGS_S
from unlearning.parameters import Vector
from unlearning.requests import Status
from unlearning.tasks import load_site

pytestmark = [pytest.mark.slow, pytest.mark.long]

NUM_CLIENTS = 4
RUN_CONFIG: Mapping[str, ConfigValue] = {
    **SETTINGS,
    "num-clients": NUM_CLIENTS,
    "rounds": 4,
    "prepare": "hf-online",  # changes no bit of the models, and the first deletion is its vector
    "requests": "at=1 client=2 method=hf-online; at=2 client=3 method=newton-cg; at=3 client=1 method=puf-regular",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a run ends in.

    models: by request, hashes before, after unlearning, and after recovery. exchanges: by request, of its unlearning.
    """

    weights: Vector
    rounds: list[tuple[str, list[str], int]]
    models: list[dict[str, str]]
    exchanges: list[int]


def outcome_in(state_dir: Path, config: Mapping[str, ConfigValue]) -> Outcome:
    """Read what a run has left in its state directory."""
    state = CheckpointStore(state_dir / "checkpoints").newest()
    assert state is not None
    with closing(Ledger.open(ledger_url(state_dir))) as ledger:
        requests = ledger.requests.select()
        assert [request.status for request in requests] == [Status.COMPLETED] * str(config["requests"]).count(
            "at="
        )
        reports = [
            json.loads((state_dir / "reports" / request.id / "report.json").read_text())
            for request in requests
        ]
        return Outcome(
            weights=state.parameters,
            rounds=[
                (record.kind, record.metrics["participants"], record.metrics["num_examples"])
                for record in ledger.rounds()
            ],
            models=[hashes(request) for request in requests],
            exchanges=[report["unlearning"]["rounds"] for report in reports],
        )


def run_in_process(directory: Path, config: Mapping[str, ConfigValue] = RUN_CONFIG) -> Outcome:
    """The server and client code on the in-process Grid."""
    kind = SecureFederation if config.get("secure-aggregation") else InProcessFederation
    federation = kind(directory, config)
    federation.run()
    federation.close()
    return outcome_in(directory, config)


def run_in_simulation(directory: Path, config: Mapping[str, ConfigValue] = RUN_CONFIG) -> Outcome:
    """`flwr run . local`, as a user calls it."""
    state_dir = directory / "state"
    home = directory / "flower"
    environment = {**flower_environment(home), "RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}
    command = [program("flwr"), "run", str(REPOSITORY), "local", "--stream"]
    command += ["--federation-config", f"num-supernodes={NUM_CLIENTS}"]
    command += ["--run-config", config_argument({**config, "state-dir": str(state_dir)})]
    with local_superlink(home) as variables:
        done = subprocess.run(
            command,
            env={**environment, **variables},
            cwd=directory,
            capture_output=True,
            text=True,
            timeout=HANGS_S,
        )
    assert (state_dir / "ledger.db").exists(), done.stdout + done.stderr
    return outcome_in(state_dir, config)


def run_on_processes(directory: Path, config: Mapping[str, ConfigValue] = RUN_CONFIG) -> Outcome:
    """A SuperLink, a SuperExec, and a SuperNode for each client; rounds over sessions, all with TLS."""
    state_dir = directory / "state"
    config = {**config, **OVER_SESSIONS, "state-dir": str(state_dir)}
    with FrugalDeployment(
        directory,
        num_clients=NUM_CLIENTS,
        app_dir=REPOSITORY,
        run_config=config,
        secure=True,
        with_sessions=True,
        secure_aggregation=bool(config.get("secure-aggregation")),
    ) as deployment:
        run_id = deployment.submit_run()
        status = deployment.wait_until_finished(run_id, HANGS_S)
        assert status == "finished:completed", deployment.control.log(run_id)
    return outcome_in(state_dir, config)


def sums() -> dict[str, ConfigValue]:
    """Settings of a run that forgets some samples of client 1 by each method for which sums suffice."""
    plain = {**SETTINGS, "num-clients": NUM_CLIENTS, "rounds": 6}
    ids = sorted(load_site(RunSettings.from_run_config(plain).task(), 1).train.ids.tolist())
    methods = ("natural", "not", "puf-regular", "newton-cg damping=0.05", "retrain")
    requests = [
        f"at={number + 1} client=1 samples={ids[number]} method={method}"
        for number, method in enumerate(methods)
    ]
    return {**plain, "requests": "; ".join(requests)}


def exact_ridge() -> dict[str, ConfigValue]:
    """Settings of a run of sums of data that forgets samples of client 1, then client 3."""
    plain = sums() | {"prepare": "exact-ridge", "rounds": 4, "recovery-max-rounds": 0}
    samples = str(plain["requests"]).split("samples=")[1].split()[0]
    wanted = f"at=2 client=1 samples={samples} method=exact-ridge; at=3 client=3 method=exact-ridge"
    return {**plain, "requests": wanted}


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """What the run on the in-process Grid ends in."""
    return run_in_process(tmp_path_factory.mktemp("in-process"))


@pytest.mark.parametrize("run", [run_in_simulation, run_on_processes])
def test_the_weights_do_not_depend_on_where_the_federation_runs(
    run: Callable[[Path], Outcome], expected: Outcome, tmp_path: Path
) -> None:
    """Before each deletion, right after its unlearning round, after its recovery, and at the end."""
    found = run(tmp_path)
    assert found.rounds == expected.rounds
    difference = float(np.max(np.abs(found.weights - expected.weights)))
    np.testing.assert_allclose(
        found.weights, expected.weights, rtol=1e-4, atol=1e-7, err_msg=f"largest difference {difference:g}"
    )
    assert found.exchanges == expected.exchanges
    assert found.models == expected.models, f"the last weights differ by {difference:g} at most"


def test_each_deletion_changes_the_model_twice(expected: Outcome) -> None:
    """The hashes compare different models: before, unlearned, recovered; the second deletion has many exchanges."""
    assert [len(set(models.values())) for models in expected.models] == [3, 3, 3]
    assert expected.exchanges[1] > 2
    kinds = [kind for kind, _, _ in expected.rounds]
    assert kinds == ["training", "unlearning", "recovery"] * 3 + ["training"]


@pytest.mark.parametrize(("settings", "most"), [(sums, 1e-3), (exact_ridge, 1e-6)])
def test_sums_give_the_same_model_with_and_without_secure_aggregation(
    tmp_path: Path, settings: Callable[[], dict[str, ConfigValue]], most: float
) -> None:
    """In one process, in the simulation and on real processes."""
    plain = settings()
    secure = {**plain, "secure-aggregation": True}
    in_the_clear = run_in_process(tmp_path / "clear", plain)
    expected = run_in_process(tmp_path / "sums", secure)
    assert len(expected.models) == str(plain["requests"]).count("at=")
    np.testing.assert_allclose(expected.weights, in_the_clear.weights, atol=most)
    for name, run in (("processes", run_on_processes), ("simulation", run_in_simulation)):
        (tmp_path / name).mkdir()
        found = run(tmp_path / name, secure)
        difference = float(np.max(np.abs(found.weights - expected.weights)))
        print(f"{name}: largest difference {difference:g}")
        assert found.rounds == expected.rounds, name
        assert found.models == expected.models, name
