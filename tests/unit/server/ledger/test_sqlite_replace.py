"""SQLite's OR REPLACE removes rows without asking the triggers for DELETE; other triggers stop it."""

import pytest
import sqlalchemy as sa

from server.ledger import Ledger
from tests.ledgers import CLIENT_4, NOW, advance, live_at, submit
from unlearning.requests import Status


@pytest.fixture
def ledger(sqlite_ledger: Ledger) -> Ledger:
    """Request 1 for client 3 failed, request 2 for client 3 is open, request 3 for client 4 is forgotten."""
    token = sqlite_ledger.acquire_fence("loop", now=NOW)
    submit(sqlite_ledger)
    live_at(sqlite_ledger, token, NOW).move("r-000001", Status.FAILED, retryable=True)
    submit(sqlite_ledger, key="2")
    advance(sqlite_ledger, submit(sqlite_ledger, CLIENT_4, key="3").id, Status.VERIFYING, token)
    return sqlite_ledger


AN_EVENT = "'forged', from_status, to_status, actor, detail, at, previous_hash, hash FROM events"
A_REQUEST = (
    "target, client_id, method, parameters, submitted_by, 'received', reason, retryable, approvals_needed, attempts, "
    "outcome, created_at, updated_at, result, submitted_role, num_samples, received_on, due_on, extended_days, "
    "ground, is_held FROM requests WHERE number = 2"
)


@pytest.mark.parametrize(
    "statement",
    [
        f"INSERT OR REPLACE INTO events SELECT sequence, request_number, {AN_EVENT}",
        f"INSERT OR REPLACE INTO events SELECT 99, request_number, {AN_EVENT} WHERE sequence = 1",
        "INSERT OR REPLACE INTO exclusions SELECT request_number, '2000-01-01' FROM exclusions",
        "REPLACE INTO legal_moves VALUES ('received', 'scheduled')",
        f"REPLACE INTO requests SELECT number, 'new key', {A_REQUEST}",
        f"REPLACE INTO requests SELECT 99, idempotency_key, {A_REQUEST}",
    ],
)
def test_or_replace_removes_nothing(ledger: Ledger, statement: str) -> None:
    """Every form of OR REPLACE that would swallow a row is refused."""
    before = (ledger.requests.select(), ledger.events.page(), ledger.exclusions())
    engine = sa.create_engine(ledger.database.name)
    with pytest.raises(sa.exc.IntegrityError), engine.begin() as connection:
        connection.exec_driver_sql(statement)
    engine.dispose()
    assert (ledger.requests.select(), ledger.events.page(), ledger.exclusions()) == before
