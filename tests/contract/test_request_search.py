"""What lists of requests are filtered, searched and sorted by, on both databases."""

import itertools
import re
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from server.console.request_list import FILTERS
from server.ledger import Due, Ledger, Order, RequestFilter, request_search
from server.ledger.database import Database
from tests.ledgers import CLIENT_4, LATER, NOW, advance, submit
from unlearning.gdpr import Amendment, Particulars
from unlearning.requests import DeletionRequest, Status

TODAY = NOW.date()


LISTS: list[tuple[dict[str, Any], list[int]]] = [
    ({}, [1, 2, 3, 4]),
    ({"statuses": (Status.FAILED, Status.CANCELLED)}, [3, 4]),
    ({"client_id": "4"}, [2, 3, 4]),
    ({"due": Due.OVERDUE}, [1]),
    ({"due": Due.SOON}, [2]),
    ({"held": True}, [2]),
    ({"first": TODAY}, [2, 3, 4]),
    ({"last": TODAY - timedelta(days=1)}, [1]),
    ({"since": LATER}, [3, 4]),
    ({"after": 2}, [3, 4]),
    ({"text": "dsb-17"}, [1]),
    ({"text": "letter dsb"}, [1]),
    ({"text": "50%"}, [1]),
    ({"text": "5_%"}, []),
    ({"text": "court"}, [2]),
    ({"text": "BERTA"}, [2]),
    ({"text": "retrain"}, [3]),
    ({"text": "R-000004"}, [4]),
    ({"text": str(TODAY + timedelta(days=3))}, [2]),
    ({"text": f"{TODAY - timedelta(days=40):%Y-%m}"}, [1]),
    ({"text": "letter retrain"}, []),
    ({"text": "MÜLLER"}, [1]),
    ({"text": "r-00000", "descending": True}, [4, 3, 2, 1]),
    ({"text": "r-0", "statuses": (Status.FAILED, Status.CANCELLED)}, [3, 4]),
    ({"text": "r-0", "order": Order.CHANGED, "descending": True}, [4, 3, 2, 1]),
    ({"order": Order.DUE}, [1, 2, 3, 4]),
    ({"order": Order.METHOD, "descending": True}, [3, 4, 2, 1]),
    ({"order": Order.CHANGED, "descending": True}, [4, 3, 2, 1]),
]
"""Filters, and the numbers of the requests that each finds."""


@pytest.fixture
def four(ledger: Ledger, token: int) -> list[DeletionRequest]:
    """An overdue one with texts, one that is due soon and held, a failed one, and one that was withdrawn."""
    late = Particulars(
        received_on=TODAY - timedelta(days=40), reference="DSB-17", note="by Letter, 50% done, Frau Müller"
    )
    soon = Particulars(due_on=TODAY + timedelta(days=3))
    filed = [
        submit(ledger, key="a", particulars=late),
        submit(ledger, CLIENT_4, key="b", particulars=soon, submitted_by="berta"),
        submit(ledger, CLIENT_4, key="c", method="retrain"),
        submit(ledger, CLIENT_4, key="d"),
    ]
    ledger.decisions.hold(filed[1].id, by="ada", reason="a court wants it kept", now=NOW)
    advance(ledger, filed[2].id, Status.FAILED, token)
    ledger.decisions.cancel(filed[3].id, by="ada", now=LATER)
    return filed


def found(ledger: Ledger, **wanted: Any) -> list[int]:
    page = ledger.requests.page(RequestFilter(**wanted), today=TODAY)
    assert page.total == len(page.requests)
    return [int(item.id.removeprefix("r-")) for item in page.requests]


@pytest.mark.parametrize("most_named", [500, 0])
def test_a_list_has_what_its_filter_asks_for_in_its_order(
    ledger: Ledger, four: list[DeletionRequest], most_named: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each condition by itself; words in any case, each of them somewhere, whether few requests have them or many."""
    assert len(four) == 4
    monkeypatch.setattr(request_search, "_MOST_NAMED", most_named)
    assert [(wanted, found(ledger, **wanted)) for wanted, _ in LISTS] == LISTS
    totals = ledger.requests.totals([RequestFilter(**wanted) for wanted, _ in LISTS], today=TODAY)
    assert totals == tuple(len(numbers) for _, numbers in LISTS)


def test_a_page_has_its_requests_as_they_are_and_the_number_of_all(
    ledger: Ledger, four: list[DeletionRequest]
) -> None:
    """Also behind the last one."""
    wanted = RequestFilter(descending=True, offset=1, limit=2)
    page = ledger.requests.page(wanted, today=TODAY)
    assert page.requests == (ledger.requests.get(four[2].id), ledger.requests.get(four[1].id))
    assert page.total == 4
    beyond = ledger.requests.page(replace(wanted, offset=9), today=TODAY)
    assert (beyond.requests, beyond.total) == ((), 4)


def test_an_erased_text_is_found_no_more(ledger: Ledger, four: list[DeletionRequest]) -> None:
    """Nothing of it is left in what a search reads."""
    ledger.decisions.redact(four[0].id, by="ada", now=LATER)
    assert found(ledger, text="dsb-17") == []


@pytest.mark.parametrize("most_named", [500, 0])
def test_a_search_sees_what_another_process_has_changed_since_the_last_one(
    ledger: Ledger, four: list[DeletionRequest], most_named: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New requests come last, and an event of the federation between them hides nothing."""
    monkeypatch.setattr(request_search, "_MOST_NAMED", most_named)
    assert found(ledger, text="puf") == [1, 2, 4]
    other = Ledger(ledger.database)
    other.decisions.amend(four[3].id, what=Amendment(note="Brief vom Montag"), by="ada", now=LATER)
    other.acquire_fence("restart", now=LATER)
    submit(other, key="e")
    assert found(ledger, text="montag") == [4]
    assert found(ledger, text="puf") == [1, 2, 4, 5]


@pytest.mark.parametrize("most_named", [500, 0])
def test_a_list_reads_no_row_of_a_request_that_it_does_not_find(
    tmp_path: Path, most_named: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite says so of each filter in each order: an index has all that is compared, or the words have found them."""
    monkeypatch.setattr(request_search, "_MOST_NAMED", most_named)
    plans: list[str] = []

    def explain(connection: sa.Connection, _cursor: Any, statement: str, values: Any, *_: Any) -> None:
        if " AS total" not in statement or "ORDER BY" not in statement:
            return  # it reads what was found, or what words are looked for in
        raw = connection.connection.driver_connection
        assert raw is not None
        plans.extend(row[3] for row in raw.execute(f"EXPLAIN QUERY PLAN {statement}", values))

    ledger = Ledger.open(f"sqlite:///{tmp_path}/ledger.db")
    submit(ledger)
    sa.event.listen(ledger.database._engine, "before_cursor_execute", explain)
    periods: list[dict[str, Any]] = [{}, {"first": TODAY}, {"last": TODAY}, {"since": NOW}]
    kinds = [FILTERS[name] for name in ("open", "overdue", "held", "not shown", "reduced", "completed")]
    narrowed = [{**one, **other} for one, other in itertools.product(kinds, periods)]
    searches = [{**one, "text": "r-0"} for one in (*narrowed, {})]
    for wanted, order in itertools.product([*narrowed, *periods[1:], *searches], Order):
        ledger.requests.page(RequestFilter(**wanted, order=order, limit=50), today=TODAY)
    reads = {plan for plan in plans if re.search(r"(SCAN|SEARCH) requests\b", plan)}
    assert len(reads) > 3
    assert [plan for plan in sorted(reads) if not re.search("COVERING INDEX|PRIMARY KEY", plan)] == []
    ledger.close()


def test_a_ledger_of_the_first_schema_becomes_one_of_the_newest(empty_url: str) -> None:
    """Its lists find what they found, by the indexes of a new ledger."""
    Ledger.open(empty_url).close()
    database = Database(empty_url)
    with database.writing() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '0001'")
        connection.exec_driver_sql("DROP INDEX ix_requests_status")
        connection.exec_driver_sql(
            "CREATE INDEX ix_requests_status ON requests (status, due_on, number, outcome)"
        )
    ledger = Ledger.open(empty_url)
    submit(ledger)
    assert found(ledger, statuses=(Status.RECEIVED,)) == [1]
    with database.reading() as connection:
        made = {one["name"]: one["column_names"] for one in sa.inspect(connection).get_indexes("requests")}
    for index in request_search.schema.requests.indexes:
        assert made[index.name] == [column.name for column in index.columns]
    ledger.close()
    database.close()


def test_every_order_reads_an_index_and_sorts_no_whole_table() -> None:
    """So that a page of 100,000 requests takes milliseconds: each column that is sorted by begins an index."""
    table = request_search.schema.requests
    indexed = {next(iter(index.columns)) for index in table.indexes} | set(table.primary_key.columns)
    assert {request_search.COLUMNS[order] for order in Order} <= indexed
