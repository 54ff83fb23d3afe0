"""Private training on a live federation: what covers a deletion, what is counted, and what is refused."""

import json
import shutil
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import strategy as flower
from torch import nn

from server.certificate.document import decode
from server.console.federation_page import training_privacy_text
from server.deletion.steps import _compares
from server.federation.checkpoints import CheckpointStore
from server.federation.training_account import private_settings
from server.ledger import PRIVATE_TRAINING, Ledger, LedgerWriter
from server.operations.backup import back_up
from server.operations.restore import restore
from server.state_directory.files import NOISE_SECRET
from server.state_directory.ledger_address import ledger_url
from strategies.aggregation import OwnAggregation
from strategies.fedavg import FedAvg
from strategies.messages import TRAIN, UNLEARN, round_of, vector_of
from strategies.settings.run_config import RunSettings
from tests.acceptance.test_sample_privacy import scraped
from tests.kills import Killed, Killer
from tests.normalised import TASK as NORMALISED
from tests.raising import refuses
from tests.small_app import TASK, SmallApp, make_task
from unlearning.certified.noise import gaussian_epsilon
from unlearning.certified.private_training import PrivateMean
from unlearning.certified.secret_noise import KeyedNormal
from unlearning.errors import ConfigurationError, TrainingFailed, UnsupportedRequest
from unlearning.methods.eligibility import FederationProfile, check_eligible
from unlearning.methods.registry import METHODS
from unlearning.outcomes import PRIVACY_ACCOUNT
from unlearning.requests import Granularity, Target
from unlearning.training import initial_parameters

PRIVATE: dict[str, Any] = {"privacy": "client", "privacy_noise_multiplier": 4.0, "privacy_clip_norm": 0.5}
LEAVES = "at=2 client=1 method=dp-covered"


def facts(app: SmallApp) -> dict[str, Any]:
    """What the ledger says of private training, and of requests by number."""
    ledger = Ledger.open(ledger_url(app.directory))
    try:
        requests = {one.id: one for one in ledger.requests.select()}
        return {**ledger.facts()[PRIVATE_TRAINING], "requests": requests}
    finally:
        ledger.close()


def account(app: SmallApp, number: int) -> dict[str, Any]:
    """The account in a deletion's report."""
    path = app.directory / "reports" / f"r-{number:06d}" / "report.json"
    found: dict[str, Any] = json.loads(path.read_text())["unlearning"]["findings"][PRIVACY_ACCOUNT]
    return found


def exact(rounds: int, group: int, noise: float = 4.0) -> float:
    """The ε of rounds in which all take part."""
    return gaussian_epsilon(delta=1e-5, sigma=noise, sensitivity=group * rounds**0.5)


def test_a_client_that_leaves_is_covered_and_the_model_stays_as_it_is(tmp_path: Path):
    """With what is stated of one client; ledger, certificate and outcome say it, and no round repairs anything."""
    app = SmallApp(tmp_path)
    app.run(**PRIVATE, rounds=2, requests=LEAVES, recovery_max_rounds=3, privacy_epsilon=9.0)
    request = facts(app)["requests"]["r-000001"]
    assert (str(request.status), str(request.outcome)) == ("completed", "guaranteed"), request.reason
    assert request.result["model_hash_before"] == request.result["model_hash_after"]
    assert request.result["recovery_rounds"] == 0
    found = account(app, 1)
    assert found["spent_epsilon"] == pytest.approx(exact(2, 1))
    assert found["budget_epsilon"] == 9.0
    assert (found["basis"], found["num_releases"]) == ("proven", 2)
    assert "indistinguishable" in found["statement"]
    certificate = decode((tmp_path / "reports" / "r-000001" / "certificate.json").read_bytes()).certificate
    assert certificate.privacy is not None
    assert certificate.privacy.statement == found["statement"]


def test_metrics_and_console_show_what_is_used(tmp_path: Path):
    app = SmallApp(tmp_path)
    app.run(**PRIVATE, rounds=2, privacy_epsilon=9.0)
    shown, rounds = scraped(app)
    assert shown["flower_unlearning_privacy_epsilon", ""] == pytest.approx(exact(2, 1))
    assert shown["flower_unlearning_privacy_budget", ""] == 9.0
    assert shown["flower_unlearning_privacy_delta", ""] == 1e-5
    assert f"{exact(2, 1):.4g} of a budget of 9" in training_privacy_text(rounds)


def test_the_second_that_leaves_is_covered_as_a_group_of_two(tmp_path: Path):
    """Of all rounds so far, those after the first deletion included."""
    app = SmallApp(tmp_path)
    app.run(**PRIVATE, rounds=3, requests=f"{LEAVES}; at=3 client=2 method=dp-covered")
    assert account(app, 2)["spent_epsilon"] == pytest.approx(exact(3, 2))
    known = facts(app)
    assert known["epsilon"] == pytest.approx(exact(3, 1))
    assert known["left"] == 2  # so admission counts the next one as the third


def test_what_would_be_weaker_than_the_limit_is_refused_and_retraining_works(tmp_path: Path):
    """Its rounds have the noise too, and count for those that stay."""
    app, limit = SmallApp(tmp_path), exact(2, 1) * 1.01
    app.run(**PRIVATE, rounds=2, requests=LEAVES, privacy_deletion_epsilon=limit)
    asked = "at=2 client=2 method=dp-covered; at=2 client=0 method=retrain"
    app.run(**PRIVATE, rounds=2, requests=asked, privacy_deletion_epsilon=limit, recovery_max_rounds=0)
    found = facts(app)
    methods = {one.method: str(one.status) for one in found["requests"].values()}
    assert methods == {"dp-covered": "completed", "retrain": "completed"}  # the other was never admitted
    assert found["epsilon"] == pytest.approx(exact(4, 1))


def test_after_a_restore_nothing_is_certified(tmp_path: Path):
    """Models that were made since the backup are not in its ledger."""
    app = SmallApp(tmp_path / "server")
    app.run(**PRIVATE, rounds=1)
    url = f"sqlite:///{app.directory / 'ledger.db'}"
    back_up(tmp_path / "backup", state_dir=app.directory, ledger_url=url, now=datetime.now(UTC))
    app.run(**PRIVATE, rounds=2)
    restore(tmp_path / "backup", state_dir=app.directory, ledger_url=url, now=datetime.now(UTC))
    app.run(**PRIVATE, rounds=2, requests=LEAVES)
    found = account(app, 1)
    assert found["basis"] == "empirical"
    assert "restored from a backup" in found["statement"]
    assert str(facts(app)["requests"]["r-000001"].outcome) != "guaranteed"


@pytest.mark.parametrize("method", ["puf-special", "noisy-fine-tuning", "mode"])
def test_what_brings_answers_into_the_model_without_the_noise_is_refused(method: str):
    """And a method that stays as it is, where training is not private."""
    private = FederationProfile.of(TASK, private_training="client", adds_noise=True, aggregation="private")
    target = Target(Granularity.CLIENT, "1")
    with pytest.raises(UnsupportedRequest):
        check_eligible(METHODS[method], target, private, {})
    for fitting in ("retrain", "dp-covered", "natural"):
        check_eligible(METHODS[fitting], target, private, {})
    with pytest.raises(UnsupportedRequest) as caught:
        check_eligible(METHODS["dp-covered"], target, FederationProfile.of(TASK), {})
    assert caught.value.code == "not-private"


@pytest.fixture
def silenced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise of zero, so that it can be seen what answers do."""
    monkeypatch.setattr(KeyedNormal, "standard_normal", lambda _, size: np.zeros(size))


def shouting(app: SmallApp, factor: float, count: int) -> None:
    """Let client 1 answer with `factor` times its update, and count so many examples."""
    client = app.client

    def answer(message: Message, context: Any) -> Message:
        reply = client(message, context)
        if context.node_config["partition-id"] == 1 and message.metadata.message_type.startswith("train"):
            before = vector_of(message.content.array_records["arrays"])
            arrays = reply.content.array_records["arrays"]
            (name,) = arrays
            moved = before + factor * (vector_of(arrays) - before)
            reply.content.array_records["arrays"] = ArrayRecord({name: type(arrays[name])(moved)})
            reply.content.metric_records["metrics"]["num-examples"] = count
        return reply

    app.client = answer  # type: ignore[assignment]


@pytest.mark.usefixtures("silenced")
def test_what_a_client_answers_moves_a_round_by_no_more_than_the_clip_norm(tmp_path: Path):
    """A thousand times the update, a thousand times the count, or no answer: nothing else of the round changes."""
    models = []
    for number, change in enumerate(("", "shout", "absent")):
        app = SmallApp(tmp_path / str(number))
        if change == "shout":
            shouting(app, 1000.0, 40_000)
        app.offline |= {1002} if change == "absent" else set()
        models.append(app.run(**PRIVATE, rounds=1).parameters.astype(np.float64))
    distances = [float(np.linalg.norm(models[0] - other)) for other in models[1:]]
    assert 0 < max(distances) <= 0.5 / 3 * (1 + 1e-6)
    assert float(np.linalg.norm(models[1] - models[2])) == pytest.approx(0.5 / 3)


def test_a_round_without_an_answer_has_noise_and_one_that_is_skipped_has_none(tmp_path: Path):
    """That a client answered must not show; too few online are no round."""
    app = SmallApp(tmp_path / "unsampled")
    start = initial_parameters(make_task({}), seed=0)
    with pytest.raises(TrainingFailed):
        app.run(**PRIVATE, rounds=1, fraction=1e-9)
    state = CheckpointStore(app.directory / "checkpoints").newest()
    assert state is not None
    assert not np.array_equal(state.parameters, start)
    skipped = SmallApp(tmp_path / "skipped")
    skipped.offline |= {1002}
    with pytest.raises(TrainingFailed):
        skipped.run(**PRIVATE, rounds=1, min_clients=3)
    assert facts(skipped)["rounds"] == []


@pytest.mark.parametrize("target", ["client=1", "client=1 samples=e0", "class=0"])
def test_rounds_of_a_deletion_have_the_clients_that_were_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str
):
    """Targets that keep a part are drawn too, and a round that draws none is done and counted."""

    def is_drawn(name: str, number: int) -> bool:
        return number % 3 > 0 and number % 2 == int(name) % 2

    monkeypatch.setattr(PrivateMean, "takes_part", lambda _, name, number: is_drawn(name, number))
    app = SmallApp(tmp_path)
    request = f"at=2 {target} method=retrain rounds=6"
    app.run(**PRIVATE, fraction=0.5, rounds=3, requests=request, recovery_max_rounds=3, max_score_loss=0)
    found = facts(app)
    assert [str(one.status) for one in found["requests"].values()] == ["completed"]
    asked = {
        (round_of(message), str(message.metadata.dst_node_id - 1001))
        for message, _ in app.answers
        if message.metadata.message_type in (TRAIN, UNLEARN)
    }
    names = "02" if target == "client=1" else "012"
    rounds = range(1, 13)  # two of training, six of retraining, three of recovery, one of training
    before = {(number, "1") for number in (1, 2)}
    everyone = {(number, name) for number in rounds for name in names} | before
    assert asked == {(number, name) for number, name in everyone if is_drawn(name, number)}
    assert sum(one["count"] for one in found["rounds"]) == len(rounds)


@pytest.mark.slow
def test_a_kill_at_any_step_gives_the_same_noise_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The same model as without, each round counted once, and the same statement."""
    steps = [(LedgerWriter, "set_facts"), (LedgerWriter, "record_round"), (CheckpointStore, "save")]
    killer = Killer(monkeypatch, steps)
    whole = SmallApp(tmp_path / "whole")
    expected = whole.run(**PRIVATE, rounds=3, requests=LEAVES).parameters
    places, statement = killer.passed, account(whole, 1)["statement"]
    assert places > 20
    for place in range(4, places, 3):
        app = SmallApp(tmp_path / f"killed-{place}")
        app.directory.mkdir(mode=0o700)
        shutil.copy(whole.directory / NOISE_SECRET, app.directory)
        killer.arm(place)
        with pytest.raises(Killed):
            app.run(**PRIVATE, rounds=3, requests=LEAVES)
        killer.disarm()
        state = app.run(**PRIVATE, rounds=3, requests=LEAVES)
        assert state.parameters.tobytes() == expected.tobytes(), place
        assert [one["count"] for one in facts(app)["rounds"]] == [3], place
        assert account(app, 1)["statement"] == statement


def test_training_ends_where_its_budget_does_and_goes_on_with_a_warning_where_that_is_set(tmp_path: Path):
    """Without a number of rounds; the last round that fits is the last one."""
    budget = {**PRIVATE, "privacy_epsilon": exact(3, 1) * 1.001}
    state = SmallApp(tmp_path / "stop").run(**budget, rounds=0)
    assert state.training_rounds == 3
    warned = SmallApp(tmp_path / "warn")
    assert warned.run(**budget, rounds=5, privacy_at_budget="warn").training_rounds == 5
    found = facts(warned)
    assert found["epsilon"] > found["budget"]


def test_the_noise_of_a_target_is_the_least_that_keeps_it(tmp_path: Path):
    """It is calibrated to the rounds of the run."""
    app = SmallApp(tmp_path)
    app.run(privacy="client", privacy_epsilon=3.0, rounds=3)
    found = facts(app)
    assert 2.95 < found["epsilon"] <= 3.0
    assert found["rounds"][0]["count"] == 3


@pytest.mark.parametrize(
    ("changes", "setting", "nearest"),
    [
        ({"secure_aggregation": True}, "secure-aggregation", ""),
        ({"prepare": "federaser"}, "prepare", ""),
        ({"privacy_delta": 0.4}, "privacy-delta", "below 0.33"),
        ({"privacy_noise_multiplier": 0.0}, "privacy", "privacy-noise-multiplier"),
        ({"rounds": 10, "privacy_epsilon": exact(4, 1) * 1.001}, "privacy-epsilon", "rounds = 4"),
    ],
)
def test_what_cannot_be_kept_is_refused_before_anything_runs(tmp_path: Path, changes, setting, nearest):
    """With the nearest that can be."""
    app = SmallApp(tmp_path)
    with refuses(setting) as caught:
        app.run(**{**PRIVATE, "rounds": 2, **changes})
    assert nearest in str(caught.value)
    assert not app.answers


def test_a_budget_that_is_spent_is_refused_and_so_is_switching_privacy(tmp_path: Path):
    """On later, off later: what was trained without noise, nothing covers."""
    app = SmallApp(tmp_path / "private")
    app.run(**PRIVATE, rounds=2)
    with refuses("privacy-epsilon") as caught:
        app.run(**PRIVATE, rounds=3, privacy_epsilon=exact(2, 1))
    assert "enough for 0 more" in str(caught.value)
    with refuses("privacy"):
        app.run(rounds=3)
    open_ = SmallApp(tmp_path / "open")
    open_.run(rounds=1)
    with refuses("privacy"):
        open_.run(**PRIVATE, rounds=2)


def private(task: Any = TASK, strategy: Any = None, **changes: Any) -> RunSettings:
    """The settings of private training with a strategy; no strategy of the user's own is left."""
    settings = RunSettings().with_changes({"num_clients": 3, **PRIVATE, **changes})
    own = None if strategy is None else OwnAggregation(lambda _: strategy, {}, task, [])
    found, left = private_settings(settings, own, task)
    assert left is None
    return found


def two_layers() -> nn.Module:
    """Return a network of which a site can keep the end."""
    return nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 2))


def test_running_statistics_and_layers_of_one_site_are_refused():
    """They are in no sum that has noise."""
    with refuses("privacy"):
        private(NORMALISED)
    with refuses("privacy"):
        private(replace(TASK, build_model=two_layers, local_layers=("1",)))


def test_flower_s_own_private_fedavg_is_carried_out_by_ours():
    """Its three figures are read; one divisor."""
    found = private(strategy=flower.DifferentialPrivacyServerSideFixedClipping(flower.FedAvg(), 2.5, 0.7, 3))
    assert (found.privacy_noise_multiplier, found.privacy_clip_norm) == (2.5, 0.7)


@pytest.mark.parametrize(
    "strategy",
    [
        flower.FedAvgM(server_momentum=0.5),
        flower.DifferentialPrivacyServerSideFixedClipping(flower.FedMedian(), 2.5, 0.7, 3),
        flower.DifferentialPrivacyServerSideFixedClipping(flower.FedAvg(), 2.5, 0.7, 2),
        flower.DifferentialPrivacyClientSideFixedClipping(flower.FedAvg(), 2.5, 0.7, 3),
        flower.DifferentialPrivacyServerSideAdaptiveClipping(flower.FedAvg(), 0.2, 3),
    ],
    ids=lambda one: type(one).__name__,
)
def test_any_other_strategy_is_refused(strategy: Any):
    """Momentum, a median, another divisor, clipping by clients or by what they have: not what is counted."""
    with refuses("privacy"):
        private(strategy=strategy)


def test_neither_recovery_nor_the_gate_looks_at_scores_that_clients_report():
    """They have no noise; the server's own test examples tell of the model only what it shows."""
    deletion: Any = SimpleNamespace(findings={})
    for test, is_private, compares in ((None, True, False), ([1], True, True), (None, False, True)):
        context: Any = SimpleNamespace(
            settings=SimpleNamespace(privacy="client" if is_private else "none"),
            test_set=SimpleNamespace(examples=test),
        )
        assert _compares(context, deletion) is compares


def test_one_client_s_answer_decides_nothing_of_another_s():
    """The bounds that compare clients are off, whatever they are set to."""
    limits = private(max_norm_factor=2.0, max_influence_factor=2.0, max_count_factor=2.0).limits(TASK)
    assert (limits.norm_factor, limits.influence_factor, limits.counts.factor) == (0.0, 0.0, 0.0)


def test_flower_s_own_loop_which_counts_nothing_is_refused():
    """As secure aggregation is."""
    strategy = FedAvg(TASK, private())
    grid: Any = None
    with pytest.raises(ConfigurationError, match="privacy: it runs in the live federation"):
        strategy.configure_train(1, ArrayRecord(), ConfigRecord(), grid)
