"""A deletion's measurements travel with the work that starts from the measured model, and each half stands alone."""

import json
from typing import Any

import pytest

from client import answering, handlers
from server.federation.clients import Clients
from strategies.exchange import Exchange
from strategies.joint_exchange import MEASURE_TOO, JointMessages
from strategies.messages import MEASURE, NOTICE, TRAIN, UNLEARN, told_values
from tests.cases import LONG
from tests.federation import InProcessFederation, client
from unlearning.errors import DataError
from unlearning.requests import Granularity, Target
from unlearning.tasks import load_site

SETTINGS: dict[str, Any] = {"rounds": 1, "recovery_max_rounds": 2, "recovery_target": 1.0}
"""A score that no model reaches, so there are two recovery rounds."""


def forget(one: InProcessFederation, target: Target, method: str, **parameters: Any) -> dict[str, Any]:
    """Train a round, then forget; return the report."""
    one.run()
    return one.report(one.forget(target, method, **parameters).id)


def joint_and_apart(
    federation, monkeypatch: pytest.MonkeyPatch, target: Target, method: str, **settings: Any
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The reports of one deletion, measured with the work, and in an exchange of its own after the one of the work."""

    def apart(self: Clients, both: JointMessages) -> tuple[Exchange, Exchange]:
        return self.exchange(both.work), self.exchange(both.measurement)

    joint = forget(federation(name="joint", num_clients=3, **SETTINGS, **settings), target, method)
    monkeypatch.setattr(Clients, "exchange_both", apart)
    return joint, forget(federation(name="apart", num_clients=3, **SETTINGS, **settings), target, method)


@pytest.fixture
def exchanges(monkeypatch) -> list[dict[str, str]]:
    """What every exchange asks of whom: `evaluate`, or the work's type, with `+` where it is measured too."""
    seen: list[dict[str, str]] = []
    original = Clients.exchange

    def exchange(self: Clients, messages) -> Exchange:
        asked = {
            name: message.metadata.message_type + ("+" if MEASURE_TOO in told_values(message.content) else "")
            for name, message in messages.items()
        }
        seen.extend([asked] if asked else [])
        return original(self, messages)

    monkeypatch.setattr(Clients, "exchange", exchange)
    return seen


def test_a_deletion_measures_in_the_exchanges_that_it_needs_anyway(federation, exchanges):
    """Before, unlearned and after the first recovery round: with the work; alone only where nothing follows."""
    forget(federation(num_clients=3, **SETTINGS), client("2"), "puf-special")
    assert exchanges[1:] == [
        {"0": MEASURE, "1": MEASURE, "2": f"{UNLEARN}+"},
        {"0": f"{TRAIN}+", "1": f"{TRAIN}+", "2": MEASURE},
        {"0": f"{TRAIN}+", "1": f"{TRAIN}+", "2": MEASURE},
        {"0": MEASURE, "1": MEASURE, "2": MEASURE},
        {"2": NOTICE},
    ]


def test_a_method_that_begins_from_another_model_is_measured_before(federation, exchanges):
    """Retraining starts from fresh weights, so the model before travels by itself."""
    forget(federation(num_clients=3, **{**SETTINGS, "recovery_max_rounds": 0}), client("2"), "retrain")
    assert exchanges[1] == {"0": MEASURE, "1": MEASURE, "2": MEASURE}
    assert set(exchanges[2].values()) == {UNLEARN}


SAMPLES = "three of its samples"


@pytest.mark.parametrize(
    ("method", "target", "has_test_set"),
    [
        ("puf-regular", Target(Granularity.CLASS, class_label=3), False),
        pytest.param("gradient-ascent", SAMPLES, True, marks=LONG),
    ],
)
def test_models_and_figures_are_those_of_exchanges_of_their_own(
    federation, monkeypatch, method, target, has_test_set
):
    """The same two exchanges, one after the other, give the same model and the same measurements, to the bit."""
    if not has_test_set:
        monkeypatch.setattr("unlearning.tasks.load_server_test", lambda _settings: None)
    if target == SAMPLES:
        ids = load_site(federation(num_clients=3).settings.task(), 1).train.ids[:3].tolist()
        target = Target(Granularity.SAMPLE, "1", sample_ids=frozenset(ids))
    joint, apart = joint_and_apart(federation, monkeypatch, target, method, fraction=0.67)
    hashes = ("model_hash_before", "model_hash_after_unlearning", "model_hash_after", "model_hash_frozen")
    for part in (*hashes, "measurements", "attacks"):
        assert joint[part] == apart[part]
    assert joint["recovery"]["stop_reason"] == apart["recovery"]["stop_reason"]


def test_who_cannot_measure_trains_all_the_same_and_is_named(federation, monkeypatch):
    """The round counts it; the report says whose figures are missing."""
    original = answering.measure

    def measure(message, local):
        if local.client_id == "1":
            raise RuntimeError("no room to measure")
        return original(message, local)

    monkeypatch.setattr(answering, "measure", measure)
    one = federation(num_clients=3, **SETTINGS)
    report = forget(one, Target(Granularity.CLASS, class_label=3), "puf-regular")
    recoveries = [record for record in one.ledger.rounds() if record.kind == "recovery"]
    assert [record.metrics["participants"] for record in recoveries] == [["0", "1", "2"]] * 2
    assert [record.metrics["failed"] for record in recoveries] == [{}] * 2
    gaps = [" ".join(item["not_measured"]) for item in report["measurements"][1:3]]
    assert all("client 1: " in gap and "no room to measure" in gap for gap in gaps)


def test_who_cannot_train_measures_all_the_same_and_is_named(federation, monkeypatch):
    """The record of the round says who failed; the figures are everybody's."""
    one = federation(num_clients=3, **SETTINGS)
    one.run()
    original = handlers._train_locally

    def train(local, *given):
        if local.client_id == "1":
            raise DataError("no room to train")
        return original(local, *given)

    monkeypatch.setattr(handlers, "_train_locally", train)
    request = one.file(Target(Granularity.CLASS, class_label=3), "gradient-ascent")
    one.run()
    recoveries = [record for record in one.ledger.rounds() if record.kind == "recovery"]
    assert [record.metrics["participants"] for record in recoveries] == [["0", "2"]] * 2
    assert all("no room to train" in record.metrics["failed"]["1"] for record in recoveries)
    counts = [item["retained"]["num_examples"] for item in one.report(request.id)["measurements"]]
    assert len(set(counts)) == 1


def test_a_client_of_an_earlier_version_trains_and_its_missing_measurement_is_named(federation):
    """It does not know of the second half, and answers the first as ever."""
    one = federation(num_clients=3, **SETTINGS)
    original = one.grid._client_app

    def earlier(message, context):
        reply = original(message, context)
        if message.metadata.message_type == TRAIN and context.node_config["client-id"] == "1":
            values = told_values(message.content)
            values.pop(MEASURE_TOO, None)
            message.content["config"]["json"] = json.dumps(values)
            reply = original(message, context)
        return reply

    one.grid._client_app = earlier
    report = forget(one, Target(Granularity.CLASS, class_label=3), "gradient-ascent")
    recoveries = [record for record in one.ledger.rounds() if record.kind == "recovery"]
    assert [record.metrics["participants"] for record in recoveries] == [["0", "1", "2"]] * 2
    assert "carries no measurement" in " ".join(report["measurements"][1]["not_measured"])


@pytest.mark.slow
def test_costs_are_those_of_the_two_halves(federation, monkeypatch):
    """Recovery's and unlearning's bytes are as if nothing were measured; measuring costs less than by itself."""
    joint, apart = joint_and_apart(federation, monkeypatch, client("2"), "puf-regular")
    for part in ("unlearning", "recovery"):
        for way in ("bytes_sent", "bytes_received"):
            assert joint[part][way] == pytest.approx(apart[part][way], rel=0.02)
    measuring, by_itself = joint["measuring"], apart["measuring"]
    assert measuring["bytes_sent"] < 0.8 * by_itself["bytes_sent"]
    assert measuring["bytes_received"] == pytest.approx(by_itself["bytes_received"], rel=0.05)
    assert measuring["seconds"] > 0
    assert measuring["peak_memory"]["client_bytes"] > 2**26
