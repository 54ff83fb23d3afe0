"""Brings a ledger under the federation's key of sample ids: hashes those that stand in it in clear."""

from datetime import UTC, datetime
from logging import getLogger

import sqlalchemy as sa

from server.ledger import chain, samples, schema, seals, statements
from server.ledger.database import Database, LedgerUnavailable
from server.ledger.records import target_of
from unlearning.errors import ConfigurationError
from unlearning.pseudonyms import SubjectKeys

_log = getLogger(__name__)
_table = schema.request_samples
_facts = schema.federation_facts
FACT = "subject-key"
"""The fact under which the ledger knows which key its ids were hashed with."""
KEYED = "keyed"
"""The kind of the event of a request whose ids were hashed afterwards."""


def key_all(database: Database, keys: SubjectKeys) -> None:
    """Hash all sample ids that are in clear, request by request; where there are none, only look.

    Raises:
        ConfigurationError: the ids of this ledger were hashed with another key.
        LedgerUnavailable: the database cannot be read or written.
    """
    with database.reading() as connection:
        known = connection.scalar(sa.select(_facts.c.value).where(_facts.c.key == FACT))
        plain = connection.scalars(sa.select(_table.c.request_number).where(~_table.c.is_keyed)).all()
    if known is not None and known != keys.identity:
        raise ConfigurationError(
            [
                f"subject-key: the sample ids in the ledger {database.name} were hashed with another key ({known}) "
                f"than the one in the state directory ({keys.identity}), so no client could tell which samples are "
                "meant. Put the file subject-key of a backup in its place."
            ]
        )
    now = datetime.now(UTC)
    if known is None:
        with database.writing() as connection:
            if connection.scalar(sa.select(_facts.c.value).where(_facts.c.key == FACT)) is None:
                connection.execute(sa.insert(_facts).values(key=FACT, value=keys.identity, at=now))
                seals.seal_whole(connection, _facts, now)
    for number in plain:
        with database.writing() as connection:
            _key(connection, number, keys, now)
    if plain:
        _log.info(
            "The sample ids of %d request(s) were in clear in the ledger; now they are hashed.", len(plain)
        )
        try:
            database.compact(_table.c.sample_ids)
        except LedgerUnavailable as exc:
            _log.warning(
                "The ledger's files may still have the ids in places that are free: %s Stop the other processes, then "
                "run: sqlite3 LEDGER 'VACUUM; PRAGMA wal_checkpoint(TRUNCATE)', or, on PostgreSQL, VACUUM FULL "
                "request_samples.",
                exc,
            )


def _key(connection: sa.Connection, number: int, keys: SubjectKeys, now: datetime) -> None:
    row = connection.execute(sa.select(schema.requests).where(schema.requests.c.number == number)).one()
    target = samples.load_target(connection, number, target_of(row), keys)
    values = samples.values_of(target.sample_ids) if target.sample_ids else {"is_keyed": True}
    mine = (_table.c.request_number == number) & ~_table.c.is_keyed
    if connection.execute(
        sa.update(_table).where(mine).values(values)
    ).rowcount:  # not another process just now
        detail = statements.row_seal(connection, row)
        chain.append(connection, number, KEYED, actor=seals.ACTOR, detail=detail, now=now)
