"""The events' hash chain, refusals and facts on SQLite and PostgreSQL, and how the first schema gets them."""

from collections.abc import Iterator
from datetime import date, timedelta

import pytest
import sqlalchemy as sa

from server.ledger import Ledger
from server.ledger.chain import GENESIS_HASH
from server.ledger.database import Database
from tests.ledgers import CLIENT_4, LATER, NOW, advance, refusal, submit
from unlearning.deadlines import Amendment, Ground
from unlearning.errors import VersionMismatch
from unlearning.requests import Status

# The chain


def test_a_chain_of_real_events_holds(ledger: Ledger, token: int) -> None:
    """Submissions, moves and notes with awkward details follow from each other."""
    advance(
        ledger, submit(ledger).id, Status.COMPLETED, token, detail={"loss": 0.1, "é": [1, None, {"b": 2}]}
    )
    ledger.note("r-000001", "waiting", token=token, now=LATER, detail={"text": "client 3", "x": float("nan")})
    assert ledger.verify_chain() is None


def test_the_head_moves_with_every_event(ledger: Ledger) -> None:
    """An empty ledger has the fixed head; each event gives the next number and another hash."""
    empty = ledger.event_head()
    assert empty == (0, GENESIS_HASH)
    token = ledger.acquire_fence("loop", now=NOW)
    heads = [ledger.event_head()]
    submit(ledger)
    heads.append(ledger.event_head())
    ledger.move("r-000001", Status.SCHEDULED, token=token, now=LATER)
    heads.append(ledger.event_head())
    assert [sequence for sequence, _ in heads] == [1, 2, 3]
    assert len({digest for _, digest in heads}) == 3


@pytest.mark.parametrize(
    ("forgery", "broken"),
    [
        ("UPDATE events SET actor = 'eve' WHERE sequence = 3", 3),
        ("UPDATE events SET kind = 'forged' WHERE sequence = 1", 1),
        ("UPDATE events SET at = '2020-01-01 00:00:00' WHERE sequence = 4", 4),
        ('UPDATE events SET detail = \'{"reason": "none"}\' WHERE sequence = 5', 5),
        ("UPDATE events SET to_status = 'failed' WHERE sequence = 2", 2),
        ("UPDATE events SET hash = previous_hash WHERE sequence = 2", 2),
        ("DELETE FROM events WHERE sequence = 3", 4),
        ("DELETE FROM events WHERE sequence = 1", 2),
        ("UPDATE events SET sequence = 60 WHERE sequence = 7", 60),
    ],
)
def test_a_forged_event_is_found(
    ledger: Ledger, token: int, owner: sa.Connection, forgery: str, broken: int
) -> None:
    """Whatever of an event is changed, it or the one after a removed one is named."""
    advance(ledger, submit(ledger).id, Status.COMPLETED, token)
    owner.execute(sa.text(forgery))
    owner.commit()
    assert ledger.verify_chain() == broken


def test_an_event_that_cannot_be_read_is_broken(
    url: str, ledger: Ledger, token: int, owner: sa.Connection
) -> None:
    """A detail that is no JSON any more does not end the check with an error (PostgreSQL refuses such a value)."""
    if not url.startswith("sqlite"):
        pytest.skip("PostgreSQL's column type refuses what is not JSON")
    advance(ledger, submit(ledger).id, Status.COMPLETED, token)
    owner.execute(sa.text("UPDATE events SET detail = '{' WHERE sequence = 3"))
    owner.commit()
    assert ledger.verify_chain() == 3


def test_events_cut_off_are_missed_by_a_kept_head_only(
    ledger: Ledger, token: int, owner: sa.Connection
) -> None:
    """The chain that is left holds, which is why a head is kept elsewhere."""
    advance(ledger, submit(ledger).id, Status.COMPLETED, token)
    kept = ledger.event_head()
    owner.execute(sa.text("DELETE FROM events WHERE sequence = 7"))
    owner.commit()
    assert ledger.verify_chain() is None
    assert ledger.event_head() != kept


def test_the_database_refuses_a_fork_of_the_chain(ledger: Ledger, sql: sa.Engine) -> None:
    """A second event after the same one is refused, also for raw SQL."""
    submit(ledger)
    with pytest.raises(sa.exc.IntegrityError), sql.begin() as connection:
        connection.execute(
            sa.text(
                "INSERT INTO events (sequence, request_number, kind, actor, detail, at, previous_hash, hash) "
                "SELECT 7, request_number, 'forged', actor, detail, at, previous_hash, 'x' FROM events"
            )
        )


# From the first schema on

FIRST_SCHEMA_ROWS = [
    "INSERT INTO requests (idempotency_key, target_key, target, client_id, method, parameters, submitted_by, "
    "status, reason, retryable, attempts, created_at, updated_at, result) VALUES ('k', 'client/3', "
    '\'{"granularity": "client", "client_id": "3", "sample_ids": [], "class_label": null}\', '
    "'3', 'puf', '{}', 'ada', 'received', '', false, 0, '2026-01-31 23:30:00', '2026-01-31 23:30:00', '{}')",
    "INSERT INTO events (request_number, kind, actor, detail, at) VALUES "
    "(1, 'submitted', 'ada', '{\"last_round_sequence\": 0}', '2026-03-01 12:00:00.123456')",
    "INSERT INTO events (sequence, request_number, kind, from_status, to_status, actor, detail, at) VALUES "
    "(5, 1, 'moved', 'received', 'scheduled', 'löop', '{\"loss\": 0.1, \"é\": [1, null]}', '2026-03-01 12:05:00')",
    "UPDATE requests SET status = 'scheduled'",
]


@pytest.fixture
def of_first_schema(empty_url: str) -> str:
    """The URL of a ledger of the first schema with a request and two events, a number missing between them."""
    database = Database(empty_url)
    database.migrate("0001")
    with database.writing() as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(sa.text("SET LOCAL TIME ZONE 'UTC'"))
        for statement in FIRST_SCHEMA_ROWS:
            connection.exec_driver_sql(statement)
    database.close()
    return empty_url


@pytest.fixture
def opened(of_first_schema: str) -> Iterator[Ledger]:
    ledger = Ledger.open(of_first_schema)
    yield ledger
    ledger.close()


def test_events_of_the_first_schema_are_kept_and_chained(opened: Ledger) -> None:
    """The migrations change nothing of them, and today's function finds their chain whole."""
    first, second, *added = opened.events()
    assert (first.sequence, first.kind, first.actor, first.at) == (1, "submitted", "ada", NOW)
    assert (second.sequence, second.kind, second.actor) == (5, "moved", "löop")
    assert second.detail == {"loss": 0.1, "é": [1, None]}
    assert second.at - first.at == timedelta(minutes=5) - timedelta(microseconds=123456)
    assert [event.kind for event in added] == ["taken-over", "dated"]
    assert opened.verify_chain() is None
    assert opened.verify() == ""


def test_a_request_of_the_first_schema_is_due_a_month_after_it_was_filed(opened: Ledger) -> None:
    """On the last day of a shorter month; and it is refused and amended as any other."""
    (found,) = opened.list_requests()
    assert (found.received_on, found.due_on) == (date(2026, 1, 31), date(2026, 2, 28))
    assert (found.extended_days, found.ground, found.is_held, found.is_redacted) == (0, None, False, False)
    assert opened.refuse(found.id, reason="x", by="ada", now=LATER).status is Status.REFUSED
    assert opened.amend(found.id, what=Amendment(ground="c"), by="ada", now=LATER).ground is Ground.C
    assert opened.verify() == ""


def test_a_ledger_of_the_first_schema_goes_on_after_the_migration(
    opened: Ledger, of_first_schema: str
) -> None:
    """Its requests move on, new events follow the old ones, and the old ones stay append-only."""
    token = opened.acquire_fence("loop", now=NOW)
    opened.move("r-000001", Status.UNLEARNING, token=token, now=LATER)
    submit(opened, CLIENT_4, key="new")
    assert [event.sequence for event in opened.events("r-000001")] == [1, 5, 6, 7, 9]  # 8: the fence's
    assert opened.verify() == ""
    engine = sa.create_engine(of_first_schema)
    with pytest.raises(sa.exc.IntegrityError, match="append-only"), engine.begin() as connection:
        connection.execute(sa.text("DELETE FROM events WHERE sequence = 1"))
    engine.dispose()


# Refusals


def test_refusals_are_read_back_in_order(ledger: Ledger) -> None:
    """What was written comes back with its sequence number."""
    ledger.record_refusals([refusal(), refusal(caller="mallory", detail={"status": "PERMISSION_DENIED"})])
    first, second = ledger.refusals()
    assert first == refusal(sequence=1)
    assert (second.caller, second.detail) == ("mallory", {"status": "PERMISSION_DENIED"})
    assert ledger.refusals(after=1) == [second]
    assert ledger.refusals(limit=1) == [second]
    assert ledger.refusals(caller="eve") == [first]


def test_text_of_strangers_is_made_harmless_in_a_refusal(ledger: Ledger) -> None:
    """NUL and escape codes become visible, and nobody fills the disk with one name."""
    ledger.record_refusals([refusal(caller="\x00\x1b[2J" + "x" * 5000, reason="a\nb")])
    [stored] = ledger.refusals()
    assert stored.caller.startswith("\ufffd\ufffd[2J")
    assert (len(stored.caller), stored.reason) == (200, "a b")


# Facts


def test_facts_are_written_over_by_key(ledger: Ledger, token: int) -> None:
    """A new value replaces the old one of its key; other keys stay."""
    assert ledger.facts() == {}
    ledger.set_facts({"methods": ["puf"], "num_classes": 10}, token=token, now=NOW)
    ledger.set_facts({"num_classes": None, "task": {"name": "mnist"}}, token=token, now=LATER)
    assert ledger.facts() == {"methods": ["puf"], "num_classes": None, "task": {"name": "mnist"}}


def test_a_ledger_of_a_newer_version_is_refused_in_one_sentence(empty_url: str) -> None:
    """It names both schemas, and what to do, to those who migrate and those who do not; the ledger stays as it is."""
    Ledger.open(empty_url).close()
    database = Database(empty_url)
    with database.writing() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    for opening in (lambda: Ledger.open(empty_url), database.refuse_newer):
        with pytest.raises(
            VersionMismatch, match=r"has schema 9999, and this program knows those up to \d+: .* Upgrade"
        ):
            opening()
    with database.reading() as connection:
        assert connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar() == "9999"
    database.close()
