"""Who accepts a request before it begins, and what takes a failed one's place: the same on SQLite and PostgreSQL."""

from collections.abc import Callable
from itertools import count

import pytest
import sqlalchemy as sa

from server.ledger import Ledger
from server.ledger.decisions import Instead
from server.ledger.records import LastRetry
from tests.kills import Killed, Killer
from tests.ledgers import CLIENT_4, LATER, NOW, advance, live_at, submit
from tests.raising import raises
from unlearning.errors import ConflictingRequest, IllegalMove
from unlearning.gdpr import Ground, Particulars
from unlearning.requests import DeletionRequest, Granularity, Outcome, Status, Target

SAMPLES = Target(Granularity.SAMPLE, "3", frozenset({"a", "b"}))
GIVEN = Particulars(ground=Ground.B, reference="DSR-17", note="by letter")
OTHERWISE = Instead(method="natural", parameters={"rate": 1.0}, approvals_needed=1)
KEPT = ("received_on", "due_on", "extended_days", "extension_reason", "ground", "reference", "note")


def file(ledger: Ledger, approvals: int = 1, **changes: object) -> DeletionRequest:
    """File a request in a federation that asks for so many approvals."""
    return submit(ledger, approvals_needed=approvals, **changes)


def accept(ledger: Ledger, by: str = "olga") -> DeletionRequest:
    return ledger.decisions.accept("r-000001", by=by, now=LATER)


def replace(ledger: Ledger) -> DeletionRequest:
    return ledger.decisions.retry("r-000001", by="ada", now=LATER, instead=OTHERWISE)


def told(ledger: Ledger) -> list[tuple[str, str, Status | None]]:
    return [(event.kind, event.actor, event.to_status) for event in ledger.events.page("r-000001")]


def test_a_request_that_needs_approval_waits_for_it(ledger: Ledger) -> None:
    """It was received first, as every request; the ledger itself puts it before a person."""
    assert (file(ledger).status, file(ledger).approvals_needed) == (Status.AWAITING, 1)
    assert told(ledger) == [("submitted", "ada", None), ("moved", "ledger", Status.AWAITING)]


def test_one_approval_accepts_where_one_person_decides(ledger: Ledger) -> None:
    """The ledger says who; the same person's second call changes nothing."""
    file(ledger)
    accepted = accept(ledger)
    assert accepted.status is Status.ACCEPTED
    assert told(ledger)[2:] == [("approved", "olga", None), ("moved", "olga", Status.ACCEPTED)]
    assert accept(ledger) == accepted
    with raises(IllegalMove, "not-awaiting"):
        accept(ledger, by="otto")
    assert ledger.events.verify() == ""


def test_two_approvals_are_of_two_people(ledger: Ledger, token: int) -> None:
    """The first leaves the request waiting, also when that person accepts again."""
    file(ledger, approvals=2)
    assert accept(ledger).status is Status.AWAITING
    with raises(IllegalMove, "accepted-before"):
        accept(ledger)
    with raises(IllegalMove, "undecided"):
        live_at(ledger, token).move("r-000001", Status.ACCEPTED)
    assert accept(ledger, by="otto").status is Status.ACCEPTED
    assert live_at(ledger, token).move("r-000001", Status.SCHEDULED).status is Status.SCHEDULED


@pytest.mark.parametrize("status", sorted(set(Status) - {Status.AWAITING}))
def test_only_a_request_that_waits_for_a_decision_is_accepted(
    ledger: Ledger, token: int, status: Status
) -> None:
    """In every other state the call is refused."""
    advance(ledger, submit(ledger).id, status, token)
    with raises(IllegalMove, "not-awaiting"):
        accept(ledger)


@pytest.mark.parametrize("status", [Status.AWAITING, Status.ACCEPTED])
def test_a_request_is_refused_or_cancelled_before_and_after_it_was_accepted(
    ledger: Ledger, token: int, status: Status
) -> None:
    """It has not begun."""
    for number, act in enumerate((ledger.decisions.cancel, ledger.decisions.refuse), start=1):
        request = advance(ledger, submit(ledger, key=str(number)).id, status, token)
        reason = {} if number == 1 else {"reason": "Art. 17(3)(b)"}
        assert act(request.id, by="olga", now=LATER, **reason).is_answered


def test_a_request_that_is_held_can_be_accepted_and_still_waits(ledger: Ledger, token: int) -> None:
    """Hold and approval are two decisions."""
    filed = file(ledger, hold_reason="a court keeps the data")
    assert (filed.status, filed.is_held, filed.hold_reason) == (
        Status.AWAITING,
        True,
        "a court keeps the data",
    )
    assert (accept(ledger).status, accept(ledger).is_held) == (Status.ACCEPTED, True)
    with raises(IllegalMove, "held"):
        live_at(ledger, token).move("r-000001", Status.SCHEDULED)
    ledger.decisions.release("r-000001", by="olga", now=LATER)
    assert live_at(ledger, token).move("r-000001", Status.SCHEDULED).status is Status.SCHEDULED


def test_a_key_does_not_lose_a_hold(ledger: Ledger) -> None:
    """Sent again as it was it is the same request; a hold that the first one did not have is another request."""
    held = file(ledger, hold_reason="a court keeps the data")
    assert file(ledger, hold_reason="a court keeps the data") == file(ledger) == held
    submit(ledger, CLIENT_4, key="4")
    with raises(ConflictingRequest, "key-used"):
        submit(ledger, CLIENT_4, key="4", hold_reason="a court keeps the data")


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        ("UPDATE requests SET status = 'accepted'", "enough people"),
        ("UPDATE requests SET status = 'scheduled'", "illegal move|enough people"),
        ("UPDATE requests SET approvals_needed = 1", "never changes"),
        ("UPDATE requests SET outcome = 'guaranteed'", "with the completion"),
    ],
)
def test_the_database_lets_no_undecided_request_begin(
    ledger: Ledger, sql: sa.Engine, statement: str, why: str
) -> None:
    """With one of two approvals an UPDATE past the program is refused, by the move, by the count or by the column."""
    file(ledger, approvals=2)
    accept(ledger)
    with pytest.raises(sa.exc.DatabaseError, match=why), sql.begin() as connection:
        connection.execute(sa.text(statement))
    assert ledger.events.verify() == ""


def test_an_outcome_comes_with_the_completion_and_stays(ledger: Ledger, token: int, sql: sa.Engine) -> None:
    """Another one later is refused, also past the program."""
    request = advance(ledger, submit(ledger).id, Status.VERIFYING, token)
    done = live_at(ledger, token).move(request.id, Status.COMPLETED, outcome=Outcome.REDUCED)
    assert done.outcome is Outcome.REDUCED
    change = sa.text("UPDATE requests SET outcome = 'guaranteed'")
    with pytest.raises(sa.exc.DatabaseError, match="with the completion"), sql.begin() as connection:
        connection.execute(change)
    assert ledger.events.verify() == ""


def test_a_failed_request_is_replaced_by_one_that_asks_for_the_same_in_another_way(
    ledger: Ledger, token: int
) -> None:
    """Same data, days and texts, another method; the old one names it, gives its ids back and is answered."""
    submit(ledger, SAMPLES, particulars=GIVEN)
    ledger.decisions.extend("r-000001", days=30, reason="many systems", by="olga", now=NOW)
    failed = advance(ledger, "r-000001", Status.FAILED, token)
    new = replace(ledger)
    assert (new.method, new.parameters, new.status) == ("natural", {"rate": 1.0}, Status.AWAITING)
    assert [getattr(new, name) for name in KEPT] == [getattr(failed, name) for name in KEPT]
    assert ledger.requests.target_of(new) == SAMPLES
    old = ledger.requests.get(failed.id)
    assert (old.status, old.replaced_by, old.is_answered) == (Status.REPLACED, new.id, True)
    assert new.id in old.reason
    assert new.method in old.reason
    with raises(IllegalMove, "ids-erased"):
        ledger.requests.target_of(old)
    with raises(IllegalMove, "not-failed"):
        replace(ledger)
    assert ledger.events.verify() == ""


def test_a_held_request_is_not_replaced(ledger: Ledger, token: int) -> None:
    """A hold is lifted first, for the new request has none."""
    advance(ledger, submit(ledger).id, Status.FAILED, token)
    ledger.decisions.hold("r-000001", reason="a court keeps the data", by="olga", now=LATER)
    with raises(IllegalMove, "held"):
        replace(ledger)


def test_a_loss_that_is_accepted_with_another_method_counts_for_the_new_request(
    ledger: Ledger, token: int
) -> None:
    """It says who accepted it, as a retry does."""
    advance(ledger, submit(ledger).id, Status.FAILED, token)
    new = ledger.decisions.retry("r-000001", by="ada", now=LATER, accept_score_loss=20, instead=OTHERWISE)
    assert ledger.requests.last_retry(new.id) == LastRetry(accepted_loss=20, accepted_by="ada")


def test_why_a_request_was_refused_is_erased_only_when_asked_for(ledger: Ledger) -> None:
    """It proves that the person was answered; the other texts go at once."""
    submit(ledger, particulars=GIVEN)
    ledger.decisions.refuse("r-000001", reason="Art. 17(3)(b)", by="olga", now=LATER)
    kept = ledger.decisions.redact("r-000001", by="olga", now=LATER)
    assert (kept.reference, kept.note, kept.refusal_reason) == ("", "", "Art. 17(3)(b)")
    gone = ledger.decisions.redact("r-000001", by="olga", now=LATER, include_refusal=True)
    assert gone.refusal_reason == ""
    assert ledger.events.verify() == ""


Prepared = Callable[[Ledger, int], object]
STEPS: dict[str, tuple[Prepared, Callable[[Ledger], DeletionRequest]]] = {
    "file": (lambda *_: None, lambda ledger: file(ledger, hold_reason="a court")),
    "accept": (lambda ledger, _: file(ledger), accept),
    "accept, one of two": (lambda ledger, _: file(ledger, 2), accept),
    "accept, two of two": (
        lambda ledger, _: (file(ledger, 2), accept(ledger)),
        lambda ledger: accept(ledger, by="otto"),
    ),
    "replace": (
        lambda ledger, token: advance(ledger, submit(ledger, SAMPLES).id, Status.FAILED, token),
        replace,
    ),
}


@pytest.mark.parametrize("name", STEPS)
def test_killed_at_any_statement_nothing_or_all_of_it_is_there(
    ledger: Ledger, token: int, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """At every statement to the database, before and after it; then the same call is made again and goes on."""
    prepare, act = STEPS[name]
    prepare(ledger, token)
    before = (ledger.events.head(), ledger.requests.select())
    killer = Killer(monkeypatch, ((sa.Connection, "execute"),))
    for kill_at in count(1):
        killer.arm(kill_at)
        try:
            act(ledger)
        except Killed:
            killer.disarm()
        else:
            killer.disarm()
            break
        assert ((ledger.events.head(), ledger.requests.select()), ledger.events.verify()) == (before, "")
    assert kill_at > 5
    assert ledger.events.verify() == ""
    ends = {"file": "awaiting-decision", "accept, one of two": "awaiting-decision", "replace": "replaced"}
    assert ledger.requests.select()[0].status == ends.get(name, "accepted")
