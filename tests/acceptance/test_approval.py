"""A federation in which a person decides before a deletion begins: from filing, over a restart, to the report."""

from contextlib import suppress

import pytest

from server.ledger.records import APPROVED
from tests.acceptance.test_crash_recovery import DURABLE_STEPS
from tests.federation import SMALL, client
from tests.kills import Killed, Killer
from unlearning.requests import Status


def test_a_request_waits_for_the_officer_and_its_data_is_left_out_meanwhile(federation):
    """Filed by the run itself or by a person, also under another setting: the approvals are those of the filing."""
    one = federation(**SMALL, rounds=2, approval="officer", requests="at=1 client=2")
    one.run()
    (waiting,) = one.ledger.requests.select()
    assert (waiting.status, waiting.approvals_needed) == (Status.AWAITING, 1)
    assert [list(record.metrics["participants"]) for record in one.ledger.rounds()] == [
        ["0", "1", "2"],
        ["0", "1"],
    ]
    one.run(rounds=3, approval="none")
    assert one.ledger.requests.get(waiting.id).status is Status.AWAITING
    one.ledger.decisions.accept(waiting.id, by="olga", now=waiting.created_at)
    one.run(rounds=4, approval="two")
    assert one.ledger.requests.get(waiting.id).status is Status.COMPLETED
    assert one.file(client("1")).approvals_needed == 2
    assert one.ledger.events.verify() == ""


def test_what_was_forgotten_while_a_request_waited_needs_no_decision(federation):
    """Nothing irreversible is left to decide about; one that is held stays where it is."""
    one = federation(**SMALL, rounds=1, approval="officer")
    one.run()
    first, again, held = (one.file(client("1")) for _ in range(3))
    now = first.created_at
    one.ledger.decisions.hold(held.id, reason="a court keeps the data", by="olga", now=now)
    one.ledger.decisions.accept(first.id, by="olga", now=now)
    one.run(rounds=2)
    answered = one.ledger.requests.get(again.id)
    assert (answered.status, answered.answered_by) == (Status.COMPLETED, (first.id,))
    assert APPROVED not in [event.kind for event in one.ledger.events.page(again.id)]
    assert one.ledger.requests.get(held.id).status is Status.AWAITING
    assert one.file(client("1")).status is Status.RECEIVED  # forgotten already when it was filed


@pytest.mark.slow
def test_kills_before_and_after_the_decision_lose_and_repeat_nothing(federation, monkeypatch):
    """At every seventh write of the run that files, and of the one that carries out what was accepted."""
    killer = Killer(monkeypatch, DURABLE_STEPS)
    for kill_at in range(1, 50, 7):
        one = federation(name=f"k{kill_at}", **SMALL, rounds=2, approval="officer", requests="at=1 client=2")
        run_killed(one, killer, kill_at)
        (waiting,) = one.ledger.requests.select()
        assert waiting.status is Status.AWAITING
        one.ledger.decisions.accept(waiting.id, by="olga", now=waiting.created_at)
        run_killed(one, killer, kill_at, rounds=3)
        moves = [event.to_status for event in one.ledger.events.page(waiting.id) if event.to_status]
        assert moves[:3] == [Status.AWAITING, Status.ACCEPTED, Status.SCHEDULED]
        assert moves.count(Status.COMPLETED) == 1
        assert one.ledger.events.verify() == ""
        one.close()


def run_killed(one, killer: Killer, kill_at: int, **settings: object) -> None:
    """Run a federation, with a kill if it gets as far, and once more to its end."""
    killer.arm(kill_at)
    with suppress(Killed):
        one.run(**settings)
    killer.disarm()
    one.new_grid()
    one.run(**settings)
