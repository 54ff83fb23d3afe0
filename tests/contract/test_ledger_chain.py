"""The events' hash chain, refusals and facts on SQLite and PostgreSQL, and how the first schema gets them."""

import pytest
import sqlalchemy as sa

from server.ledger import Ledger
from server.ledger.chain import GENESIS_HASH
from server.ledger.database import Database
from tests.ledgers import LATER, NOW, advance, live_at, refusal, submit
from unlearning.errors import VersionMismatch
from unlearning.requests import Status

# The chain


def test_a_chain_of_real_events_holds(ledger: Ledger, token: int) -> None:
    """Submissions, moves and notes with awkward details follow from each other."""
    advance(
        ledger, submit(ledger).id, Status.COMPLETED, token, detail={"loss": 0.1, "é": [1, None, {"b": 2}]}
    )
    live_at(ledger, token, LATER).note("r-000001", "waiting", detail={"text": "client 3", "x": float("nan")})
    assert ledger.events.verify_chain() is None


def test_the_head_moves_with_every_event(ledger: Ledger) -> None:
    """An empty ledger has the fixed head; each event gives the next number and another hash."""
    empty = ledger.events.head()
    assert empty == (0, GENESIS_HASH)
    token = ledger.acquire_fence("loop", now=NOW)
    heads = [ledger.events.head()]
    submit(ledger)
    heads.append(ledger.events.head())
    live_at(ledger, token, LATER).move("r-000001", Status.SCHEDULED)
    heads.append(ledger.events.head())
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
    assert ledger.events.verify_chain() == broken


def test_an_event_that_cannot_be_read_is_broken(
    url: str, ledger: Ledger, token: int, owner: sa.Connection
) -> None:
    """A detail that is no JSON any more does not end the check with an error (PostgreSQL refuses such a value)."""
    if not url.startswith("sqlite"):
        pytest.skip("PostgreSQL's column type refuses what is not JSON")
    advance(ledger, submit(ledger).id, Status.COMPLETED, token)
    owner.execute(sa.text("UPDATE events SET detail = '{' WHERE sequence = 3"))
    owner.commit()
    assert ledger.events.verify_chain() == 3


def test_events_cut_off_are_missed_by_a_kept_head_only(
    ledger: Ledger, token: int, owner: sa.Connection
) -> None:
    """The chain that is left holds, which is why a head is kept elsewhere."""
    advance(ledger, submit(ledger).id, Status.COMPLETED, token)
    kept = ledger.events.head()
    owner.execute(sa.text("DELETE FROM events WHERE sequence = 7"))
    owner.commit()
    assert ledger.events.verify_chain() is None
    assert ledger.events.head() != kept


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
    live_at(ledger, token, NOW).set_facts({"methods": ["puf"], "num_classes": 10})
    live_at(ledger, token, LATER).set_facts({"num_classes": None, "task": {"name": "mnist"}})
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
