"""What deletions with noise use up of a budget, on a live federation: reports, the ledger, the door, restarts."""

import json

import numpy as np
import pytest

from server.accounting import FINDING, earlier_releases
from server.certificate import decode
from server.certificate_checks import Outcome, check_replay
from server.checkpoints import CheckpointStore
from server.ledger import Ledger
from tests.federation import InProcessFederation, client
from tests.kills import Killer
from unlearning.certified import analytic_sigma, create_key
from unlearning.errors import UnsupportedRequest
from unlearning.methods.carried_vector_options import CarriedVectorOptions
from unlearning.methods.carried_vectors import kept_vector
from unlearning.parameters import content_hash
from unlearning.requests import Status
from unlearning.stores import DirectoryStore

SMALL = {
    "num_clients": 3,
    "max_examples": 90,
    "recovery_max_rounds": 0,
    "attack_samples": 20,
    "learning_rate": 0.02,
    "weight_decay": 0.1,
    "dtype": "float64",
}
BUDGET = "hf-online feature_norm=9 sigma=2 epsilon=1 delta=1e-5"


def account(one: InProcessFederation, request_id: str) -> dict:
    """What the report of a deletion says of the account."""
    report = json.loads((one.directory / "reports" / request_id / "report.json").read_text())
    return report["unlearning"]["findings"][FINDING]


def deleted(one: InProcessFederation, name: str, rounds: int, **parameters) -> dict:
    """The account after a deletion, which must have been completed."""
    request = one.file(client(name), "hf-online", **parameters)
    one.run(rounds=rounds)
    assert one.ledger.get(request.id).status is Status.COMPLETED, one.ledger.get(request.id).reason
    return account(one, request.id)


def test_the_budget_is_used_up_by_all_deletions_together_and_the_bound_is_proven(federation):
    """Logistic regression with L2: certified; the second deletion's Δ contains the first's, over a restart."""
    one = federation(prepare=BUDGET, **SMALL)
    one.run(rounds=2)
    first = deleted(one, "1", rounds=3)
    one.new_grid()
    second = deleted(one, "2", rounds=4)
    assert [first["basis"], second["basis"]] == ["proven", "proven"]
    assert first["statement"].startswith("Certified: ")
    assert first["sensitivity_is_bound"]
    assert 0 < first["sensitivity"] < second["sensitivity"]
    ratio = np.hypot(first["sensitivity"] / 2, second["sensitivity"] / 2)
    assert second["num_releases"] == 2
    assert ratio * analytic_sigma(
        epsilon=second["spent_epsilon"], delta=1e-5, sensitivity=1
    ) == pytest.approx(1)
    assert first["spent_epsilon"] < second["spent_epsilon"] < 1


def test_a_deletion_that_would_exceed_the_budget_is_refused_at_the_door(federation):
    """With what is used up and what to do; nothing is written down. Less noise than the vectors' error needs."""
    one = federation(prepare=BUDGET.replace("sigma=2", "sigma=0.001"), **SMALL)
    one.run(rounds=2)
    with pytest.raises(
        UnsupportedRequest, match=r"exceed the federation's budget of epsilon = 1 .*Choose retrain"
    ):
        one.file(client("1"), "hf-online")
    assert one.ledger.list_requests() == []


@pytest.mark.slow
def test_requests_that_are_too_much_together_are_counted_one_by_one(federation):
    """Both pass the door; the first is served and the second, which the budget no longer has room for, fails."""
    plan = federation(name="plan", prepare=BUDGET, **SMALL)
    plan.run(rounds=2)
    _, both = (deleted(plan, name, rounds=2)["sensitivity"] for name in ("1", "2"))
    sigma = analytic_sigma(epsilon=1, delta=1e-5, sensitivity=both / 2)
    one = federation(prepare=BUDGET.replace("sigma=2", f"sigma={sigma:.6g}"), **SMALL)
    one.run(rounds=2)
    before = [one.file(client(name), "hf-online") for name in ("1", "2")]
    one.run(rounds=2)
    first, second = (one.ledger.get(request.id) for request in before)
    assert first.status is Status.COMPLETED
    assert second.status is Status.FAILED
    assert "exceed the federation's budget" in second.reason
    assert not second.retryable
    assert one.checkpoint().parameters.shape == plan.checkpoint().parameters.shape
    assert content_hash(one.checkpoint().parameters) == first.result["model_hash_after"]


@pytest.mark.parametrize(
    ("changes", "prepare", "basis", "words"),
    [
        ({}, "hf-online", "none", "no noise was added"),
        (
            {"model": "mlp"},
            "hf-online clients=1 sigma=0.01 epsilon=50 delta=1e-5 sensitivity=0.01",
            "empirical",
            "not known to be convex",
        ),
        ({"momentum": 0.5}, BUDGET + " sensitivity=0.01", "empirical", "not plain SGD"),
        ({"weight_decay": 0.0}, BUDGET + " sensitivity=0.01", "empirical", "no L2 term"),
    ],
)
def test_what_is_not_proven_is_not_called_certified(federation, changes, prepare, basis, words):
    """No noise, a network, momentum, no L2: the report says what is missing."""
    one = federation(prepare=prepare, **{**SMALL, **changes})
    one.run(rounds=2)
    found = deleted(one, "1", rounds=2)
    assert found["basis"] == basis
    assert words in found["statement"]
    assert "Certified" not in found["statement"]


def test_a_budget_without_any_sensitivity_serves_nobody(federation):
    """Noise that nothing is known of would be spent for nothing."""
    one = federation(prepare="hf-online sigma=2 epsilon=1 delta=1e-5", **SMALL)
    one.run(rounds=1)
    with pytest.raises(UnsupportedRequest, match="Give feature_norm, or a measured sensitivity"):
        one.file(client("1"), "hf-online")


def test_a_request_with_noise_of_its_own_is_refused_where_there_is_a_budget(federation):
    """Its noise would not be the one that is counted."""
    one = federation(prepare=BUDGET, **SMALL)
    one.run(rounds=1)
    with pytest.raises(UnsupportedRequest, match="set in prepare"):
        one.file(client("1"), "hf-online", epsilon=1.0, delta=1e-5, sensitivity=0.1)


def test_a_client_with_larger_features_than_declared_does_not_train(federation):
    """The declared norm is what the proof rests on; the round says whom it left out."""
    one = federation(prepare=BUDGET.replace("feature_norm=9", "feature_norm=1"), **SMALL)
    one.run(rounds=1)
    (record,) = one.ledger.rounds()
    assert record.metrics["participants"] == []
    assert "declared feature_norm=1" in str(record.metrics["failed"])


@pytest.mark.slow
def test_a_kill_around_the_completion_changes_neither_model_nor_account(federation, tmp_path, monkeypatch):
    """With a key file the noise is that of the deletion: done again it is the same, and it is counted once."""
    create_key(tmp_path / "kept.key")
    settings = {
        **SMALL,
        "rounds": 3,
        "requests": "at=2 client=1 method=hf-online",
        "prepare": f"{BUDGET} key_file={tmp_path / 'kept.key'}",
    }
    killer = Killer(monkeypatch, ((CheckpointStore, "save"), (Ledger, "move")))
    outcomes = []
    whole = federation(name="whole", **settings)
    outcomes.append((content_hash(whole.run().parameters), account(whole, "r-000001")))
    total = killer.passed
    for back in (5, 9):
        one = federation(name=f"killed-{back}", **settings)
        state = killer.survive(one, total - back)
        outcomes.append((content_hash(state.parameters), account(one, "r-000001")))
        assert len(earlier_releases(one.ledger)[0]) == 1
    assert outcomes[1] == outcomes[0]
    assert outcomes[2] == outcomes[0]


def test_the_certificate_states_the_account_and_its_replay_draws_the_same_noise(federation, tmp_path):
    """The noise is drawn anew from the key file; the certificate of another method has no such field."""
    create_key(tmp_path / "kept.key")
    one = federation(prepare=f"{BUDGET} key_file={tmp_path / 'kept.key'}", keep_replay_inputs=True, **SMALL)
    one.run(rounds=2)
    found = deleted(one, "1", rounds=2)
    certificate = decode(
        (one.directory / "reports" / "r-000001" / "certificate.json").read_bytes()
    ).certificate
    assert certificate.privacy is not None
    assert certificate.privacy.statement == found["statement"]
    assert certificate.privacy.spent_epsilon == found["spent_epsilon"]
    assert check_replay(certificate, one.directory / "replay" / "r-000001").outcome is Outcome.HOLDS
    one.file(client("2"), "natural")
    one.run(rounds=2)
    other = one.directory / "reports" / "r-000002" / "certificate.json"
    assert "privacy" not in json.loads(other.read_text())["certificate"]


def test_with_a_key_nothing_that_is_kept_is_in_the_clear_and_the_forgotten_is_gone(federation, tmp_path):
    """Vectors and the rounds' lengths, also in the copies for a replay; no file names the client any more."""
    create_key(tmp_path / "kept.key")
    one = federation(prepare=f"{BUDGET} key_file={tmp_path / 'kept.key'}", keep_replay_inputs=True, **SMALL)
    one.run(rounds=2)
    kept = list((one.directory / "kept").rglob("*.npz"))
    assert len(kept) == 8  # the last two of three clients and of the lengths
    options = CarriedVectorOptions(key_file=str(tmp_path / "kept.key"), feature_norm=9)
    store = DirectoryStore(one.directory / "kept" / "hf-online" / "0")
    secrets = [kept_vector(options, store, name).tobytes()[:24] for name in "012"] + [b"learning_rate"]
    folder = one.directory / "kept" / "hf-online" / "0" / "1"
    overwritten = [path.open("rb") for path in sorted(folder.glob("*.npz"))]
    deleted(one, "1", rounds=2)
    for path in [*(one.directory / "kept").rglob("*.npz"), *(one.directory / "replay").rglob("*.npz")]:
        if not path.name.startswith(("begin", "after")):  # the models
            assert not any(secret in path.read_bytes() for secret in secrets), path
    assert not folder.exists()
    for file in overwritten:  # opened before they were removed: what is on the disk now
        with file:
            assert set(file.read()) == {0}


def test_repairing_goes_on_for_as_many_rounds_as_asked(federation):
    """Although the stop rule holds at once; the others' vectors are carried on in them."""
    one = federation(prepare="hf-online", **{**SMALL, "recovery_max_rounds": 1, "recovery_tolerance": 1.0})
    one.run(rounds=2)
    request = one.file(client("1"), "hf-online", repair_rounds=3)
    one.run(rounds=2)
    assert one.ledger.get(request.id).result["recovery_rounds"] == 3
    assert DirectoryStore(one.directory / "kept" / "hf-online" / "0").rounds("2") == [5, 6]
