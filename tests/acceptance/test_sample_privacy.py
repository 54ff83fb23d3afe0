"""Sites that train with differential privacy for single samples: what is counted, stated, and refused."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, RecordDict

from client.memory import DirectoryMemory
from server.console.federation_page import training_privacy_text
from server.federation.sample_accounts import note_sample_accounts
from server.federation.training_account import private_settings
from server.ledger import SAMPLE_PRIVACY, Ledger, RoundRecord
from server.operations.metrics import LedgerCollector
from server.requests.training_privacy import SamplePrivacy
from server.state_directory.ledger_address import ledger_url
from strategies.messages import SAMPLE_ACCOUNT, TRAIN, compose, model_record, told_values
from strategies.settings.run_config import RunSettings
from tests.normalised import TASK as NORMALISED
from tests.raising import refuses
from tests.small_app import TASK, SmallApp
from unlearning.certified.private_training import SampleAccount, spent_epsilon
from unlearning.certified.round_lengths import PrivateRounds
from unlearning.errors import ConfigurationError, UnsupportedRequest
from unlearning.methods.eligibility import FederationProfile, check_eligible
from unlearning.methods.registry import METHODS
from unlearning.outcomes import PRIVACY_ACCOUNT
from unlearning.requests import Forget, Granularity, Target
from unlearning.tasks.losses import cross_entropy
from unlearning.training import TrainingSettings, initial_parameters

PRIVATE: dict[str, Any] = {
    "privacy": "samples",
    "privacy_noise_multiplier": 4.0,
    "privacy_clip_norm": 1.0,
    "privacy_delta": 1e-3,
    "batch_size": 10,
}
PROFILE = FederationProfile.of(TASK, private_training="samples", adds_noise=True)


def facts(app: SmallApp) -> tuple[SamplePrivacy, dict[str, Any]]:
    """What the ledger says of sites' accounts, and its requests by number."""
    ledger = Ledger.open(ledger_url(app.directory))
    try:
        found = SamplePrivacy.of(ledger.facts())
        assert found is not None
        return found, {one.id: one for one in ledger.requests.select()}
    finally:
        ledger.close()


def scraped(app: SmallApp) -> tuple[dict[tuple[str, str], float], list[RoundRecord]]:
    """What a scrape of the ledger finds, by name and client; and the rounds, oldest first."""
    ledger = Ledger.open(ledger_url(app.directory))
    try:
        families = list(LedgerCollector(ledger).collect())
        found = {
            (one.name, one.labels.get("client", "")): one.value
            for family in families
            for one in family.samples
        }
        return found, list(ledger.all_rounds())
    finally:
        ledger.close()


def steps(rounds: int, count: int = 4, examples: int = 40) -> PrivateRounds:
    """The steps of rounds of one pass over so many samples."""
    return PrivateRounds(noise_multiplier=4.0, sampling=10 / examples, count=count * rounds)


def test_samples_that_are_deleted_are_covered_on_their_clients_word(tmp_path: Path):
    """Both of one client as a group of two; the model stays as it is, and nothing is called proven."""
    app = SmallApp(tmp_path)
    requests = "at=1 client=1 samples=e3 method=dp-covered; at=2 client=1 samples=e5 method=dp-covered"
    app.run(**PRIVATE, rounds=2, requests=requests)
    known, filed = facts(app)
    one, both = (steps(1),), (steps(1), steps(1, examples=39))
    assert known.clients["1"].rounds == both
    assert known.clients["1"].epsilon == pytest.approx(spent_epsilon(both, delta=1e-3))
    for number, rounds, group in (("r-000001", one, 1), ("r-000002", both, 2)):
        request = filed[number]
        assert str(request.status) == "completed", request.reason
        assert request.result["model_hash_before"] == request.result["model_hash_after"]
        assert str(request.outcome) != "guaranteed"
        report = json.loads((tmp_path / "reports" / number / "report.json").read_text())
        account = report["unlearning"]["findings"][PRIVACY_ACCOUNT]
        exact = spent_epsilon(rounds, delta=1e-3, group=group)
        assert (account["spent_epsilon"], account["basis"]) == (pytest.approx(exact), "empirical")
        assert "On the word of client 1" in account["statement"]


def test_metrics_and_console_show_what_sites_say(tmp_path: Path):
    app = SmallApp(tmp_path)
    app.run(**PRIVATE, rounds=1)
    expected, (shown, rounds) = spent_epsilon([steps(1)], delta=1e-3), scraped(app)
    assert shown["flower_unlearning_sample_privacy_epsilon", "1"] == pytest.approx(expected)
    assert f"{expected:.4g}" in training_privacy_text(rounds)


def test_a_site_that_begins_its_account_again_has_not_used_less(tmp_path: Path):
    """Virtual clients do, with every run; what was counted before is added."""
    app = SmallApp(tmp_path)
    app.run(**PRIVATE, rounds=3)
    app.run(**PRIVATE, rounds=4)
    known, _ = facts(app)
    assert known.clients["0"].rounds == (steps(4),)
    assert known.clients["0"].epsilon == pytest.approx(spent_epsilon([steps(4)], delta=1e-3))


def test_retraining_has_the_same_noise_and_is_counted(tmp_path: Path):
    app = SmallApp(tmp_path)
    requests = "at=2 client=1 samples=e3 method=retrain"
    app.run(**PRIVATE, rounds=2, requests=requests, recovery_max_rounds=0)
    known, filed = facts(app)
    assert str(filed["r-000001"].status) == "completed", filed["r-000001"].reason
    counted = {one.sampling: one.count for one in known.clients["1"].rounds}
    assert counted == {10 / 40: 8, 10 / 39: 8}
    assert known.clients["0"].rounds == (steps(4),)


def test_what_is_weaker_than_the_limit_is_refused_and_names_what_works(tmp_path: Path):
    known = SamplePrivacy(limit=0.5).hearing("1", SampleAccount.counting((steps(200),), 1e-3))
    assert "Choose retrain" in known.weakness("1", 1)
    assert known.weakness("2", 1)  # it has said nothing
    few = SamplePrivacy(limit=0.5).hearing("1", SampleAccount.counting((steps(1),), 1e-3))
    assert not few.weakness("1", 1)
    assert "at least" in few.weakness("1", 20)
    assert "at least" in few.weakness("1", 1_000_000)


@pytest.mark.parametrize("method", ["puf-special", "gradient-ascent", "hf-kcu", "mode", "fedosd"])
def test_what_brings_answers_without_the_noise_is_refused(method: str):
    with pytest.raises(UnsupportedRequest) as caught:
        check_eligible(METHODS[method], Target(Granularity.SAMPLE, "1", frozenset({"e1"})), PROFILE, {})
    assert caught.value.code == "without-noise"


def test_clients_are_not_covered_where_samples_are_and_the_other_way_round():
    samples, client = Target(Granularity.SAMPLE, "1", frozenset({"e1"})), Target(Granularity.CLIENT, "1")
    of_clients = FederationProfile.of(TASK, private_training="client", adds_noise=True)
    check_eligible(METHODS["dp-covered"], samples, PROFILE, {})
    for target, profile in ((client, PROFILE), (samples, of_clients)):
        with pytest.raises(UnsupportedRequest) as caught:
            check_eligible(METHODS["dp-covered"], target, profile, {})
        assert caught.value.code == "not-private"


def test_a_site_at_its_budget_trains_no_more_and_the_others_go_on(tmp_path: Path):
    """Three rounds fit; the fourth has no answer of any site here, as all are alike."""
    app, budget = SmallApp(tmp_path), spent_epsilon([steps(3)], delta=1e-3) * 1.001
    app.run(**PRIVATE, rounds=5, privacy_epsilon=budget)
    known, _ = facts(app)
    assert {one.rounds for one in known.clients.values()} == {(steps(3),)}
    errors = [told_values(reply.content).get("error", "") for _, reply in app.answers]
    assert sum("privacy budget" in str(error) for error in errors) == 6


def site(state_dir: Path, **node: Any) -> Any:
    """A function that has a site with its own state directory train for a round; it returns what the answer says."""
    client = SmallApp(state_dir).client
    config = {"partition-id": 1, "num-partitions": 3, "state-dir": str(state_dir), **node}

    def train(number: int, training: TrainingSettings | None = None, **changes: Any) -> dict[str, Any]:
        run = {name.replace("_", "-"): value for name, value in {**PRIVATE, **changes}.items()}
        settings = RunSettings.from_run_config(run)
        context = Context(run_id=1, node_id=1, node_config=config, state=RecordDict(), run_config=run)
        values = {"training": asdict(training or settings.training(number)), "client-id": "1"}
        model = model_record(initial_parameters(TASK, 0))
        return dict(told_values(client(compose(1, TRAIN, number, values, model), context).content))

    return train


def test_a_site_counts_before_it_trains_and_remembers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A process that dies in the training has counted it; what is counted outlives it, and a deletion."""
    train = site(tmp_path)
    assert train(1)[SAMPLE_ACCOUNT]["rounds"][0]["count"] == 4

    def die(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("client.handlers.train_prepared", die)
        with pytest.raises(KeyboardInterrupt):
            train(2)
    assert train(2)[SAMPLE_ACCOUNT]["rounds"][0]["count"] == 12
    DirectoryMemory(tmp_path).add_tombstones(Forget(sample_ids=frozenset({"e3"})))
    rounds = train(3)[SAMPLE_ACCOUNT]["rounds"]
    assert [(one["sampling"], one["count"]) for one in rounds] == [(10 / 40, 12), (10 / 39, 4)]


def test_a_round_without_noise_after_it_leaves_no_bound(tmp_path: Path):
    train = site(tmp_path)
    train(1)
    assert train(2, privacy="none")[SAMPLE_ACCOUNT]["epsilon"] is None


def test_an_owner_can_demand_noise_and_end_it(tmp_path: Path):
    """Whatever the run says."""
    allowed = spent_epsilon([steps(2)], delta=1e-3) * 1.001
    train = site(tmp_path, **{"require-sample-privacy": allowed})
    assert "demands training with privacy" in train(1, privacy="none")["error"]
    assert "error" not in train(1)
    assert "error" not in train(2)
    assert "privacy budget" in train(3, privacy_at_budget="warn")["error"]
    assert "largest ε" in site(tmp_path / "odd", **{"require-sample-privacy": "-1"})(1)["error"]


def test_a_delta_that_gives_a_sample_away_is_refused_at_the_site(tmp_path: Path):
    assert "privacy-delta" in site(tmp_path)(1, privacy_delta=0.5)["error"]


def test_a_loss_that_couples_examples_is_refused_at_the_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """One sample would change the gradients of others."""
    summed = replace(TASK, loss=lambda outputs, targets: cross_entropy(outputs, targets) * len(targets))
    monkeypatch.setattr("tests.small_app.TASK", summed)
    assert "is not the mean of its examples' own losses" in site(tmp_path)(1)["error"]


def test_noise_that_the_run_does_not_ask_for_is_refused_at_the_site(tmp_path: Path):
    """Nothing was looked at then of what gets past it."""
    asked = RunSettings.from_run_config({name.replace("_", "-"): one for name, one in PRIVATE.items()})
    assert "does not ask for" in site(tmp_path)(1, training=asked.training(1), privacy="none")["error"]


def test_an_account_that_is_none_is_not_used(tmp_path: Path):
    """Of a client that lies clumsily: the ledger stays as it was."""
    app = SmallApp(tmp_path)
    app.run(**PRIVATE, rounds=1)
    ledger = Ledger.open(ledger_url(tmp_path))
    before = ledger.facts()[SAMPLE_PRIVACY]
    good = {"noise_multiplier": 1.0, "sampling": 0.5, "count": 3}
    for wrong in (
        {"noise_multiplier": -1.0},
        {"sampling": 0.0},
        {"sampling": 2.0},
        {"count": -1},
        {"count": 10**12},
    ):
        said = {"rounds": [{**good, **wrong}], "delta": 1e-5, "epsilon": 0.1}
        note_sample_accounts(ledger, ledger.live(0, None), {"1": {SAMPLE_ACCOUNT: said}})  # type: ignore[arg-type]
    for said in ("x", {"rounds": 3}, {"rounds": [good], "delta": 2.0, "epsilon": 0.1}):
        note_sample_accounts(ledger, ledger.live(0, None), {"1": {SAMPLE_ACCOUNT: said}})  # type: ignore[arg-type]
    assert ledger.facts()[SAMPLE_PRIVACY] == before
    ledger.close()


def test_it_is_neither_switched_on_late_nor_off(tmp_path: Path):
    app = SmallApp(tmp_path / "late")
    app.run(rounds=1)
    with refuses("privacy"):
        app.run(**PRIVATE, rounds=2)
    app = SmallApp(tmp_path / "off")
    app.run(**PRIVATE, rounds=1)
    with refuses("privacy"):
        app.run(rounds=2)


@pytest.mark.parametrize(
    ("setting", "value", "words"),
    [
        ("prepare", "federaser", "prepared methods keep single updates"),
        ("privacy-noise-multiplier", 0.0, "the noise is not decided"),
        ("secure-aggregation", True, "no place among masked answers"),
    ],
)
def test_settings_that_do_not_go_with_it_are_refused(setting: str, value: Any, words: str):
    run = {name.replace("_", "-"): one for name, one in PRIVATE.items()}
    with pytest.raises(ConfigurationError, match=words):
        RunSettings.from_run_config({**run, setting: value})


def test_models_with_running_statistics_are_refused():
    settings = RunSettings.from_run_config({name.replace("_", "-"): one for name, one in PRIVATE.items()})
    with pytest.raises(ConfigurationError, match="running statistics"):
        private_settings(settings, None, NORMALISED)
