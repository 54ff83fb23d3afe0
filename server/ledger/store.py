"""The ledger: what was asked, by whom, where it stands, and what may never be trained on again.

Two kinds of callers write: people, through the deletion service (`submit`, `cancel`, `retry`, `extend`, …), and
the live loop, which shows the token of the fence with every write. A loop that was thought dead and
comes back shows an old token, and is stopped by `Fenced` before it changes anything.
"""

from datetime import UTC, datetime

import sqlalchemy as sa

from server.ledger import schema, seals
from server.ledger.database import Database
from server.ledger.deadlines import DeadlinesPart
from server.ledger.history import HistoryPart
from server.ledger.live_loop import LiveLoopPart
from server.ledger.requests import RequestsPart
from unlearning.errors import ConfigurationError
from unlearning.pseudonyms import SubjectKeys

SUBJECT_KEY = "subject-key"
"""The fact that says with which key the ledger's sample ids are hashed."""


class Ledger(RequestsPart, DeadlinesPart, HistoryPart, LiveLoopPart):
    """The durable record that the deletion service, the live loop and the supervisor share.

    What a method has written is on disk when it returns. Times are timezone-aware and kept as UTC.
    One object serves several threads; several processes may open the same database.
    """

    @classmethod
    def open(cls, url: str, keys: SubjectKeys | None = None) -> "Ledger":
        """Open, and where needed create or migrate, the ledger at a SQLite or PostgreSQL URL.

        keys: of the federation (`server.state_directory.subject_key`), for processes that file requests or carry
            them out: sample ids are then kept as keyed hashes. Without, they are kept as given.

        Raises:
            ConfigurationError: the URL is not one of a durable SQLite or PostgreSQL database, or the ledger's
                ids were hashed with another key.
            LedgerUnavailable: the database cannot be reached or written.
        """
        database = Database(url)
        try:
            database.migrate()
            if keys is not None:
                _bind(database, keys)
        except BaseException:
            database.close()
            raise
        return cls(database, keys)

    def close(self) -> None:
        """Close every connection."""
        self._database.close()


def _bind(database: Database, keys: SubjectKeys) -> None:
    """Record whose key hashes this ledger's sample ids, the first time; afterwards refuse any other.

    Raises:
        ConfigurationError: the ids of this ledger were hashed with another key.
    """
    facts = schema.federation_facts
    known_key = sa.select(facts.c.value).where(facts.c.key == SUBJECT_KEY)
    with database.reading() as connection:
        known = connection.scalar(known_key)
    if known is None:
        with database.writing() as connection:
            known = connection.scalar(known_key)
            if known is None:
                known, now = keys.identity, datetime.now(UTC)
                connection.execute(sa.insert(facts).values(key=SUBJECT_KEY, value=known, at=now))
                seals.seal_whole(connection, facts, now)
    if known != keys.identity:
        raise ConfigurationError(
            [
                f"subject-key: the sample ids in the ledger {database.name} were hashed with another key ({known}) "
                f"than the one in the state directory ({keys.identity}), so no client could tell which samples are "
                "meant. Put the file subject-key of a backup in its place."
            ]
        )
