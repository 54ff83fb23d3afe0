"""The ledger's tables, as the newest migration leaves them.

`migrations/` creates them and adds what SQLAlchemy cannot describe: the triggers that refuse an
illegal move and any change of what is append-only. A test compares the two.
"""

from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Dialect


class UtcDateTime(sa.TypeDecorator[datetime]):
    """A timezone-aware time, stored as UTC; SQLite, which knows no time zones, stores it without."""

    impl = sa.DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Return the value for the database."""
        if value is None:
            return None
        assert value.tzinfo is not None, "the ledger takes timezone-aware times only"
        utc = value.astimezone(UTC)
        return utc.replace(tzinfo=None) if dialect.name == "sqlite" else utc

    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:
        """Return the value from the database."""
        if value is None:
            return None
        assert isinstance(value, datetime)
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


metadata = sa.MetaData()

legal_moves = sa.Table(
    "legal_moves",
    metadata,
    sa.Column("from_status", sa.String(20), primary_key=True),
    sa.Column("to_status", sa.String(20), primary_key=True),
)

requests = sa.Table(
    "requests",
    metadata,
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("idempotency_key", sa.String(200), nullable=False),
    sa.Column("target", sa.JSON, nullable=False),
    sa.Column("client_id", sa.String(200), nullable=True),
    sa.Column("method", sa.String(100), nullable=False, index=True),
    sa.Column("parameters", sa.JSON, nullable=False),
    sa.Column("submitted_by", sa.String(200), nullable=False),
    sa.Column("status", sa.String(20), nullable=False),
    sa.Column("reason", sa.Text, nullable=False, default=""),
    sa.Column("retryable", sa.Boolean, nullable=False, default=False),
    sa.Column("approvals_needed", sa.Integer, nullable=False, default=0),
    sa.Column("attempts", sa.Integer, nullable=False, default=0),
    sa.Column("outcome", sa.String(20), nullable=True),  # requests.Outcome; null before it is completed
    sa.Column("created_at", UtcDateTime, nullable=False),
    sa.Column("updated_at", UtcDateTime, nullable=False, index=True),
    sa.Column("result", sa.JSON, nullable=False, default={}),
    sa.Column(
        "submitted_role", sa.String(20), nullable=True
    ),  # of a certificate; null: none was written down
    sa.Column("num_samples", sa.Integer, nullable=False),  # their ids are in request_samples
    sa.Column("received_on", sa.Date, nullable=False, index=True),
    sa.Column("due_on", sa.Date, nullable=False),  # with extended_days
    sa.Column("extended_days", sa.Integer, nullable=False, default=0),  # 0: never extended
    sa.Column("ground", sa.String(1), nullable=True),  # a letter of Art. 17(1)
    sa.Column("is_held", sa.Boolean, nullable=False, default=False),
    sqlite_autoincrement=True,  # the number of a request is never given again
)

# A key belongs to its submitter. NULL never equals NULL in a unique index.
_BY_KEY = (requests.c.submitted_by, requests.c.idempotency_key)
_WITHOUT_ROLE = requests.c.submitted_role.is_(None)
sa.Index("one_request_per_key", *_BY_KEY, requests.c.submitted_role, unique=True)
sa.Index(
    "one_request_per_key_without_role",
    *_BY_KEY,
    unique=True,
    sqlite_where=_WITHOUT_ROLE,
    postgresql_where=_WITHOUT_ROLE,
)

# Lists are sorted by these, and by the indexes of columns above; each scrape of the metrics reads what is due next.
sa.Index("ix_requests_due_on", requests.c.due_on)
# All that a list is filtered and sorted by, so that no filter reads the rows of requests that it does not find.
sa.Index(
    "ix_requests_status",
    *(requests.c.status, requests.c.due_on, requests.c.number, requests.c.outcome, requests.c.is_held),
    *(requests.c.received_on, requests.c.updated_at, requests.c.client_id, requests.c.method),
)
sa.Index("ix_requests_client_id", requests.c.client_id, requests.c.method, requests.c.submitted_by)

# Each new request counts the open ones of its submitter.
sa.Index("ix_requests_submitted_by_status", requests.c.submitted_by, requests.c.status)

# Each new request counts what its submitter has filed lately.
sa.Index("ix_requests_submitted_by_created_at", requests.c.submitted_by, requests.c.created_at)

request_samples = sa.Table(
    "request_samples",
    metadata,
    sa.Column("request_number", sa.ForeignKey("requests.number"), primary_key=True, autoincrement=False),
    sa.Column("sha256", sa.String(64), nullable=False),  # of sample_ids
    sa.Column("sample_ids", sa.Text, nullable=True),  # unlearning.requests.list_ids; null once erased
)

request_texts = sa.Table(
    "request_texts",
    metadata,
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("request_number", sa.ForeignKey("requests.number"), nullable=False, index=True),
    sa.Column("kind", sa.String(20), nullable=False),  # texts.Kind
    sa.Column("sha256", sa.String(64), nullable=False),  # of salt and text (texts.commitment); stays
    sa.Column("salt", sa.String(64), nullable=True),  # null once erased, as the text
    sa.Column("text", sa.Text, nullable=True),
    sqlite_autoincrement=True,
)

events = sa.Table(
    "events",
    metadata,
    sa.Column("sequence", sa.Integer, primary_key=True, autoincrement=False),  # chain.append gives it
    # null: of the federation, such as a round's
    sa.Column("request_number", sa.ForeignKey("requests.number"), nullable=True, index=True),
    sa.Column("kind", sa.String(100), nullable=False),
    sa.Column("from_status", sa.String(20), nullable=True),
    sa.Column("to_status", sa.String(20), nullable=True),
    sa.Column("actor", sa.String(200), nullable=False),
    sa.Column("detail", sa.JSON, nullable=False),
    sa.Column("at", UtcDateTime, nullable=False),
    sa.Column("previous_hash", sa.String(64), nullable=False),
    sa.Column("hash", sa.String(64), nullable=False),
)
sa.Index("events_never_fork", events.c.previous_hash, unique=True)

exclusions = sa.Table(
    "exclusions",
    metadata,
    # What is excluded is the request's target, which never changes; a request excludes it once.
    sa.Column("request_number", sa.ForeignKey("requests.number"), primary_key=True, autoincrement=False),
    sa.Column("at", UtcDateTime, nullable=False),
)

clients = sa.Table(
    "clients",
    metadata,
    sa.Column("client_id", sa.String(200), primary_key=True),
    sa.Column("node_name", sa.Text, nullable=False),
    sa.Column("public_key_hex", sa.Text, nullable=False),
    sa.Column("online", sa.Boolean, nullable=False),
    sa.Column("last_seen", UtcDateTime, nullable=True),
)

rounds = sa.Table(
    "rounds",
    metadata,
    sa.Column("sequence", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("round", sa.Integer, nullable=False),
    sa.Column("kind", sa.String(20), nullable=False),
    sa.Column("request_ids", sa.JSON, nullable=False),
    sa.Column("metrics", sa.JSON, nullable=False),
    sa.Column("at", UtcDateTime, nullable=False),
    sqlite_autoincrement=True,
)

fence = sa.Table(
    "fence",
    metadata,
    sa.Column("id", sa.Integer, sa.CheckConstraint("id = 1", name="one_fence"), primary_key=True),
    sa.Column("token", sa.Integer, nullable=False),
    sa.Column("holder", sa.String(200), nullable=False),
    sa.Column("acquired_at", UtcDateTime, nullable=True),
)

refusals = sa.Table(
    "refusals",
    metadata,
    sa.Column("sequence", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("at", UtcDateTime, nullable=False),
    sa.Column("caller", sa.String(200), nullable=False),
    sa.Column("role", sa.String(20), nullable=False),
    sa.Column("call", sa.String(100), nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("detail", sa.JSON, nullable=False),
    sqlite_autoincrement=True,
)

site_questions = sa.Table(
    "site_questions",
    metadata,
    sa.Column("id", sa.String(64), primary_key=True),  # SHA-256 of client and ids
    sa.Column("client_id", sa.String(200), nullable=False),
    sa.Column("sample_ids", sa.JSON, nullable=False),
    sa.Column("asked_at", UtcDateTime, nullable=False),
    sa.Column("answer", sa.JSON(none_as_null=True), nullable=True),  # unlearning.requests.KnownSamples
)

federation_facts = sa.Table(
    "federation_facts",
    metadata,
    sa.Column("key", sa.String(100), primary_key=True),
    sa.Column("value", sa.JSON, nullable=False),
    sa.Column("at", UtcDateTime, nullable=False),
)
