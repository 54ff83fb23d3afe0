"""SQLite's OR REPLACE removes rows without asking the triggers for DELETE; other triggers stop it."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
import sqlalchemy as sa

from server.ledger import Ledger
from tests.ledgers import submit
from unlearning.requests import Granularity, Status, Target

NOW = datetime(2026, 3, 1, tzinfo=UTC)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'ledger.db'}"


@pytest.fixture
def ledger(url: str) -> Iterator[Ledger]:
    """Request 1 for client 3 failed, request 2 for client 3 is open, request 3 for client 4 is forgotten."""
    opened = Ledger.open(url)
    token = opened.acquire_fence("loop", now=NOW)
    for key, client in (("1", "3"), ("2", "3"), ("3", "4")):
        request = submit(opened, Target(Granularity.CLIENT, client), key=key)
        if key == "1":
            opened.move(request.id, Status.FAILED, token=token, now=NOW, retryable=True)
    for status in (Status.SCHEDULED, Status.UNLEARNING, Status.RECOVERING, Status.VERIFYING):
        opened.move("r-000003", status, token=token, now=NOW)
    yield opened
    opened.close()


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT OR REPLACE INTO events SELECT sequence, request_number, 'forged', from_status, to_status, "
        "actor, detail, at, previous_hash, hash FROM events",
        "INSERT OR REPLACE INTO events SELECT 99, request_number, 'forged', from_status, to_status, "
        "actor, detail, at, previous_hash, hash FROM events WHERE sequence = 1",
        "INSERT OR REPLACE INTO exclusions SELECT request_number, '2000-01-01' FROM exclusions",
        "REPLACE INTO legal_moves VALUES ('received', 'scheduled')",
        "REPLACE INTO requests SELECT number, idempotency_key, target_key, target, client_id, method, "
        "parameters, submitted_by, 'received', reason, retryable, attempts, created_at, updated_at, result, "
        "submitted_role, num_samples, received_on, due_on, extended_days, ground, is_held FROM requests "
        "WHERE number = 2",
        "REPLACE INTO requests SELECT 99, idempotency_key, 'client/x', target, client_id, method, "
        "parameters, submitted_by, 'received', reason, retryable, attempts, created_at, updated_at, result, "
        "submitted_role, num_samples, received_on, due_on, extended_days, ground, is_held FROM requests "
        "WHERE number = 2",
        "REPLACE INTO requests SELECT 99, 'new key', target_key, target, client_id, method, "
        "parameters, submitted_by, 'received', reason, retryable, attempts, created_at, updated_at, result, "
        "submitted_role, num_samples, received_on, due_on, extended_days, ground, is_held FROM requests "
        "WHERE number = 2",
        "UPDATE OR REPLACE requests SET status = 'scheduled' WHERE number = 1",
    ],
)
def test_or_replace_removes_nothing(ledger: Ledger, url: str, statement: str) -> None:
    """Every form of OR REPLACE that would swallow a row is refused."""
    before = (ledger.list_requests(), ledger.events(), ledger.exclusions())
    engine = sa.create_engine(url)
    with pytest.raises(sa.exc.IntegrityError), engine.begin() as connection:
        connection.exec_driver_sql(statement)
    engine.dispose()
    assert (ledger.list_requests(), ledger.events(), ledger.exclusions()) == before
