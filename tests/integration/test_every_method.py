"""Every method that shares training, one request after the other, on one federation of real processes.

Six clients train two rounds, prepared for FedEraser, PGA and FedAU; then requests are filed with the command
that people use, and a second run of the app serves them. Five clients are forgotten first, then samples and classes
of the one that is left. Rounds go over sessions. Exact ridge, which no other method goes with, has a federation of its
own. SISA, HF-online and the second-order methods have live tests of their own.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from server.api.client import DeletionClient
from server.cli import app
from server.ledger import Ledger
from strategies.settings.run_config import RunSettings
from tests.federation import InProcessFederation
from tests.integration.conftest import REPOSITORY
from tests.integration.deployments import FrugalDeployment
from tests.integration.live_federation import OVER_SESSIONS, SETTINGS, WAIT_S, hashes
from unlearning.methods.registry import METHODS
from unlearning.requests import DeletionRequest, Granularity, Status, Target
from unlearning.tasks import load_site

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(1500)]

NUM_CLIENTS = 6
SAMPLES = 3
RUN_CONFIG: Mapping[str, Any] = {
    **SETTINGS,
    "num-clients": NUM_CLIENTS,
    "partition": "iid",  # some examples of every class with the last client
    "rounds": 2,
    "recovery-max-rounds": 0,
    "max-score-loss": 0.0,  # with no recovery
    "max-examples": 360,
    "attack-samples": 10,
}

REQUESTS: Sequence[tuple[str, str]] = (
    ("federaser", "--client 1"),
    ("pga", "--client 2"),
    ("mode", "--client 3 --parameter degradation_rounds=1 --parameter guidance_rounds=1"),
    ("fedmemprune", "--client 4"),
    ("fedquit", "--client 5 --parameter learning_rate=0.001"),
    ("fedau-learning", "--client 0 --samples {ids}"),
    ("natural", "--class 1"),
    ("puf-special", "--class 2"),
    ("puf-regular", "--class 3"),
    ("not", "--class 4"),
    ("fedau", "--class 5"),
    ("gradient-ascent", "--class 6"),
    ("neggrad-plus", "--class 7 --parameter rounds=1"),
    ("fedosd", "--class 0 --parameter unlearning_rounds=1 --parameter post_training_rounds=1"),
    ("retrain", "--class 8 --parameter rounds=1"),
)
"""In their order. Of one target there may be one open request, hence the classes; 9 is left to train on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """The federation after all requests, in their order.

    kept: the files that methods kept, by the side that kept them, after training.
    left: the same after all deletions.
    replayed: the same requests served in this process.
    """

    requests: list[DeletionRequest]
    reports: list[dict[str, Any]]
    kept: dict[str, list[str]]
    left: dict[str, list[str]]
    replayed: list[DeletionRequest]


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> History:
    """Live through it once."""
    preparations = "federaser; pga; fedau-learning clients=0 samples={ids}"
    return lived_through(tmp_path_factory.mktemp("every-method"), RUN_CONFIG, preparations, REQUESTS)


def lived_through(
    directory: Path, run_config: Mapping[str, Any], preparations: str, asked: Sequence[tuple[str, str]]
) -> History:
    """Train, file the requests and serve them; `{ids}` are some samples of client 0."""
    ids = sorted(load_site(RunSettings.from_run_config(run_config).task(), 0).train.ids.tolist())[:SAMPLES]
    (directory / "ids.txt").write_text("\n".join(ids))
    run_config = {**run_config, "prepare": preparations.format(ids=",".join(ids))}
    deployment = FrugalDeployment(
        directory / "federation",
        num_clients=run_config["num-clients"],
        app_dir=REPOSITORY,
        run_config={**run_config, **OVER_SESSIONS},
        with_deletion_service=True,
        with_sessions=True,
    )
    layout = deployment.layout
    layout.state_dir.mkdir(parents=True)
    with (
        closing(Ledger.open(layout.ledger_url)) as ledger,
        deployment,
        DeletionClient(layout.deletion_address) as service,
    ):
        run(deployment)
        kept = kept_files(deployment)
        for method, target in asked:
            words = target.format(ids=directory / "ids.txt").split()
            command = ["--server", layout.deletion_address, "request", *words, "--method", method]
            done = CliRunner().invoke(app, command)
            assert done.exit_code == 0, f"{command}: {done.output}"
        run(deployment)
        requests = ledger.requests.select()
        assert [request.status for request in requests] == [Status.COMPLETED] * len(requests), [
            request.reason for request in requests
        ]
        return History(
            requests=requests,
            reports=[json.loads(service.report(request.id).json) for request in requests],
            kept=kept,
            left=kept_files(deployment),
            replayed=served_in_process(directory / "in-process", run_config, requests, ids),
        )


def run(deployment: FrugalDeployment) -> None:
    """Run the app to its end."""
    number = deployment.submit_run()
    status = deployment.wait_until_finished(number, 4 * WAIT_S)
    assert status == "finished:completed", deployment.control.log(number)


def kept_files(deployment: FrugalDeployment) -> dict[str, list[str]]:
    """What methods keep at each client and, of each client, on the server: names of files."""
    layout = deployment.layout
    clients = range(layout.num_clients)
    found = {f"client {number}": (layout.client_dir(number) / "state" / "kept") for number in clients}
    names = {
        who: sorted(path.relative_to(place).parts[0] for path in place.glob("**/*.npz"))
        for who, place in found.items()
    }
    for number in clients:
        entries = (layout.state_dir / "kept").glob(f"*/*/{number}/*.npz")
        names[f"server, client {number}"] = sorted(path.parts[-4] for path in entries)
    return names


def served_in_process(
    directory: Path, run_config: Mapping[str, Any], requests: list[DeletionRequest], ids: Iterable[str]
) -> list[DeletionRequest]:
    """The same training and the same requests with the clients in this process."""
    with closing(InProcessFederation(directory, run_config)) as federation:
        federation.run()
        for request in requests:
            target = request.target
            if target.granularity is Granularity.SAMPLE:  # the ledger has given its ids back
                target = Target(Granularity.SAMPLE, target.client_id, frozenset(ids))
            federation.file(target, request.method, **request.parameters)
        federation.run()
        return federation.ledger.requests.select()


def test_no_method_is_left_out() -> None:
    """Those that train in another way, and those of the second order, are shown elsewhere."""
    elsewhere = {"sisa", "hf-online", "exact-ridge", "newton-cg", "hf-kcu", "hf-kcu-influence"}
    assert {method for method, _ in REQUESTS} == set(METHODS) - elsewhere


def test_the_models_are_those_of_the_same_requests_in_one_process(history: History) -> None:
    """To the bit: before, after unlearning and at the end of each deletion."""
    assert list(map(hashes, history.requests)) == list(map(hashes, history.replayed))


def test_exact_ridge_forgets_a_client_samples_and_a_class_to_the_same_bits(tmp_path: Path) -> None:
    """Its sums travel; the reports carry the certificate."""
    config = {**RUN_CONFIG, "num-clients": 3, "partition": SETTINGS["partition"]}
    asked = [("exact-ridge", target) for target in ("--client 1", "--client 0 --samples {ids}", "--class 3")]
    history = lived_through(tmp_path, config, "exact-ridge", asked)
    models = list(map(hashes, history.requests))
    assert models == list(map(hashes, history.replayed))
    assert all(model["model_hash_unlearned"] != model["model_hash_before"] for model in models)
    for report in history.reports:
        assert report["unlearning"]["findings"]["certificate"].startswith("exact: ")


def test_each_deletion_starts_from_the_one_before(history: History) -> None:
    """The requests share one model, one after the other."""
    models = [hashes(request) for request in history.requests]
    before = [model["model_hash_before"] for model in models]
    after = [model["model_hash_after"] for model in models]
    assert before[1:] == after[:-1]
    changed = [
        request.method
        for request, model in zip(history.requests, models, strict=True)
        if model["model_hash_unlearned"] != model["model_hash_before"]
    ]
    assert changed == [request.method for request in history.requests if request.method != "natural"]


def test_each_report_is_of_its_deletion_and_verified(history: History) -> None:
    """The service hands out the report with the ledger's models; forgotten data was measured before and after."""
    for request, report in zip(history.requests, history.reports, strict=True):
        assert report["request"]["method"] == request.method
        assert report["model_hash_after"] == request.result["model_hash_after"]
        stages = {item["stage"]: item for item in report["measurements"]}
        assert set(stages) == {"before", "unlearned"}, request.method
        assert stages["before"]["forgotten"]["num_examples"] >= SAMPLES, request.method
        assert stages["unlearned"]["attacks"], request.method


def test_nothing_is_left_of_what_was_kept_of_the_forgotten(history: History) -> None:
    """Each side had kept what its methods need, of every client; all of them have something forgotten."""
    for number in range(NUM_CLIENTS):
        heads = {"fedau-learning"} if number == 0 else set()
        assert set(history.kept[f"client {number}"]) == {"pga"} | heads
        assert history.kept[f"server, client {number}"] == ["federaser", "federaser"]
    assert history.left == {who: [] for who in history.kept}
