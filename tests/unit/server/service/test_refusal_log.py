"""Refusals are all counted, and nobody fills the disk by being refused."""

import pytest

from server.ledger import Ledger, LedgerUnavailable, LimitExceeded, Refusal
from server.service.access import Caller
from server.service.calls import Role
from server.service.refusal_log import ROWS_AT_ONCE, RefusalLog
from server.service.statuses import AccessDenied
from tests.deletion_service import NOW
from unlearning.errors import RequestError, RequestNotFound

EVE = Caller("eve", Role.CLIENT)


@pytest.fixture
def ledger(sqlite_ledger: Ledger) -> Ledger:
    return sqlite_ledger


def record(refusals: RefusalLog, caller: Caller, call: str, error: RequestError) -> None:
    """What the checks do with a refusal."""
    refusals.write(refusals.take(caller, call, error))


@pytest.fixture
def seconds() -> list[float]:
    """The time, which the test sets."""
    return [0.0]


@pytest.fixture
def refusals(ledger: Ledger, seconds: list[float]) -> RefusalLog:
    return RefusalLog(ledger, clock=lambda: NOW, monotonic=lambda: seconds[0])


def test_a_refusal_is_in_the_ledger_at_once(refusals: RefusalLog, ledger: Ledger) -> None:
    """Who, as what, which call, why, and how the answer was."""
    record(refusals, EVE, "GetRequest", AccessDenied("not yours"))
    assert ledger.refusals() == [
        Refusal(
            sequence=1,
            at=NOW,
            caller="eve",
            role="client",
            call="GetRequest",
            reason="not yours",
            detail={"error": "AccessDenied", "status": "PERMISSION_DENIED", "times": 1},
        )
    ]


def test_what_the_caller_may_not_know_is_recorded(refusals: RefusalLog, ledger: Ledger) -> None:
    """The reason behind a discreet answer."""
    error = RequestNotFound("No deletion request.")
    error.__cause__ = AccessDenied("asked for r-000001, which is not about itself")
    record(refusals, EVE, "GetRequest", error)
    assert ledger.refusals()[0].reason == "asked for r-000001, which is not about itself"


def test_a_flood_is_counted_and_loses_nobody(
    refusals: RefusalLog, ledger: Ledger, seconds: list[float]
) -> None:
    """A thousand refusals at once make few rows, whose counts add up; another caller has rows of its own."""
    for _ in range(1000):
        record(refusals, EVE, "GetRequest", LimitExceeded("too many"))
    record(refusals, Caller("bob", Role.CLIENT), "GetRequest", AccessDenied("no"))
    assert len(ledger.refusals()) == ROWS_AT_ONCE + 1
    seconds[0] = 10.0
    record(refusals, EVE, "GetRequest", LimitExceeded("too many"))
    rows = ledger.refusals(caller="eve")
    assert len(rows) == ROWS_AT_ONCE + 2
    assert sum(row.detail["times"] for row in rows) == 1001


def test_what_was_only_counted_is_written_at_the_end(refusals: RefusalLog, ledger: Ledger) -> None:
    """A service that stops loses no count."""
    for _ in range(150):
        record(refusals, EVE, "GetRequest", LimitExceeded("too many"))
    refusals.close()
    assert sum(row.detail["times"] for row in ledger.refusals()) == 150


def test_a_ledger_that_cannot_be_written_is_logged(
    refusals: RefusalLog, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The refusal stands, and the log has it."""

    def broken(self: Ledger, rows: list[Refusal]) -> None:
        raise LedgerUnavailable("disk full")

    monkeypatch.setattr(Ledger, "record_refusals", broken)
    record(refusals, EVE, "GetRequest", AccessDenied("no"))
    assert "disk full" in caplog.text
    assert "eve GetRequest" in caplog.text
