"""The queue on a live federation: every valid request is accepted; what can be one deletion is one."""

import json
from datetime import timedelta

import pytest

from server.deletion import steps
from server.deletion.queue import to_claim
from server.requests.planning import past_deletions
from server.state_directory.files import REPORTS
from tests.acceptance.test_live_deletion import sample_ids
from tests.federation import SMALL, client
from unlearning.requests import Granularity, Status, Target


def samples_of(one, client_id: str, count: int) -> list[Target]:
    """Return targets of one sample each."""
    return [
        Target(Granularity.SAMPLE, client_id, frozenset({item})) for item in sample_ids(one, client_id, count)
    ]


def unlearned(one) -> list[tuple[str, ...]]:
    """Return the requests of each unlearning round."""
    return [tuple(record.request_ids) for record in one.ledger.rounds() if record.kind == "unlearning"]


@pytest.mark.parametrize(("method", "whole"), [("puf-special", False), ("pga", True)])
def test_requests_of_one_client_are_one_deletion_and_a_held_one_stops_no_other(federation, method, whole):
    """Also by a method that unlearns one client at a time; each request gets its own report."""
    one = federation(**SMALL, rounds=1, prepare=method if whole else "")
    one.run()
    targets = [client("1")] * 3 if whole else samples_of(one, "1", 3)
    first, held, third = (one.file(target, method) for target in targets)
    one.ledger.decisions.hold(held.id, by="ada", now=held.created_at, reason="a court keeps the data")
    state = one.run(rounds=2)
    assert set(unlearned(one)) == {(first.id, third.id)}
    assert one.ledger.requests.get(held.id).status is Status.RECEIVED
    assert whole or len(state.exclusions.of("1").sample_ids) == 2
    assert [one.report(item.id)["request"]["id"] for item in (first, third)] == [first.id, third.id]


@pytest.mark.parametrize("is_held", [False, True])
def test_a_recovery_ends_where_an_open_request_withholds_the_last_client(federation, monkeypatch, is_held):
    """Otherwise the deletion would wait for a client that another request withholds, and that request for it."""
    one = federation(**SMALL | {"num_clients": 2, "recovery_max_rounds": 3}, rounds=1)
    one.run()
    first, later = one.file(client("0"), "not"), []
    unchanged = steps.recover

    def recover(*given):
        if not later:
            later.append(one.file(client("1"), "not"))
            if is_held:
                one.ledger.decisions.hold(
                    later[0].id, by="ada", now=first.created_at, reason="a court keeps it"
                )
        return unchanged(*given)

    monkeypatch.setattr(steps, "recover", recover)
    one.run(rounds=2)
    recovery = one.report(first.id)["recovery"]
    assert recovery["stop_reason"].startswith("no client is left to recover with")
    second = one.ledger.requests.get(later[0].id)
    assert second.status is (Status.RECEIVED if is_held else Status.COMPLETED)


def test_what_was_forgotten_while_a_request_waited_is_answered_by_that_deletion(federation):
    """It is completed without an attempt of its own, and names the request whose certificate counts."""
    one = federation(**SMALL, rounds=1)
    one.run()
    whole, part = one.file(client("1"), "puf-regular"), one.file(samples_of(one, "1", 1)[0])
    one.run(rounds=2)
    again = one.file(client("1"))
    one.run(rounds=3)
    for request in (part, again):
        answered = one.ledger.requests.get(request.id)
        assert (answered.status, answered.answered_by, answered.attempts) == (
            Status.COMPLETED,
            (whole.id,),
            0,
        )
    assert set(unlearned(one)) == {(whole.id,)}
    assert [past.deletions for past in past_deletions(one.ledger).values()] == [1]


@pytest.mark.slow
def test_a_deletion_waits_for_others_until_there_are_enough_or_the_first_has_waited_long_enough(federation):
    """Nor does it take more than `batch-max`."""
    one = federation(**SMALL, rounds=1, min_deletions_together=2, batch_window_s=60, batch_max=2)
    one.run()
    targets = samples_of(one, "1", 3)
    first = one.file(targets[0])
    one.run(rounds=2)
    assert one.ledger.requests.get(first.id).status is Status.SCHEDULED
    now = first.created_at + timedelta(seconds=59)
    assert to_claim(one.ledger, one.settings, {"1"}, {}, now=now)[0] == []
    later = to_claim(one.ledger, one.settings, {"1"}, {}, now=now + timedelta(seconds=1))[0]
    assert [move.request_id for move in later] == [first.id]
    ready = [one.file(client(name), "natural") for name in "02"]
    one.run(rounds=3)
    assert [one.ledger.requests.get(item.id).status for item in (first, *ready)] == [
        Status.SCHEDULED,
        Status.COMPLETED,
        Status.COMPLETED,
    ]
    others = [one.file(target) for target in targets[1:]]
    one.run(rounds=4)
    assert (first.id, others[0].id) in unlearned(one)
    assert one.ledger.requests.get(others[1].id).status is Status.SCHEDULED


@pytest.mark.slow
def test_fifty_requests_at_once_cost_at_most_three_times_one(federation):
    """In rounds; report and certificate of each are about its own samples, and name the others of the deletion."""
    one = federation(**SMALL, rounds=1)
    one.run()
    first, *targets = [target for name in "012" for target in samples_of(one, name, 17)]
    one.file(first)
    one.run(rounds=1)
    alone = len(one.ledger.rounds()) - 1
    filed = [one.file(target).id for target in targets]
    one.run(rounds=1)
    assert len(one.ledger.rounds()) - 1 - alone <= 3 * alone
    assert set(unlearned(one)[1:]) == {tuple(filed)}
    folder = one.directory / REPORTS
    for request_id in (filed[0], filed[-1]):
        certificate = json.loads((folder / request_id / "certificate.json").read_text())["certificate"]
        for asked in (one.report(request_id)["request"], certificate["request"]):
            assert (asked["id"], asked["num_samples"]) == (request_id, 1)
            assert {request_id, *asked["served_with"]} == set(filed)


@pytest.mark.long
@pytest.mark.slow
def test_a_thousand_requests_are_one_deletion(federation):
    """All are completed, each with its own report."""
    one = federation(rounds=1, recovery_max_rounds=1)
    one.run()
    examples = [(name, item) for name in "0123" for item in sample_ids(one, name, 250)]
    for name, item in examples:
        one.file(Target(Granularity.SAMPLE, name, frozenset({item})))
    one.run(rounds=1)
    filed = one.ledger.requests.select()
    assert len(filed) == len(examples) >= 900
    assert {request.status for request in filed} == {Status.COMPLETED}
    assert set(unlearned(one)) == {tuple(request.id for request in filed)}
    assert all((one.directory / REPORTS / request.id / "report.json").is_file() for request in filed)
