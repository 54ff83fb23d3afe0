"""The deletion of data that entered no round: the model stays as it was, by whatever method it was asked for."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from server.certificate.document import decode, exact_numbers
from server.certificate.file_checks import Outcome as Verdict
from server.certificate.ledger_check import LedgerView, check_ledger
from server.deletion.never_used import is_never_used
from tests.federation import SMALL, InProcessFederation, client
from unlearning.methods.registry import METHODS
from unlearning.outcomes import NEVER_USED, describe_request
from unlearning.parameters import content_hash
from unlearning.requests import Exclusions, Granularity, Outcome, Status, Target

NEWCOMER = "3"


@pytest.fixture
def newcomer(federation: Callable[..., InProcessFederation]) -> Callable[..., InProcessFederation]:
    """A federation that has trained without one of its clients, which has come since."""

    def make(**settings: Any) -> InProcessFederation:
        one = federation(**{**SMALL, "num_clients": 4, "start_clients": 3, **settings})
        one.grid.offline = {one.node(NEWCOMER)}
        one.run()
        one.grid.offline = set()
        one.run()
        assert {record.client_id for record in one.ledger.clients()} == {"0", "1", "2", NEWCOMER}
        return one

    return make


@pytest.mark.parametrize("method", ["puf-special", "newton-cg", "pga", "sisa"])
def test_the_model_stays_as_it_was(newcomer, method):
    """Methods that keep something of training rounds have nothing of this client; others would move the model."""
    one = newcomer(**({"prepare": method} if METHODS[method].info.preparation is not None else {}))
    before = content_hash(one.checkpoint().parameters)
    done = one.forget(client(NEWCOMER), method)
    assert done.outcome is Outcome.RETRAINED
    assert "used in no round" in describe_request(done)
    assert content_hash(one.checkpoint().parameters) == before
    report = one.report(done.id)
    page = (one.directory / "reports" / done.id / "report.html").read_text(encoding="utf-8")
    assert "No method was carried out" in page
    assert report["model_hash_before"] == report["model_hash_after"] == before
    assert report["unlearning"]["bytes_sent"] == report["recovery"]["rounds"] == 0
    assert NEWCOMER in done.result[NEVER_USED]
    assert NEWCOMER in report["unlearning"]["findings"][NEVER_USED]
    content = (one.directory / "reports" / done.id / "certificate.json").read_bytes()
    certificate = decode(content).certificate
    assert (
        certificate.method.parameters
        == report["request"]["parameters"]
        == exact_numbers(dict(done.parameters))
    )
    assert check_ledger(certificate, content, LedgerView.of_ledger(one.ledger)).outcome is Verdict.HOLDS
    assert {
        answer["basis"] for holder in report["reveals"] for answer in (holder["membership"], holder["record"])
    } == {"derived"}
    [verifying] = [event for event in one.ledger.events.page(done.id) if event.to_status is Status.VERIFYING]
    assert str(verifying.detail["reason"]).endswith("the score was not judged: the model is the same")
    one.run(rounds=4)
    assert set(one.checkpoint().num_examples) == {"0", "1", "2"}


def test_neither_a_client_that_is_away_nor_other_requests_are_waited_for(newcomer):
    """There is nothing that it could do, and nothing that the deletion could reveal."""
    one = newcomer(min_deletions_together=3)
    target = Target(Granularity.SAMPLE, NEWCOMER, frozenset({"a", "b"}))
    one.grid.offline = {one.node(NEWCOMER)}
    assert one.forget(target, "puf-special").outcome is Outcome.RETRAINED
    one.grid.offline = set()
    one.run(rounds=3)
    assert one.checkpoint().exclusions.of(NEWCOMER).sample_ids


def test_a_client_that_trained_is_unlearned_by_the_method(newcomer):
    """Also beside one that did not: the two are deletions of their own."""
    one = newcomer()
    requests = [one.file(client(name), "puf-special") for name in ("1", NEWCOMER)]
    one.run()
    trained, never = (one.ledger.requests.get(request.id) for request in requests)
    assert trained.status is never.status is Status.COMPLETED
    assert one.report(trained.id)["model_hash_before"] != one.report(trained.id)["model_hash_after"]
    assert one.report(never.id)["request"]["served_with"] == []
    assert never.outcome is Outcome.RETRAINED is not trained.outcome


def test_an_answer_to_the_deletion_of_another_is_a_part_of_the_model(newcomer):
    """A client that has not trained yet may be asked by a method, and its answer enters the model."""
    one = newcomer(recovery_max_rounds=0)
    one.forget(client("1"), "newton-cg")
    assert NEWCOMER not in one.checkpoint().num_examples
    assert NEWCOMER in one.checkpoint().answered
    assert one.forget(client(NEWCOMER), "puf-special").outcome is not Outcome.RETRAINED


@pytest.mark.parametrize(
    "private", [{"privacy": "client", "privacy_noise_multiplier": 1.0, "privacy_delta": 1e-3}]
)
def test_who_was_not_drawn_in_private_training_stays_a_secret(newcomer, private):
    """The guarantee counts on it: the method is carried out as for all others."""
    one = newcomer(**private)
    done = one.forget(client(NEWCOMER), "dp-covered")
    assert done.outcome is not Outcome.RETRAINED
    assert NEVER_USED not in {*done.result, *one.report(done.id)["unlearning"]["findings"]}


@pytest.mark.parametrize("method", ["puf-special", "sisa", "exact-ridge"])
def test_before_the_first_round_nothing_of_a_class_has_entered(federation, method):
    """No shard was trained yet; other methods would climb from initial weights."""
    prepare = method if METHODS[method].info.preparation is not None else ""
    one = federation(**SMALL, prepare=prepare, rounds=2, requests=f"at=0 class=1 method={method}")
    one.run()
    [done] = one.ledger.requests.select()
    assert (done.status, done.outcome) == (Status.COMPLETED, Outcome.RETRAINED)
    assert one.report(done.id)["unlearning"]["bytes_sent"] == 0
    assert one.checkpoint().exclusions == one.ledger.exclusions() != Exclusions()


def test_a_class_may_be_in_what_clients_that_have_left_taught_the_model(federation):
    """The state's counts have no client that trained any more."""
    one = federation(**SMALL, rounds=1)
    trained, target = one.run(), Target(Granularity.CLASS, class_label=1)
    gone = replace(trained, num_examples={}, exclusions=Exclusions().including([client("0")]))
    assert not is_never_used(gone, one.settings, METHODS["puf-special"], target)
    assert is_never_used(replace(gone, exclusions=Exclusions()), one.settings, METHODS["puf-special"], target)
