"""A federation in which a person decides before a deletion begins: from filing, over a restart, to the report."""

from server.ledger.records import APPROVED
from tests.federation import SMALL, client
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
