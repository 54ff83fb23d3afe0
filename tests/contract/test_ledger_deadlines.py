"""Deadlines, holds, refusals and texts that can be erased: the same on SQLite and PostgreSQL; the chain holds on."""

import secrets
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from itertools import count
from pathlib import Path

import pytest
import sqlalchemy as sa

from server.ledger import Ledger
from server.ledger.texts import Kind
from tests.kills import Killed, Killer
from tests.ledgers import CLIENT_3, CLIENT_4, LATER, NOW, advance, live_at, submit
from tests.raising import raises
from unlearning.errors import ConflictingRequest, IllegalMove, InvalidRequest, RequestNotFound
from unlearning.gdpr import Amendment, Ground, Particulars
from unlearning.requests import HOLDABLE_STATUSES, DeletionRequest, Granularity, Status, Target

TODAY = NOW.date()
GIVEN = Particulars(
    received_on=date(2026, 2, 20), ground=Ground.B, reference="DSR-2026/17", note="by letter\nof 19 February"
)
ANOTHER = Amendment(ground="c", reference="DSR-2026/18", note="by phone")
Act = Callable[[Ledger], DeletionRequest]
ACTS: dict[str, Act] = {
    "extend": lambda ledger: ledger.decisions.extend(
        "r-000001", days=60, reason="many systems", by="ada", now=LATER
    ),
    "hold": lambda ledger: ledger.decisions.hold("r-000001", reason="a lawsuit", by="ada", now=LATER),
    "release": lambda ledger: ledger.decisions.release(
        "r-000001", reason="it was settled", by="ada", now=LATER
    ),
    "refuse": lambda ledger: ledger.decisions.refuse("r-000001", reason="Art. 17(3)(b)", by="ada", now=LATER),
    "amend": lambda ledger: ledger.decisions.amend("r-000001", what=ANOTHER, by="ada", now=LATER),
    "redact": lambda ledger: ledger.decisions.redact("r-000001", by="ada", now=LATER, include_refusal=True),
}


def test_particulars_are_read_back_as_they_were_given(ledger: Ledger) -> None:
    """A request says when it was received and is due, on which ground, and what its filer wrote."""
    submit(ledger, particulars=GIVEN)
    (found,) = ledger.requests.select()
    assert (found.received_on, found.due_on, found.extended_days) == (date(2026, 2, 20), date(2026, 3, 20), 0)
    assert (found.ground, found.reference, found.note) == (Ground.B, GIVEN.reference, GIVEN.note)
    assert ledger.requests.get(found.id) == ledger.requests.find("key", "ada") == found
    assert ledger.events.verify() == ""


def test_each_request_has_its_own_texts(ledger: Ledger) -> None:
    """In a list nobody has another one's, and who wrote none has none."""
    submit(ledger, particulars=Particulars(reference="A"))
    submit(ledger, CLIENT_4, key="4")
    submit(ledger, Target(Granularity.CLASS, class_label=1), key="5", particulars=Particulars(note="C"))
    assert [(item.reference, item.note) for item in ledger.requests.select()] == [
        ("A", ""),
        ("", ""),
        ("", "C"),
    ]


def test_what_the_chain_has_is_a_salted_hash_of_a_text(ledger: Ledger) -> None:
    """No event holds a text, and equal texts have different hashes."""
    submit(ledger, particulars=GIVEN)
    submit(ledger, CLIENT_4, key="4", particulars=GIVEN)
    details = [event.detail["texts"] for event in ledger.events.page()]
    assert GIVEN.reference not in str(details)
    assert details[0]["reference"]["sha256"] != details[1]["reference"]["sha256"]
    assert ledger.requests.text_commitment("r-000001", Kind.REFERENCE) == details[0]["reference"]["sha256"]
    assert ledger.requests.text_commitment("r-000001", Kind.HOLD) is None


def test_the_same_key_with_other_particulars_is_another_request(ledger: Ledger) -> None:
    """What is left out the second time does not matter."""
    first = submit(ledger, particulars=GIVEN)
    assert submit(ledger) == submit(ledger, particulars=GIVEN) == first
    for other in (Particulars(reference="DSR-18"), Particulars(ground=Ground.A), Particulars(due_on=TODAY)):
        with pytest.raises((ConflictingRequest, InvalidRequest)):
            submit(ledger, particulars=other)


@pytest.mark.parametrize("name", ["redact", "amend"])
def test_the_same_key_gives_the_request_that_was_erased_or_amended_since(ledger: Ledger, name: str) -> None:
    """Whoever sends again what it once filed is answered, whatever an operator has done meanwhile."""
    first = submit(ledger, particulars=GIVEN)
    ACTS[name](ledger)
    assert submit(ledger, particulars=GIVEN).id == first.id


def test_a_deadline_is_extended_once_with_a_reason(ledger: Ledger) -> None:
    """The event says by how much, until when, why and by whom."""
    submit(ledger)
    found = ACTS["extend"](ledger)
    assert (found.due_on, found.extended_days, found.first_due_on) == (
        date(2026, 5, 31),
        60,
        date(2026, 4, 1),
    )
    assert found.extension_reason == "many systems"
    event = ledger.events.page("r-000001")[-1]
    assert (event.kind, event.actor, event.text) == ("extended", "ada", "many systems")
    assert (event.detail["days"], event.detail["due_on"]) == (60, "2026-05-31")
    with raises(IllegalMove, "extended"):
        ACTS["extend"](ledger)
    assert ledger.events.verify() == ""


@pytest.mark.parametrize("days", [-1, 0, 61, 2**31 - 1])
def test_an_extension_has_its_limits(ledger: Ledger, days: int) -> None:
    """One to sixty days, or nothing changes."""
    filed = submit(ledger)
    with pytest.raises(InvalidRequest):
        ledger.decisions.extend(filed.id, days=days, reason="x", by="ada", now=LATER)
    assert ledger.requests.get(filed.id) == filed


def test_a_deadline_that_has_passed_is_not_extended(ledger: Ledger) -> None:
    """On the day itself it still is; on the next day no more."""
    filed = submit(ledger)
    noon = datetime(2026, 4, 1, 12, tzinfo=UTC)
    with raises(IllegalMove, "deadline-passed"):
        ledger.decisions.extend(filed.id, days=1, reason="x", by="ada", now=noon + timedelta(days=1))
    assert ledger.decisions.extend(filed.id, days=1, reason="x", by="ada", now=noon).due_on == date(
        2026, 4, 2
    )


def test_a_held_request_does_not_begin(ledger: Ledger, token: int) -> None:
    """Neither from the door nor from the queue, nor by a retry; once released it does."""
    submit(ledger)
    ACTS["hold"](ledger)
    with raises(IllegalMove, "held"):
        live_at(ledger, token, LATER).move("r-000001", Status.SCHEDULED)
    live_at(ledger, token, LATER).move("r-000001", Status.FAILED, retryable=True)
    with raises(IllegalMove, "held"):
        ledger.decisions.retry("r-000001", by="ada", now=LATER)
    released = ACTS["release"](ledger)
    assert (released.is_held, released.hold_reason) == (False, "")
    ledger.decisions.retry("r-000001", by="ada", now=LATER)
    ACTS["hold"](ledger)
    with raises(IllegalMove, "held"):
        live_at(ledger, token, LATER).move("r-000001", Status.UNLEARNING)
    texts = [(event.kind, event.text) for event in ledger.events.page("r-000001") if event.text]
    assert texts == [("held", "a lawsuit"), ("hold-lifted", "it was settled"), ("held", "a lawsuit")]
    assert ledger.events.verify() == ""


@pytest.mark.parametrize("status", list(Status))
def test_only_what_has_not_begun_is_held_or_refused(ledger: Ledger, token: int, status: Status) -> None:
    """A request that is under way or over is left as it is."""
    advance(ledger, submit(ledger).id, status, token)
    for name in ("hold", "refuse"):
        if status in HOLDABLE_STATUSES:
            ACTS[name](ledger)
        elif (name, status) == ("refuse", Status.REFUSED):
            before = ledger.events.head()
            assert ACTS[name](ledger).status is status
            assert ledger.events.head() == before
        else:
            with raises(IllegalMove, "begun"):
                ACTS[name](ledger)
    assert ledger.events.verify() == ""


def test_a_refused_request_is_answered_and_gives_its_ids_back(ledger: Ledger) -> None:
    """Its hold ends with it, and its target is free for another one."""
    filed = submit(ledger, Target(Granularity.SAMPLE, "3", frozenset({"a"})))
    ACTS["hold"](ledger)
    refused = ACTS["refuse"](ledger)
    assert (refused.status, refused.is_held, refused.reason) == (Status.REFUSED, False, "")
    assert refused.refusal_reason == ledger.events.page(filed.id)[-1].text == "Art. 17(3)(b)"
    with raises(IllegalMove, "ids-erased"):
        ledger.requests.target_of(refused)
    assert submit(ledger, key="again").id == "r-000002"
    assert refused.days_left(TODAY) is None
    with raises(IllegalMove, "answered"):
        ACTS["extend"](ledger)


def test_what_is_due_is_counted(ledger: Ledger, token: int) -> None:
    """Open, held, failed and reopened requests wait; completed, cancelled, refused and replaced ones do not."""
    received = date(2026, 1, 31)  # due on 28 February
    for number, status in enumerate(Status):
        target = Target(Granularity.CLASS, class_label=number)
        one = submit(ledger, target, key=str(number), particulars=Particulars(received_on=received))
        advance(ledger, one.id, status, token)
    ledger.decisions.hold("r-000001", reason="a lawsuit", by="ada", now=LATER)
    waiting = 9
    due = date(2026, 2, 28)
    assert ledger.requests.deadlines(due - timedelta(days=8)) == (0, 0)
    assert ledger.requests.deadlines(due - timedelta(days=7)) == (0, waiting)
    assert ledger.requests.deadlines(due) == (0, waiting)
    assert ledger.requests.deadlines(due + timedelta(days=1)) == (waiting, 0)
    assert sum(item.is_overdue(due + timedelta(days=1)) for item in ledger.requests.select()) == waiting


def test_redacting_erases_every_text_and_the_ledger_still_holds(ledger: Ledger, sql: sa.Engine) -> None:
    """What stays is that there were texts and who erased them; a second time there is nothing to do."""
    submit(ledger, particulars=GIVEN)
    for name in ("extend", "hold", "release", "refuse"):
        ACTS[name](ledger)
    done = ACTS["redact"](ledger)
    assert done.is_redacted
    texts = [getattr(done, kind) for kind in ("reference", "note", *(f"{name}_reason" for name in _REASONS))]
    assert texts == [""] * 5
    assert {event.text for event in ledger.events.page()} == {""}
    assert (ledger.events.page()[-1].kind, ledger.events.page()[-1].detail["erased"]) == (
        "redacted",
        [1, 2, 3, 4, 5, 6],
    )
    with sql.connect() as connection:
        left = connection.execute(sa.text("SELECT salt, text FROM request_texts")).all()
    assert left == [(None, None)] * 6
    assert ledger.events.verify() == ""
    head = ledger.events.head()
    assert ACTS["redact"](ledger) == done
    assert ledger.events.head() == head


_REASONS = ("extension", "hold", "refusal")


def test_ground_reference_and_note_are_amended(ledger: Ledger, sql: sa.Engine) -> None:
    """The newest counts; the event says what changed and by whom, and has the salted hash of a text, not the text."""
    submit(ledger, particulars=GIVEN)
    before = ledger.requests.text_commitment("r-000001", Kind.REFERENCE)
    done = ACTS["amend"](ledger)
    assert (done.ground, done.reference, done.note) == (Ground.C, "DSR-2026/18", "by phone")
    assert (done.received_on, done.due_on, done.is_redacted) == (GIVEN.received_on, date(2026, 3, 20), False)
    event = ledger.events.page("r-000001")[-1]
    assert (event.kind, event.actor, event.text) == ("amended", "ada", "")
    assert event.detail["text"] == "reference, note, ground from b to c"
    assert event.detail["ground_before"] == "b"
    after = event.detail["texts"]["reference"]["sha256"]
    assert ledger.requests.text_commitment("r-000001", Kind.REFERENCE) == after != before
    assert "DSR" not in str(event.detail)
    with sql.connect() as connection:
        kept = connection.scalars(sa.text("SELECT text FROM request_texts ORDER BY number")).all()
    assert kept == [GIVEN.reference, GIVEN.note, "DSR-2026/18", "by phone"]
    assert ledger.events.verify() == ""


def test_redacting_erases_what_was_amended_as_well(ledger: Ledger, sql: sa.Engine) -> None:
    """No text of before is left, and what is written afterwards stands there."""
    submit(ledger, particulars=GIVEN)
    ACTS["amend"](ledger)
    assert ACTS["redact"](ledger).reference == ""
    with sql.connect() as connection:
        left = connection.execute(sa.text("SELECT salt, text FROM request_texts")).all()
    assert left == [(None, None)] * 4
    again = ledger.decisions.amend("r-000001", what=Amendment(reference="DSR-19"), by="ada", now=LATER)
    assert (again.reference, again.note, again.is_redacted) == ("DSR-19", "", True)
    assert ledger.events.verify() == ""


def test_an_amendment_changes_what_it_names(ledger: Ledger) -> None:
    """What is left out, or is as it was, stays; a ground may be taken away, a text is not emptied."""
    filed = submit(ledger, particulars=GIVEN)
    head = ledger.events.head()
    same = Amendment(ground="b", reference=GIVEN.reference, note=GIVEN.note)
    assert ledger.decisions.amend(filed.id, what=same, by="ada", now=LATER) == filed
    with raises(InvalidRequest, "text-emptied"):
        ledger.decisions.amend(filed.id, what=Amendment(ground="a", note=""), by="ada", now=LATER)
    assert ledger.events.head() == head
    taken = ledger.decisions.amend(filed.id, what=Amendment(ground=""), by="ada", now=LATER)
    assert (taken.ground, taken.reference, taken.note) == (None, GIVEN.reference, GIVEN.note)
    assert ledger.events.page(filed.id)[-1].detail["text"] == "ground from b to none"
    for wrong in ({}, {"ground": "z"}, {"reference": "x" * 201}, {"note": "<b>"}):
        with pytest.raises(InvalidRequest):
            Amendment(**wrong)


@pytest.mark.parametrize("status", list(Status))
def test_a_request_is_amended_in_every_state_but_while_it_is_certified(
    ledger: Ledger, token: int, status: Status
) -> None:
    """The certificate names ground and reference, so both stand still while it is written."""
    advance(ledger, submit(ledger, particulars=GIVEN).id, status, token)
    if status is Status.VERIFYING:
        with raises(IllegalMove, "being-certified"):
            ACTS["amend"](ledger)
    else:
        assert ACTS["amend"](ledger).ground is Ground.C
    assert ledger.events.verify() == ""


def test_no_redacted_text_is_left_in_the_files(url: str, ledger: Ledger, sql: sa.Engine) -> None:
    """Not in the database's files, its statistics among them, nor in SQLite's write-ahead log; the ledger is open.

    Short and long texts, which PostgreSQL keeps elsewhere; and although another session looks back at the time before.
    """
    texts = [(f"Erika-{number}", secrets.token_urlsafe(1400)) for number in range(2)]
    for number, (reference, note) in enumerate(texts):
        target = Target(Granularity.CLIENT, str(number))
        submit(ledger, target, key=str(number), particulars=Particulars(reference=reference, note=note))

    def left() -> set[str]:
        found = b"".join(_files(url, sql))
        return {text for pair in texts for text in pair if text.encode()[:60] in found}

    assert left() == {text for pair in texts for text in pair}
    with sql.connect().execution_options(isolation_level="SERIALIZABLE") as other:
        if not url.startswith("sqlite"):  # whose log cannot be emptied meanwhile
            other.execute(sa.text("SELECT count(*) FROM requests"))
        ledger.decisions.redact("r-000001", by="ada", now=LATER)
        assert left() == set(texts[1])
    ledger.decisions.redact("r-000002", by="ada", now=LATER)
    assert left() == set()
    assert ledger.events.verify() == ""


def _files(url: str, sql: sa.Engine) -> Iterator[bytes]:
    """Everything that lies in the files of a database."""
    if url.startswith("sqlite"):
        path = Path(sa.make_url(url).database or "")
        yield from (path.with_name(path.name + end).read_bytes() for end in ("", "-wal"))
        return
    with sql.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(sa.text("ANALYZE"))
        connection.execute(sa.text("CHECKPOINT"))
        place = "SELECT current_setting('data_directory'), oid FROM pg_database WHERE datname = current_database()"
        directory, number = connection.execute(sa.text(place)).one()
    try:
        yield from (path.read_bytes() for path in sorted(Path(directory, "base", str(number)).iterdir()))
    except OSError as exc:
        pytest.skip(f"the server's files cannot be read here: {exc}")


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        ("UPDATE requests SET extended_days = 61, due_on = '2026-06-01'", "extended once"),
        ("UPDATE requests SET extended_days = 1, due_on = '2026-04-03' WHERE number = 2", "by its extension"),
        ("UPDATE requests SET extended_days = 5, due_on = '2026-04-06' WHERE number = 1", "extended once"),
        ("UPDATE requests SET due_on = '2027-01-01'", "by its extension"),
        ("UPDATE requests SET received_on = '2026-02-01'", "never changes"),
        ("UPDATE requests SET status = 'scheduled' WHERE number = 1", "held"),
        ("UPDATE request_texts SET text = 'other'", "erased, not changed"),
        ("UPDATE request_texts SET text = NULL, salt = NULL, sha256 = 'x'", "erased, not changed"),
        ("DELETE FROM request_texts", "request_texts|erased, not changed"),
        (
            "INSERT INTO legal_moves (from_status, to_status) VALUES ('completed', 'refused')",
            "by migration only|legal_moves",
        ),
    ],
)
def test_the_database_keeps_the_rules_by_itself(
    ledger: Ledger, sql: sa.Engine, statement: str, why: str
) -> None:
    """Whoever writes past the program is refused: a second extension, another deadline, a changed text."""
    submit(ledger, particulars=Particulars(note="n"))
    submit(ledger, CLIENT_4, key="4")
    ledger.decisions.extend("r-000001", days=3, reason="x", by="ada", now=LATER)
    ACTS["hold"](ledger)
    with pytest.raises(sa.exc.DatabaseError, match=why), sql.begin() as connection:
        connection.execute(sa.text(statement))
    assert ledger.events.verify() == ""


@pytest.mark.parametrize("name", ACTS)
def test_an_unknown_request_is_not_found(ledger: Ledger, name: str) -> None:
    """Whatever is to be done with it."""
    with pytest.raises(RequestNotFound):
        ACTS[name](ledger)


@pytest.mark.parametrize("name", ACTS)
def test_killed_at_any_statement_nothing_or_all_of_it_is_there(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """At every statement to the database, before and after it; then the same call is made again and goes on."""
    submit(ledger, CLIENT_3, particulars=GIVEN)
    if name in ("release", "redact"):
        ACTS["hold"](ledger)
    head, before = ledger.events.head(), ledger.requests.get("r-000001")
    killer = Killer(monkeypatch, ((sa.Connection, "execute"),))
    for kill_at in count(1):
        killer.arm(kill_at)
        try:
            ACTS[name](ledger)
        except Killed:
            killer.disarm()
        else:
            killer.disarm()
            break
        if (
            name == "redact" and ledger.events.head() != head
        ):  # all is there; the files are left to the next call
            assert ACTS[name](ledger).reference == ""
            break
        assert (ledger.events.head(), ledger.requests.get("r-000001"), ledger.events.verify()) == (
            head,
            before,
            "",
        )
    assert kill_at > 5
    assert ledger.events.verify() == ""
    assert len(ledger.events.page("r-000001")) == (3 if name in ("release", "redact") else 2)
