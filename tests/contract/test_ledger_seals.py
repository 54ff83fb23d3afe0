"""Whatever is changed in the ledger's tables past this program is found, or stands in a list with its reason."""

from datetime import date, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from server.ledger import ClientRecord, Ledger, RoundRecord, schema
from tests.ledgers import CLIENT_4, LATER, NOW, advance, live_at, refusal, submit
from unlearning.gdpr import Amendment, Ground, Particulars
from unlearning.requests import Granularity, Status, Target

NOT_COVERED = {
    "site_questions": "of what may never be filed; a row lasts five minutes, and no deletion rests on it",
    "clients": "the live loop writes it over from Flower's register of nodes at each round; no deletion rests on it",
}


@pytest.fixture
def full(ledger: Ledger, token: int, url: str) -> Ledger:
    """A ledger with something in every table."""
    live_at(ledger, token, NOW).set_facts({"federation": {"task": "digits"}, "note": None})
    live_at(ledger, token, NOW).register_clients([ClientRecord("3", "hospital-3", "abcd")])
    ledger.site_questions.ask("3", {"a"}, now=NOW)
    samples = Target(Granularity.SAMPLE, "3", frozenset({"a", "b"}))
    advance(ledger, submit(ledger, samples, submitted_role="client").id, Status.COMPLETED, token)
    for number in (1, 2, 3):
        live_at(ledger, token).record_round(
            RoundRecord(round=number, kind="training", metrics={"x": 0.1}, at=NOW)
        )
    given = Particulars(ground=Ground.B, reference="DSR-7", note="asked by letter")
    submit(ledger, Target(Granularity.CLASS, class_label=3), key="2", particulars=given)
    submit(ledger, samples, key="3")
    ledger.decisions.cancel("r-000003", by="ada", now=LATER)
    submit(ledger, CLIENT_4, key="4", particulars=given)
    ledger.decisions.extend("r-000004", days=3, reason="many systems", by="ada", now=LATER)
    ledger.decisions.hold("r-000002", reason="a lawsuit", by="ada", now=LATER)
    ledger.decisions.redact("r-000004", by="ada", now=LATER)
    ledger.decisions.amend("r-000002", what=Amendment(ground="c", note="asked again"), by="ada", now=LATER)
    ledger.record_refusals([refusal(), refusal(caller="mallory")])
    ledger.record_refusals([refusal()])
    return ledger


def test_every_changed_column_is_found(full: Ledger, owner: sa.Connection) -> None:
    """Each column of the first row of each table, changed by SQL; what is missed is what the list names."""
    missed = set()
    for table in schema.metadata.sorted_tables:
        key = next(iter(table.primary_key))
        row = owner.execute(sa.select(table).order_by(key).limit(1)).one()
        owner.rollback()
        for column in table.c:
            changed = other(row._mapping[column.name], column)
            if not written(owner, sa.update(table).where(key == row._mapping[key.name]), column, changed):
                continue  # the database itself refuses that
            if not full.events.verify():
                missed.add(table.name)
            here = changed if column is key else row._mapping[key.name]
            written(owner, sa.update(table).where(key == here), column, row._mapping[column.name])
            assert full.events.verify() == "", f"{table.name}.{column.name} is as it was"
    assert missed == set(NOT_COVERED)


@pytest.mark.parametrize(
    "name", [table.name for table in schema.metadata.sorted_tables if table.name not in NOT_COVERED]
)
def test_a_removed_row_is_found(full: Ledger, owner: sa.Connection, name: str) -> None:
    """A row in the middle or the only one, of any table."""
    table = schema.metadata.tables[name]
    key = next(iter(table.primary_key))
    keys = owner.scalars(sa.select(key).order_by(key)).all()
    owner.execute(sa.delete(table).where(key == keys[len(keys) // 2]))
    owner.commit()
    assert full.events.verify() != ""


@pytest.mark.parametrize(
    ("name", "values"),
    [
        (
            "rounds",
            {"sequence": 9, "round": 9, "kind": "training", "request_ids": [], "metrics": {}, "at": NOW},
        ),
        ("exclusions", {"request_number": 2, "at": NOW}),
        ("request_samples", {"request_number": 2, "sha256": "", "sample_ids": '["x"]'}),
        (
            "request_texts",
            {"request_number": 2, "kind": "note", "sha256": "0" * 64, "salt": "00", "text": "x"},
        ),
        ("federation_facts", {"key": "new", "value": 1, "at": NOW}),
        ("legal_moves", {"from_status": "completed", "to_status": "received"}),
        (
            "refusals",
            {"sequence": 9, "at": NOW, "caller": "a", "role": "b", "call": "c", "reason": "d", "detail": {}},
        ),
    ],
)
def test_a_row_that_was_put_in_is_found(
    full: Ledger, owner: sa.Connection, name: str, values: dict[str, Any]
) -> None:
    """A round, an exclusion, a list of ids, a fact, a move or a refusal that never was."""
    owner.execute(sa.insert(schema.metadata.tables[name]).values(values))
    owner.commit()
    assert full.events.verify() != ""


def test_an_emptied_ledger_fits_no_head_that_was_kept(full: Ledger, owner: sa.Connection) -> None:
    """Nothing that is left contradicts itself, so it takes the head in a certificate or a file to see it."""
    sequence, digest = full.events.head()
    for table in reversed(schema.metadata.sorted_tables):
        if table.name not in ("legal_moves", "fence"):
            owner.execute(sa.delete(table))
    owner.execute(sa.update(schema.fence).values(token=0, holder="", acquired_at=None))
    owner.commit()
    assert full.events.verify() == ""
    assert full.events.hash_of(sequence) != digest


def test_given_back_ids_are_missed_only_where_the_request_is_over(full: Ledger, owner: sa.Connection) -> None:
    """The ids of a completed deletion are needed, so their loss is found; a cancelled request has none."""
    table = schema.request_samples
    assert owner.scalar(sa.select(table.c.sample_ids).where(table.c.request_number == 3)) is None
    owner.execute(sa.update(table).where(table.c.request_number == 1).values(sample_ids=None))
    owner.commit()
    assert "r-000001 were erased" in full.events.verify()


def other(value: Any, column: sa.Column[Any]) -> Any:
    """Another value that the column takes."""
    if isinstance(column.type, sa.JSON):
        return {"another": 1}
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1000
    if isinstance(value, str):
        return f"{value[:-1]}~"
    if isinstance(value, datetime):
        return value + timedelta(seconds=1)
    if isinstance(value, date):
        return value + timedelta(days=1)
    assert value is None
    return {"Integer": 7, "UtcDateTime": NOW}.get(type(column.type).__name__, "x")


def written(owner: sa.Connection, where: sa.Update, column: sa.Column[Any], value: Any) -> bool:
    """Whether the database took the change."""
    if isinstance(column.type, sa.JSON) and value is None:
        value = sa.JSON.NULL  # the JSON null, which is what stands there
    try:
        owner.execute(where.values({column.name: value}))
        owner.commit()
    except sa.exc.IntegrityError:
        owner.rollback()
        return False
    return True
