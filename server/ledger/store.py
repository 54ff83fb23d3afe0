"""The ledger: what was asked, by whom, where it stands, and what may never be trained on again.

Two kinds of callers write: people, through the deletion service (`submit`, `cancel`, `retry`, `extend`, …), and
the live loop, which shows the token of the fence with every write. A loop that was thought dead and
comes back shows an old token, and is stopped by `Fenced` before it changes anything.
"""

from server.ledger import takeover
from server.ledger.database import Database
from server.ledger.deadlines import DeadlinesPart
from server.ledger.history import HistoryPart
from server.ledger.live_loop import LiveLoopPart
from server.ledger.requests import RequestsPart
from unlearning.pseudonyms import SubjectKeys


class Ledger(RequestsPart, DeadlinesPart, HistoryPart, LiveLoopPart):
    """The durable record that the deletion service, the live loop and the supervisor share.

    What a method has written is on disk when it returns. Times are timezone-aware and kept as UTC.
    One object serves several threads; several processes may open the same database.
    """

    @classmethod
    def open(cls, url: str, keys: SubjectKeys | None = None) -> "Ledger":
        """Open, and where needed create or migrate, the ledger at a SQLite or PostgreSQL URL.

        keys: of the federation (`server.state_directory.subject_key`), for processes that file requests or carry
            them out: sample ids are then kept as keyed hashes, also those that stand here in clear. Without, they are
            kept as given.

        Raises:
            ConfigurationError: the URL is not one of a durable SQLite or PostgreSQL database, or the ledger's
                ids were hashed with another key.
            LedgerUnavailable: the database cannot be reached or written.
        """
        database = Database(url)
        try:
            database.migrate()
            if keys is not None:
                takeover.key_all(database, keys)
        except BaseException:
            database.close()
            raise
        return cls(database, keys)

    def close(self) -> None:
        """Close every connection."""
        self._database.close()
