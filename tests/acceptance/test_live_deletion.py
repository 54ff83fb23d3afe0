"""From a request to its report, with the real server and client code on an in-process Grid."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from client.memory import DirectoryMemory
from server.ledger.request_store import Requests
from server.live_loop import LOOK_S
from strategies.messages import UNLEARN, WHOAMI, round_of
from tests.cases import LONG
from tests.federation import SMALL, InProcessFederation, client
from unlearning.methods.registry import METHODS
from unlearning.parameters import content_hash
from unlearning.requests import DeletionRequest, Exclusions, Granularity, Status, Target
from unlearning.tasks import load_site


def trained_on(federation, client_id: str, since: int = 0) -> list[int]:
    """The rounds in which a client was asked to train (not to unlearn or measure)."""
    return [
        int(message.metadata.group_id)
        for message in federation.grid.sent[since:]
        if message.metadata.message_type == "train"
        and message.metadata.dst_node_id == federation.node(client_id)
    ]


@pytest.fixture
def waits(monkeypatch) -> list[float]:
    """How long each of the waits between rounds was; the clock goes on by them alone."""
    waits: list[float] = []
    clock = SimpleNamespace(monotonic=lambda: 1000.0 + sum(waits), sleep=waits.append)
    monkeypatch.setattr("server.live_loop.time", clock)
    return waits


@pytest.mark.slow
def test_rounds_keep_their_pace_and_a_request_does_not_wait_for_the_next(federation, monkeypatch, waits):
    """A round begins at the end of the interval; a deletion that is filed meanwhile is carried out at once."""

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            one.file(client("1"))

    one = federation(rounds=2, round_interval_s=60.0)
    monkeypatch.setattr("server.live_loop.time.sleep", sleep)
    one.run()
    kinds = [record.kind for record in one.ledger.rounds()]
    assert kinds == ["training", "unlearning", *["recovery"] * (len(kinds) - 3), "training"]
    assert sum(waits) == pytest.approx(60.0)
    assert max(waits) <= LOOK_S


@pytest.mark.usefixtures("waits")
@pytest.mark.slow
def test_waiting_for_the_next_round_announces_nothing(federation, monkeypatch):
    """To announce a privacy account costs a write to the ledger; a wait of a minute has three hundred looks."""
    announced: list[int] = []
    one = federation(rounds=2, round_interval_s=60.0)
    monkeypatch.setattr("server.live_loop.announce_account", lambda _, state: announced.append(state.round))
    one.run()
    assert announced == [0, 1, 2]


def test_a_forgotten_client_never_trains_again(federation):
    """Neither in recovery nor in the rounds after, also after a restart of everything."""
    one = federation()
    one.run()
    one.file(client("2"))
    before = len(one.grid.sent)
    one.run(rounds=4)
    assert trained_on(one, "2", before) == []
    assert len(trained_on(one, "1", before)) >= 2
    one.new_grid()
    one.run(rounds=6)
    assert trained_on(one, "2") == []
    assert len(trained_on(one, "1")) == 2


def test_rounds_that_need_all_clients_go_on_with_those_that_are_left(federation, monkeypatch):
    """A federation with `min-clients` as large as it is recovers from a deletion, and trains on."""
    one = federation(**SMALL, min_clients=3, rounds=1)
    one.run()
    request = one.file(client("2"))
    waits = iter(range(20))
    # A run that waits for ever ends with the last of them.
    monkeypatch.setattr("strategies.waiting.time.sleep", lambda _: next(waits))
    one.run(rounds=4)
    assert one.ledger.requests.get(request.id).status is Status.COMPLETED
    assert one.ledger.rounds()[-1].kind == "training"


def test_the_other_clients_keep_training_while_a_request_is_served(federation):
    """A request filed mid-training: the rounds of the others go on before, during and after."""
    one = federation(requests="at=1 client=3 method=puf-special", rounds=3)
    one.run()
    kinds = [record.kind for record in one.ledger.rounds()]
    assert kinds == ["training", "unlearning", "recovery", "recovery", "training", "training"]
    after_unlearning = [record for record in one.ledger.rounds() if record.kind != "unlearning"][1:]
    assert all(record.metrics["participants"] == ["0", "1", "2"] for record in after_unlearning)


def test_the_client_itself_refuses_to_train_after_it_was_forgotten(federation):
    """The tombstone at the client holds even against a server that forgot about it."""
    one = federation()
    one.run()
    one.forget(client("2"), rounds=3)
    other = federation(name="other-server")
    for node_id, context in other.grid.contexts.items():
        context.node_config["state-dir"] = one.grid.contexts[node_id].node_config["state-dir"]
    other.run(rounds=1)
    assert other.ledger.rounds()[0].metrics["participants"] == ["0", "1", "3"]
    assert "2" in other.ledger.rounds()[0].metrics["failed"]


def test_forgotten_samples_never_train_again_and_the_rest_does(federation):
    """Sample level: the client goes on with what it retains."""
    one = federation()
    one.run()
    counted = one.ledger.rounds()[-1].metrics["num_examples"]
    one.file(Target(Granularity.SAMPLE, "1", frozenset(sample_ids(one, "1", 7))))
    one.run(rounds=3)
    last = one.ledger.rounds()[-1].metrics
    assert last["participants"] == ["0", "1", "2", "3"]
    assert last["num_examples"] == counted - 7


def test_a_class_is_forgotten_on_every_client(federation):
    """Class level: no client trains on the class any more, and the model no longer tells it."""
    one = federation()
    one.run()
    report = one.report(one.forget(Target(Granularity.CLASS, class_label=4), rounds=3).id)
    scores = [item["forgotten"]["score"] for item in report["measurements"]]
    assert scores[0] > 0.8
    assert scores[-1] < 0.1


@pytest.mark.slow
def test_recovery_from_a_class_is_judged_by_the_other_classes(federation):
    """Over all classes no model that has forgotten one is as good as before, and one that knows it all is too soon."""
    one = federation(rounds=8, recovery_max_rounds=12, recovery_tolerance=0.05)
    one.run()
    report = one.report(one.forget(Target(Granularity.CLASS, class_label=4), rounds=9).id)
    assert report["recovery"]["rounds"] < 12
    assert "accuracy without the forgotten classes" in report["recovery"]["stop_reason"]
    assert "accuracy without the forgotten classes of at least" in report["stop_rule"]
    before, recovered = (
        item["test"]["score"] for item in (report["measurements"][0], report["measurements"][-1])
    )
    assert recovered < before - 0.05  # over all classes
    assert report["recovery"]["target_score"] > recovered


@pytest.mark.slow
def test_a_forgotten_client_is_not_asked_about_a_class(federation):
    """It has left: a later deletion sends it no model to measure or to train."""
    one = federation()
    one.run()
    one.file(client("2"))
    one.run(rounds=2)
    before = len(one.grid.sent)
    one.forget(Target(Granularity.CLASS, class_label=4), rounds=3)
    asked = {
        message.metadata.dst_node_id
        for message in one.grid.sent[before:]
        if message.metadata.message_type != WHOAMI
    }
    assert asked == {one.node(name) for name in "013"}


def test_requests_that_go_together_share_one_unlearning_round(federation):
    """Two clients, same method and parameters: one batch, both forgotten."""
    one = federation(requests="at=1 client=0 method=puf-special; at=1 client=3 method=puf-special", rounds=2)
    one.run()
    kinds = [record.kind for record in one.ledger.rounds()]
    assert kinds.count("unlearning") == 1
    unlearning = next(record for record in one.ledger.rounds() if record.kind == "unlearning")
    assert len(unlearning.request_ids) == 2
    assert unlearning.metrics["participants"] == ["0", "3"]


def test_requests_with_different_methods_are_served_one_after_the_other(federation):
    """The second deletion starts from the first one's result."""
    one = federation(requests="at=1 client=0 method=puf-special; at=1 client=3 method=puf-regular", rounds=2)
    state = one.run()
    assert [r.kind for r in one.ledger.rounds()].count("unlearning") == 2
    assert state.exclusions.is_forgotten("0")
    assert state.exclusions.is_forgotten("3")


def test_an_absent_client_is_waited_for_while_training_goes_on(federation):
    """The request stays in the queue and says what it waits for."""
    one = federation()
    one.run()
    request = one.file(client("2"))
    one.grid.offline.add(one.node("2"))
    one.run(rounds=3)
    assert one.ledger.requests.get(request.id).status is Status.SCHEDULED
    assert any("waiting for client 2" in str(event.detail) for event in one.ledger.events.page(request.id))
    one.grid.offline.clear()
    one.run(rounds=4)
    assert one.ledger.requests.get(request.id).status is Status.COMPLETED


def test_a_failed_attempt_leaves_the_model_as_it_was_and_is_tried_again(federation):
    """The client dies with the message: back to the queue, then it succeeds; it trains no more since the request."""
    one = federation()
    before, num_sent = content_hash(one.run().parameters), len(one.grid.sent)
    request = one.file(client("2"))
    one.grid.broken.add(one.node("2"))
    one.run()
    waiting = one.ledger.requests.get(request.id)
    assert (waiting.status, waiting.attempts) == (Status.SCHEDULED, 1)
    assert content_hash(one.checkpoint().parameters) == before
    one.grid.broken.clear()
    one.run(rounds=4)
    assert one.ledger.requests.get(request.id).status is Status.COMPLETED
    assert one.ledger.rounds()[2].kind == "training"  # comes first, and the client could be asked
    assert trained_on(one, "2", num_sent) == []


def test_a_failed_attempt_is_tried_again_where_no_training_round_is_left(federation):
    """The last round was trained before the attempt failed; the next run tries again, as the one before has said."""
    one = federation(**SMALL)
    one.run()
    request = one.file(client("2"))
    one.grid.broken.add(one.node("2"))
    one.run()
    one.grid.broken.clear()
    one.run()
    assert one.ledger.requests.get(request.id).status is Status.COMPLETED
    assert [record.kind for record in one.ledger.rounds()].count("training") == 2


def test_the_model_is_tested_in_every_so_many_training_rounds_and_in_each_of_a_deletion(federation):
    """By `evaluate-every`; with 0 never."""
    one = federation(rounds=3, evaluate_every=2, recovery_max_rounds=1)
    one.run()
    one.forget(client("2"), rounds=4)
    tested = {
        record.round: (record.kind, "test_score" in record.metrics) for record in one.ledger.all_rounds()
    }
    assert [kind for kind, _ in tested.values()].count("training") == 4
    assert {kind for kind, _ in tested.values()} == {"training", "unlearning", "recovery"}
    assert all(is_tested == (kind != "training" or at % 2 == 0) for at, (kind, is_tested) in tested.items())
    never = federation("never", rounds=2, evaluate_every=0)
    never.run()
    assert not any("test_score" in record.metrics for record in never.ledger.all_rounds())


def failed_at_client_2(one: InProcessFederation, *, rounds: int) -> DeletionRequest:
    """A request for client 2, which answers with errors from then on."""
    one.run()
    request = one.file(client("2"))
    one.grid.broken.add(one.node("2"))
    one.run(rounds=rounds)
    return one.ledger.requests.get(request.id)


def test_after_the_only_attempt_the_reason_counts_none(federation):
    """It says what happened, not that 1 attempts failed."""
    failed = failed_at_client_2(federation(max_attempts=1), rounds=3)
    assert (failed.status, failed.attempts) == (Status.FAILED, 1)
    assert "The attempt failed because" in failed.reason


@pytest.mark.slow
def test_after_the_last_attempt_a_request_has_failed_and_can_be_retried(federation):
    """A training round comes between two attempts; after `max-attempts` of them somebody must look."""
    one = federation(max_attempts=2)
    failed = failed_at_client_2(one, rounds=4)
    assert (failed.status, failed.retryable) == (Status.FAILED, True)
    assert "2 attempts failed" in failed.reason
    one.grid.broken.clear()
    one.ledger.decisions.retry(failed.id, by="test", now=failed.updated_at)
    one.run(rounds=5)
    assert one.ledger.requests.get(failed.id).status is Status.COMPLETED


def test_unknown_sample_ids_fail_the_request_for_good(federation, monkeypatch):
    """Only the client can tell; it was asked before, and did not answer then."""
    monkeypatch.setattr("server.live_loop.ask_sites", lambda *_, **__: {})
    one = federation()
    before = content_hash(one.run().parameters)
    request = one.file(Target(Granularity.SAMPLE, "1", frozenset({"no-such-example"})))
    one.run()
    failed = one.ledger.requests.get(request.id)
    assert failed.status is Status.FAILED
    assert not failed.retryable
    assert "1 of the 1 sample ids are not among this client's examples" in failed.reason
    assert content_hash(one.checkpoint().parameters) == before


@pytest.mark.parametrize("named", ["1", "3"])
def test_a_client_files_a_request_at_its_own_site(federation, named):
    """It travels with the next answer and is served for the client, whomever it names; its site learns the end."""
    one = federation()
    memory = DirectoryMemory(Path(one.grid.contexts[one.node("1")].node_config["state-dir"]))
    memory.file_request(client(named), "puf-special", {})
    state = one.run(rounds=3)
    assert list(state.exclusions.clients) == ["1"]
    (request,) = one.ledger.requests.select()
    assert request.target.client_id == "1"
    assert request.status is Status.COMPLETED
    assert memory.outbox() == []
    [answered] = memory.answered_requests()
    assert answered["answer"] == "r-000001 is completed. Its report: flower-unlearn report r-000001"


@pytest.mark.slow
def test_the_same_seed_gives_the_same_model(federation):
    """Two federations with the same settings end with equal bits, through an unlearning round too."""
    settings = {"requests": "at=1 client=2 method=puf-regular", **SMALL}
    first = federation(name="a", **settings).run()
    second = federation(name="b", **settings).run()
    assert content_hash(first.parameters) == content_hash(second.parameters)


def test_the_checkpoints_from_before_the_deletion_are_erased(federation):
    """They still carried what was forgotten."""
    one = federation(requests="at=2 client=2 method=puf-special")
    one.run()
    assert len(list((one.directory / "checkpoints").glob("*.npz"))) == 1


@pytest.mark.parametrize(
    "target", [Target(Granularity.CLASS, class_label=3), client("1")], ids=["class", "client"]
)
def test_retraining_asks_as_many_clients_as_training(federation, target):
    """Also where all of them forget a part: each of its rounds draws its own share of those that keep something."""
    one = federation(**SMALL | {"num_clients": 6, "fraction": 0.5, "recovery_max_rounds": 0}, rounds=4)
    one.run()
    before = len(one.grid.sent)
    one.file(target, "retrain", rounds=4)
    one.run()
    asked: dict[int, set[int]] = {}
    for message in one.grid.sent[before:]:
        if message.metadata.message_type == UNLEARN:
            asked.setdefault(round_of(message), set()).add(message.metadata.dst_node_id)
    assert [len(nodes) for nodes in asked.values()] == [3] * 4
    assert len(set().union(*asked.values())) > 3


def sample_ids(federation, client_id: str, count: int) -> list[str]:
    site = load_site(federation.settings.task(), int(client_id))
    return sorted(site.train.ids.tolist())[:count]


DRAWN = ("puf-special", "federaser", "sisa")
"""Whose reports have their pictures: of a method that prepares, one that does not, and an ensemble."""

SERVED = [
    pytest.param(method, marks=pytest.mark.pictures if method in DRAWN else LONG)
    for method in sorted(METHODS)
    if not METHODS[method].info.rests_on_training  # test_private_training.py
]


@pytest.mark.parametrize("method", SERVED)
def test_every_method_serves_a_live_request(federation, method):
    """Filed, carried out, recovered, reported; the report shows what the method says of its work.

    About samples, where a method can forget them: of clients the tests of kills have a deletion by each method.
    """
    granularities = METHODS[method].info.granularities
    granularity = Granularity.SAMPLE if Granularity.SAMPLE in granularities else Granularity.CLIENT
    one = federation(num_clients=3, max_examples=300, weight_decay=0.01, recovery_max_rounds=1)
    ids = frozenset(sample_ids(one, "1", 20)) if granularity is Granularity.SAMPLE else frozenset()
    prepare = method if METHODS[method].info.preparation else ""
    if method == "fedau-learning" and ids:  # it must know beforehand what may be forgotten
        prepare += f" samples={','.join(ids)}"
    one.prepare(prepare)
    one.run(rounds=1)
    report = one.report(one.forget(Target(granularity, "1", ids), method, rounds=2).id)
    changed = report["model_hash_before"] != report["model_hash_after_unlearning"]
    assert changed == (method != "natural")  # the baseline only leaves the data out
    assert report["unlearning"]["rounds"] >= 1


@pytest.mark.parametrize("method", ["retrain", "fedmemprune"])
def test_the_costs_count_each_client_that_answered(federation, method):
    """Also one whose answer was left out of the model, here for its influence: its bytes are in what was measured."""
    one = federation(num_clients=3, max_examples=300, weight_decay=0.01, recovery_max_rounds=1)
    one.run(rounds=1)
    report = one.report(one.forget(Target(Granularity.CLASS, class_label=1), method, rounds=2).id)
    [unlearning] = [record for record in one.ledger.all_rounds() if record.kind == "unlearning"]
    assert set(unlearning.metrics["refused"]) == {"1"}
    assert report["unlearning"]["participants"] == ["0", "2"]
    for line in report["formulas"]:
        assert line["formula_bytes"] == 3 * 2 * 650 * 4
        per_message = (line["measured_bytes"] - line["formula_bytes"]) / 3
        assert 0 < per_message < 1200
        assert line["explanation"].startswith(f"{per_message:,.0f} bytes for each message")


@pytest.mark.parametrize(("approval", "looks"), [("none", 4), ("officer", 3)])
def test_a_request_that_is_withdrawn_while_the_loop_looks_at_it_ends_nothing(federation, approval, looks):
    """Between each reading of the open requests and what the loop does with them: its ids are erased by then."""
    one = federation(**SMALL, rounds=1, approval=approval)
    one.run()
    target = Target(Granularity.SAMPLE, "1", frozenset(sample_ids(one, "1", 2)))
    select = Requests.select
    for look in range(looks):
        filed, left = one.file(target, "not"), iter(range(look, -1, -1))

        def overtaken(requests: Requests, filed=filed, left=left, **given: Any) -> list[DeletionRequest]:
            found = select(requests, **given)
            if filed.id in [request.id for request in found] and next(left, 1) == 0:
                one.ledger.decisions.cancel(filed.id, by="ada", now=filed.created_at)
            return found

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Requests, "select", overtaken)
            one.run(rounds=look + 2)
        assert one.ledger.requests.get(filed.id).status is Status.CANCELLED
        assert one.checkpoint().exclusions == Exclusions()
