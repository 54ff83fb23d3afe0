"""A ledger that the version of the second schema wrote goes on: nothing is lost, ids are hashed, all is sealed."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest
import sqlalchemy as sa

from server.ledger import Ledger
from server.ledger.database import Database
from tests.ledgers import submit
from unlearning.errors import ConfigurationError, IllegalMove
from unlearning.pseudonyms import SubjectKeys, is_keyed, keyed_id
from unlearning.requests import Granularity, Status, Target

WRITTEN_BY_SCHEMA_2 = Path(__file__).parent / "ledgers" / "schema-2.sql"
KEYS = SubjectKeys(b"k" * 32)
TABLES = ("clients", "federation_facts", "requests", "events", "exclusions", "rounds", "fence", "refusals")


@pytest.fixture
def of_second_schema(empty_url: str, tmp_path: Path) -> str:
    """The URL of a ledger with seven requests, as the program of that time wrote it."""
    file = tmp_path / "written.db"
    with closing(sqlite3.connect(file)) as connection:
        connection.executescript(WRITTEN_BY_SCHEMA_2.read_text(encoding="utf-8"))
    if empty_url.startswith("sqlite"):
        file.rename(sa.make_url(empty_url).database or "")
        return empty_url
    database = Database(empty_url)
    database.migrate("0002")
    written = sa.create_engine(f"sqlite:///{file}")
    with written.connect() as connection, database.writing() as into:
        into.execute(sa.text("SET LOCAL TIME ZONE 'UTC'"))
        # A request starts as received, so it is put in so and brought to its state past the rule.
        into.execute(sa.text("ALTER TABLE requests DISABLE TRIGGER requests_check"))
        into.execute(sa.text("DELETE FROM fence"))
        for name in TABLES:
            rows = connection.execute(sa.select(sa.Table(name, sa.MetaData(), autoload_with=connection)))
            table = sa.Table(name, sa.MetaData(), autoload_with=into)
            into.execute(sa.insert(table), [dict(row) for row in rows.mappings()])
        into.execute(sa.text("ALTER TABLE requests ENABLE TRIGGER requests_check"))
        for name, column in (("requests", "number"), ("rounds", "sequence"), ("refusals", "sequence")):
            into.execute(
                sa.text(
                    f"SELECT setval(pg_get_serial_sequence('{name}', '{column}'), max({column})) FROM {name}"
                )
            )
    written.dispose()
    database.close()
    return empty_url


@pytest.fixture
def opened(of_second_schema: str) -> Iterator[Ledger]:
    ledger = Ledger.open(of_second_schema, KEYS)
    yield ledger
    ledger.close()


def test_requests_of_the_second_schema_are_read_as_they_were(opened: Ledger) -> None:
    """States, submitters and numbers of samples survive; who filed in which role is not known."""
    found = opened.list_requests()
    assert [str(request.status) for request in found] == [
        *("completed", "completed", "cancelled", "failed", "failed", "recovering", "scheduled")
    ]
    assert [request.target.num_samples for request in found] == [3, 0, 1, 1, 1, 0, 2]
    assert {request.submitted_role for request in found} == {None}
    assert found[0].result["recovery_rounds"] == 2


def test_the_chain_goes_on_from_what_stood_there(opened: Ledger) -> None:
    """The events of before hold, and events of the migration commit to every row."""
    assert opened.verify_chain() is None
    assert opened.verify() == ""
    taken_over = [event.request_id for event in opened.events() if event.kind == "taken-over"]
    assert taken_over == [request.id for request in opened.list_requests()]


def test_ids_of_the_second_schema_are_hashed_where_they_are_needed_and_erased_elsewhere(
    opened: Ledger,
) -> None:
    """Completed, open and retryable requests keep keyed ids; cancelled ones and failures for good keep none."""
    key = KEYS.of("hospital-0")
    first, _, cancelled, retryable, failed, _, waiting = opened.list_requests()
    assert opened.target_of(first).sample_ids == {
        keyed_id(key, name) for name in ("patient-0017", "patient-0042", "patient-é")
    }
    assert all(is_keyed(item) for item in opened.target_of(waiting).sample_ids)
    assert len(opened.target_of(retryable).sample_ids) == 1
    for over in (cancelled, failed):
        with pytest.raises(IllegalMove, match="erased"):
            opened.target_of(over)


def test_no_id_of_the_second_schema_is_left_in_the_files(of_second_schema: str) -> None:
    """After the first start with a key neither the database nor its write-ahead log has one in clear."""
    if not of_second_schema.startswith("sqlite"):
        pytest.skip("PostgreSQL keeps the migration's own old rows until they are overwritten")
    path = Path(sa.make_url(of_second_schema).database or "")
    assert b"patient-0017" in path.read_bytes()
    Ledger.open(of_second_schema, KEYS).close()
    assert [file.name for file in path.parent.glob(f"{path.name}*") if b"patient-" in file.read_bytes()] == []


def test_opening_a_ledger_again_changes_nothing(of_second_schema: str) -> None:
    """The migration and the hashing of ids happen once."""
    Ledger.open(of_second_schema, KEYS).close()
    again = Ledger.open(of_second_schema, KEYS)
    head = again.event_head()
    again.close()
    once_more = Ledger.open(of_second_schema, KEYS)
    assert once_more.event_head() == head
    once_more.close()


def test_a_ledger_taken_over_goes_on(opened: Ledger) -> None:
    """Its requests move; the old key is the same request for its submitter, and another one for others."""
    target = Target(Granularity.SAMPLE, "hospital-0", frozenset({"patient-0001", "patient-0002"}))
    parameters = {"unlearning_rate": 2.0}
    by = "site of client hospital-0"
    same = submit(opened, target, key="k7", method="puf-special", parameters=parameters, submitted_by=by)
    assert same.id == "r-000007"
    other = submit(opened, Target(Granularity.CLIENT, "9"), key="k7", submitted_by=by, submitted_role="site")
    assert other.id == "r-000008"
    token = opened.acquire_fence("loop", now=datetime.now(UTC))
    for status in (Status.UNLEARNING, Status.RECOVERING, Status.VERIFYING):
        opened.move("r-000007", status, token=token, now=datetime.now(UTC))
    assert len(opened.exclusions().of("hospital-0").sample_ids) == 5
    assert opened.verify() == ""


def test_a_ledger_whose_key_was_lost_is_refused(opened: Ledger, of_second_schema: str) -> None:
    """With another key no client could tell which samples are meant."""
    with pytest.raises(ConfigurationError, match=r"subject-key.*backup"):
        Ledger.open(of_second_schema, SubjectKeys(b"x" * 32))
