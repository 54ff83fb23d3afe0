"""What deletions with noise use up of a budget, on a live federation: reports, the ledger, admission, restarts."""

import json
import shutil
from collections.abc import Iterable
from datetime import UTC, datetime
from unittest.mock import Mock

import numpy as np
import pytest
from flwr.app import Message

from server.certificate.document import decode
from server.federation.checkpoints import CheckpointStore
from server.federation.gate import Judgement
from server.federation.preparations import Preparations
from server.ledger import LedgerWriter
from server.operations.backup import back_up
from server.requests.privacy_budget import earlier_releases
from server.state_directory.files import NOISE_SECRET, UNDONE_FILE
from strategies.messages import TRAIN, round_of
from tests.federation import InProcessFederation, client
from tests.kills import Killer
from unlearning.certified.noise import analytic_sigma
from unlearning.certified.sealed_vectors import create_key
from unlearning.errors import MethodFailed, TrainingFailed, UnsupportedRequest
from unlearning.methods.hf_online_kept import kept_vector
from unlearning.methods.hf_online_vectors import CarryVectors
from unlearning.outcomes import PRIVACY_ACCOUNT
from unlearning.parameters import content_hash
from unlearning.requests import Outcome, Status
from unlearning.runtime.stores import DirectoryStore

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
    report = one.report(request_id)
    return report["unlearning"]["findings"][PRIVACY_ACCOUNT]


def kept(one: InProcessFederation) -> DirectoryStore:
    """The generation of the method's store that counts."""
    return DirectoryStore(one.directory / "kept" / "hf-online" / one.checkpoint().generations["hf-online"])


def deleted(one: InProcessFederation, name: str, rounds: int, **parameters) -> dict:
    """The account after a deletion, which must have been completed."""
    return account(one, one.forget(client(name), "hf-online", rounds=rounds, **parameters).id)


@pytest.fixture
def trained(federation):
    """Makes federations that have trained for `rounds` rounds."""

    def make(prepare: str = BUDGET, *, rounds: int = 2, **settings: object) -> InProcessFederation:
        one = federation(prepare=prepare, **{**SMALL, **settings})
        one.run(rounds=rounds)
        return one

    return make


def test_the_budget_is_used_up_by_all_deletions_together_and_the_bound_is_proven(trained):
    """Logistic regression with L2: certified; the second deletion's Δ contains the first's, over a restart."""
    one = trained()
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


@pytest.mark.slow
def test_a_deletion_that_the_gate_held_after_recovery_leaves_the_next_one_certified(trained, monkeypatch):
    """Its release is counted; the records go back with the model, so the chain of models is whole."""
    one = trained(recovery_max_rounds=1)
    held = one.file(client("1"), "hf-online")
    with monkeypatch.context() as patched:
        patched.setattr("server.deletion.steps.NOT_COMPARED", Judgement(False, "held", 50.0))
        one.run(rounds=3)
    assert "was not committed" in one.ledger.requests.get(held.id).reason
    second = deleted(one, "2", rounds=4)
    assert second["basis"] == "proven"
    assert second["num_releases"] == 2


def test_a_deletion_that_would_exceed_the_budget_is_refused_on_admission(trained):
    """With what is used up and what to do; nothing is written down. Less noise than the vectors' error needs."""
    one = trained(BUDGET.replace("sigma=2", "sigma=0.001"))
    with pytest.raises(UnsupportedRequest):
        one.file(client("1"), "hf-online")
    assert one.ledger.requests.select() == []


@pytest.mark.slow
def test_requests_that_are_too_much_together_are_counted_one_by_one(trained):
    """Both are admitted; the first is served and the second, which the budget no longer has room for, fails."""
    plan = trained(name="plan")
    _, both = (deleted(plan, name, rounds=2)["sensitivity"] for name in ("1", "2"))
    sigma = analytic_sigma(epsilon=1, delta=1e-5, sensitivity=both / 2)
    one = trained(BUDGET.replace("sigma=2", f"sigma={sigma:.6g}"))
    before = [one.file(client(name), "hf-online") for name in ("1", "2")]
    one.run(rounds=2)
    first, second = (one.ledger.requests.get(request.id) for request in before)
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
        ({"momentum": 0.5}, BUDGET + " sensitivity=0.01", "empirical", "not plain SGD"),
        ({"dtype": "float32"}, BUDGET + " sensitivity=0.01", "empirical", "train in float64"),
    ],
)
def test_what_is_not_proven_is_not_called_certified(trained, changes, prepare, basis, words):
    """No noise, momentum, rounding that can exceed the bound: the report says what is missing."""
    one = trained(prepare, **changes)
    found = deleted(one, "1", rounds=2)
    assert found["basis"] == basis
    assert words in found["statement"]
    assert "Certified" not in found["statement"]


@pytest.mark.parametrize(
    ("prepare", "own_noise"),
    [
        # Noise that nothing is known of would be spent for nothing.
        ("hf-online sigma=2 epsilon=1 delta=1e-5", {}),
        # That of a request would not be the one that is counted.
        (BUDGET, {"epsilon": 1.0, "delta": 1e-5, "sensitivity": 0.1}),
    ],
)
def test_noise_that_cannot_be_counted_serves_no_request(trained, prepare, own_noise):
    """A budget without any sensitivity, or a request with noise of its own where there is a budget."""
    one = trained(prepare, rounds=1)
    with pytest.raises(UnsupportedRequest):
        one.file(client("1"), "hf-online", **own_noise)


def test_a_client_with_larger_features_than_declared_does_not_train(trained):
    """The declared norm is what the proof rests on; a run that leaves everybody out says why."""
    with pytest.raises(TrainingFailed) as caught:
        trained(BUDGET.replace("feature_norm=9", "feature_norm=1"), rounds=1)
    assert "declared feature_norm=1" in str(caught.value)


@pytest.mark.slow
def test_a_kill_around_the_completion_changes_neither_model_nor_account(federation, tmp_path, monkeypatch):
    """The noise is that of the secret and the deletion: done again it is the same, and it is counted once."""
    create_key(tmp_path / "kept.key")
    settings = {
        **SMALL,
        "rounds": 3,
        "requests": "at=2 client=1 method=hf-online",
        "prepare": f"{BUDGET} key_file={tmp_path / 'kept.key'}",
    }
    killer = Killer(monkeypatch, ((CheckpointStore, "save"), (LedgerWriter, "move")))
    outcomes = []
    whole = federation(name="whole", **settings)
    create_key(whole.directory / NOISE_SECRET)
    outcomes.append((content_hash(whole.run().parameters), account(whole, "r-000001")))
    total = killer.passed
    for back in (5, 9):
        one = federation(name=f"killed-{back}", **settings)
        shutil.copy(whole.directory / NOISE_SECRET, one.directory / NOISE_SECRET)
        state = killer.survive(one, total - back)
        outcomes.append((content_hash(state.parameters), account(one, "r-000001")))
        assert len(earlier_releases(one.ledger)) == 1
    assert outcomes[1] == outcomes[0]
    assert outcomes[2] == outcomes[0]


def test_the_certificate_states_the_account(trained):
    """The certificate of another method has no such field."""
    one = trained()
    found = deleted(one, "1", rounds=2)
    certificate = decode(
        (one.directory / "reports" / "r-000001" / "certificate.json").read_bytes()
    ).certificate
    assert certificate.privacy is not None
    assert certificate.privacy.statement == found["statement"]
    assert certificate.privacy.spent_epsilon == found["spent_epsilon"]
    one.file(client("2"), "natural")
    one.run(rounds=2)
    other = one.directory / "reports" / "r-000002" / "certificate.json"
    assert "privacy" not in json.loads(other.read_text())["certificate"]


def test_with_a_key_nothing_that_is_kept_is_in_the_clear_and_the_forgotten_is_gone(trained, tmp_path):
    """Vectors and the rounds' lengths; no file names the client any more."""
    create_key(tmp_path / "kept.key")
    one = trained(f"{BUDGET} key_file={tmp_path / 'kept.key'}")
    kept = list((one.directory / "kept").rglob("*.npz"))
    assert len(kept) == 8  # the last two of three clients and of the lengths
    options = CarryVectors(key_file=str(tmp_path / "kept.key"), feature_norm=9)
    store = DirectoryStore(one.directory / "kept" / "hf-online" / "0")
    secrets = [kept_vector(options, store, name).tobytes()[:24] for name in "012"] + [b"learning_rate"]
    folder = one.directory / "kept" / "hf-online" / "0" / "1"
    overwritten = [path.open("rb") for path in sorted(folder.glob("*.npz"))]
    deleted(one, "1", rounds=2)
    for path in (one.directory / "kept").rglob("*.npz"):
        assert not any(secret in path.read_bytes() for secret in secrets), path
    assert not folder.exists()
    for file in overwritten:  # opened before they were removed: what is on the disk now
        with file:
            assert set(file.read()) == {0}


def test_repairing_goes_on_for_as_many_rounds_as_asked(trained):
    """Although the stop rule holds at once; the others' vectors are carried on in them."""
    one = trained("hf-online", recovery_max_rounds=1, recovery_tolerance=1.0)
    request = one.file(client("1"), "hf-online", repair_rounds=3)
    one.run(rounds=2)
    assert one.ledger.requests.get(request.id).result["recovery_rounds"] == 3
    assert kept(one).rounds("2") == [5, 6]


@pytest.mark.parametrize(
    ("failing", "count", "carried", "said"),
    [
        ({5, 7}, 3, [6, 8], "of 5 recovery rounds 2 left the model as it was"),
        ({4, 5, 6}, 0, [1, 2], "of 3 recovery rounds 3 left the model as it was"),
    ],
)
def test_a_round_in_which_every_client_fails_repairs_nothing(
    trained, monkeypatch, failing, count, carried, said
):
    """Another is asked for in its place, but not without end, and the report says so."""
    one = trained("hf-online", recovery_max_rounds=1, recovery_tolerance=1.0)
    request = one.file(client("1"), "hf-online", repair_rounds=3)
    push = one.grid.push_messages

    def push_but_in_some_rounds(messages: Iterable[Message]) -> Iterable[str]:
        messages = list(messages)
        fails = any(found.metadata.message_type == TRAIN and round_of(found) in failing for found in messages)
        one.grid.broken = set(one.grid.contexts) if fails else set()
        return push(messages)

    monkeypatch.setattr(one.grid, "push_messages", push_but_in_some_rounds)
    one.run(rounds=2)
    assert one.ledger.requests.get(request.id).result["recovery_rounds"] == count
    assert kept(one).rounds("2") == carried
    recovery = one.report(request.id)["recovery"]
    assert recovery["rounds"] == count
    assert recovery["stop_reason"].endswith(f"; {said}")


def restarted(one: InProcessFederation, prepare: str, **settings) -> None:
    """The same state directory, with other settings from now on."""
    one.run_config |= {name.replace("_", "-"): value for name, value in settings.items()}
    one.prepare(prepare)


def test_what_is_declared_later_does_not_certify_the_rounds_before(trained):
    """A norm that they were trained without: nothing was recorded that a proof could rest on."""
    one = trained(BUDGET.replace("feature_norm=9 ", ""), rounds=1)
    restarted(one, BUDGET + " sensitivity=0.01")
    one.run(rounds=2)
    found = deleted(one, "1", rounds=2)
    assert found["basis"] == "empirical"
    assert "No bound on the features' norm is declared" in found["statement"]


def test_a_client_that_never_trained_is_certified_at_zero(federation):
    """Records cover every round, and it is in none; noise is not needed to hide nothing."""
    one = federation(prepare="hf-online clients=1,2", **{**SMALL, "dtype": "float32"})
    one.grid.offline.add(one.node("1"))
    one.run(rounds=2)
    one.grid.offline.clear()
    one.run(rounds=2)
    found = deleted(one, "1", rounds=2)
    assert (found["basis"], found["sensitivity"], found["spent_epsilon"]) == ("proven", 0.0, 0.0)


def test_with_rounds_that_were_not_recorded_even_zero_is_not_certified(trained):
    """Vectors were switched off and on again by hand: the model moved, and no record says by whom."""
    one = trained(BUDGET + " sensitivity=0.01", rounds=1)
    kept, aside = one.directory / "kept", one.directory.parent / "aside"
    kept.rename(aside)
    one.run(rounds=2)
    shutil.rmtree(kept)
    aside.rename(kept)
    found = deleted(one, "1", rounds=2)
    assert found["basis"] == "empirical"
    assert "something moved it of which there is no record" in found["statement"]


@pytest.mark.slow
def test_what_is_set_after_training_does_not_change_what_is_proven_of_it(trained):
    """Another weight decay, feature norm or learning rate from now on: Δ is that of the rounds as they were."""
    found = []
    settings = {"weight_decay": 0.9, "learning_rate": 1e-4}
    for changes, text in (({}, BUDGET), (settings, BUDGET.replace("feature_norm=9", "feature_norm=4000"))):
        one = trained(name=f"server-{len(found)}")
        restarted(one, text, **changes)
        found.append(deleted(one, "1", rounds=2))
    assert [one["basis"] for one in found] == ["proven", "proven"]
    assert found[0]["sensitivity"] == found[1]["sensitivity"] > 0


@pytest.mark.slow
def test_after_a_release_that_rests_on_a_declared_distance_no_later_one_is_certified(federation):
    """The later bound contains the earlier one's, for which there is no proof."""
    one = federation(prepare=BUDGET + " sensitivity=0.01", **{**SMALL, "momentum": 0.5})
    one.grid.offline.add(one.node("2"))
    one.run(rounds=1)
    first = deleted(one, "1", rounds=2)
    restarted(one, BUDGET + " sensitivity=0.01", momentum=0.0)
    one.run(rounds=3)
    second = deleted(one, "2", rounds=4)
    assert (first["basis"], second["basis_of_this_release"]) == ("empirical", "empirical")
    assert "The earlier release(s) of r-000001 rest on no proof" in second["statement"]


def test_a_deletion_from_a_copied_state_directory_has_the_same_noise(federation, trained, tmp_path):
    """The same request of the same model is the same release; another client's is another, with other noise."""
    one = trained()
    one.close()
    copies = [tmp_path / f"copy-{number}" for number in range(3)]
    for copy in copies:
        shutil.copytree(one.directory, copy)
    models = []
    for copy, name in zip(copies, "112", strict=True):
        again = federation(name=copy.name, prepare=BUDGET, **SMALL)
        deleted(again, name, rounds=2)
        (release,) = earlier_releases(again.ledger)
        models.append(release.after)
    assert models[0] == models[1] != models[2]


def test_a_release_counts_though_its_attempt_failed_afterwards(trained, monkeypatch):
    """The model may have been seen from the moment that its noise was drawn; it is in the ledger before it leaves."""
    one = trained()
    request = one.file(client("1"), "hf-online")
    failure = MethodFailed("The model was given up.", retryable=False)
    monkeypatch.setattr(Preparations, "branch", Mock(side_effect=failure))
    one.run(rounds=3)
    monkeypatch.undo()
    assert one.ledger.requests.get(request.id).status is Status.FAILED
    (given_up,) = earlier_releases(one.ledger)
    found = deleted(one, "2", rounds=4)
    assert (found["num_releases"], found["basis"]) == (2, "proven")
    assert found["spent_epsilon"] > found["epsilon_of_this_release"]
    assert given_up.clients == ("1",)


@pytest.mark.slow
def test_after_a_restore_that_undid_deletions_nothing_is_certified(trained):
    """Their releases were seen, and this ledger does not know them."""
    one = trained(BUDGET + " sensitivity=0.01")
    (one.directory / UNDONE_FILE).write_text("{}")
    found = deleted(one, "1", rounds=2)
    assert found["basis"] == "empirical"
    assert "A restore has undone deletions" in found["statement"]


def test_the_noise_secret_is_in_backups_and_nowhere_else(trained, tmp_path):
    """Mode 600, and none of the files, reports, certificates or rows that tell of deletions has it."""
    one = trained()
    deleted(one, "1", rounds=2)
    path = one.directory / NOISE_SECRET
    secret = path.read_bytes()
    assert path.stat().st_mode & 0o777 == 0o600
    back_up(
        tmp_path / "backup",
        state_dir=one.directory,
        ledger_url=f"sqlite:///{one.directory / 'ledger.db'}",
        now=datetime.now(UTC),
    )
    assert (tmp_path / "backup" / "state" / NOISE_SECRET).read_bytes() == secret
    canaries = (secret, secret.hex().encode(), secret[:12])
    for file in one.directory.rglob("*"):
        if file.is_file() and file != path:
            assert not any(canary in file.read_bytes() for canary in canaries), file


def test_noisy_fine_tuning_is_certified_for_a_network_and_nothing_after_it_looks_at_the_model_before(
    federation,
):
    """Fixed rounds of recovery though the score is reached at once; a second deletion has an account of its own."""
    small = {name: value for name, value in SMALL.items() if name != "dtype"}
    one = federation(**{**small, "recovery_max_rounds": 2}, model="mlp")
    one.run(rounds=2)
    for name, rounds in (("1", 3), ("0", 4)):
        request = one.forget(client(name), "noisy-fine-tuning", rounds=rounds, steps=2, radius=0.01)
        found = account(one, request.id)
        assert found["spent_epsilon"] == pytest.approx(3.0)
        assert (found["basis"], found["num_releases"]) == ("proven", 1)
        assert request.outcome is Outcome.GUARANTEED
        assert one.report(request.id)["recovery"]["rounds"] == 2  # with so little noise one would do
        said = next(
            event for event in one.ledger.events.all(request.id) if event.to_status is Status.VERIFYING
        )
        assert "the score was not judged" in said.detail["reason"]
    certificate = decode((one.directory / "reports" / request.id / "certificate.json").read_bytes())
    assert certificate.certificate.privacy.basis == "proven"
