"""The ledger: every deletion request, what happened to it, and what is forgotten permanently.

Import from here: `Ledger`, `LedgerWriter` (for the ServerApp), the records `ClientRecord`, `RoundRecord`, `Event`,
`Refusal`, `NewRequest`, `Allowance`, `Quota`, what lists ask for (`RequestFilter`, `RequestPage`), and the errors
`LedgerUnavailable`, `LimitExceeded`. It is one SQLite file or one PostgreSQL database, shared by every process of the
server host. Its invariants live in the database (migrations/), not only in this code. The events are chained by hashes
(chain.py) and commit to all other rows (row_seals.py).

This package may import `unlearning.requests`, `unlearning.pseudonyms` and `unlearning.errors`, nothing else of the
project.
"""

from typing import TYPE_CHECKING, Any

from server.ledger.records import (
    APPROVAL,
    FEDERATION,
    LEFT_OUT,
    OWN_COMPARISONS,
    PRIVATE_TRAINING,
    SAMPLE_PRIVACY,
    SITE,
    SITE_PROBLEMS,
    UNBOUNDED,
    WAITING,
    Allowance,
    ClientRecord,
    Event,
    LedgerUnavailable,
    LimitExceeded,
    NewRequest,
    Quota,
    Refusal,
    RoundRecord,
)
from server.ledger.request_filter import Due, Order, RequestFilter, RequestLists, RequestPage

if TYPE_CHECKING:
    from server.ledger.store import Ledger
    from server.ledger.writer import LedgerWriter

__all__ = [
    "APPROVAL",
    "FEDERATION",
    "LEFT_OUT",
    "OWN_COMPARISONS",
    "PRIVATE_TRAINING",
    "SAMPLE_PRIVACY",
    "SITE",
    "SITE_PROBLEMS",
    "UNBOUNDED",
    "WAITING",
    "Allowance",
    "ClientRecord",
    "Due",
    "Event",
    "Ledger",
    "LedgerUnavailable",
    "LedgerWriter",
    "LimitExceeded",
    "NewRequest",
    "Order",
    "Quota",
    "Refusal",
    "RequestFilter",
    "RequestLists",
    "RequestPage",
    "RoundRecord",
]


def __getattr__(name: str) -> Any:
    """Import what needs SQLAlchemy on first use: callers of the service do without."""
    if name in ("Ledger", "LedgerWriter"):
        from server.ledger import store, writer

        return {"Ledger": store.Ledger, "LedgerWriter": writer.LedgerWriter}[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
