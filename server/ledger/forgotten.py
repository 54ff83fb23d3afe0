"""What the completed deletions have forgotten of each client."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from threading import Lock

import sqlalchemy as sa

from server.ledger import schema


@dataclass(frozen=True, slots=True)
class ForgottenByClient:
    """clients: those forgotten whole. num_samples: how many others' deletions named, by client."""

    clients: frozenset[str] = frozenset()
    num_samples: Mapping[str, int] = field(default_factory=dict)


class ForgottenCounts:
    """The newest counts of one ledger, for several threads.

    Exclusions are only ever added, so their number tells whether the counts are current: adding up 30,000 of them takes
    a tenth of a second, and pages ask for the sums all the time.
    """

    def __init__(self) -> None:
        self._counts = ForgottenByClient()
        self._of = 0
        self._lock = Lock()

    def read(self, connection: sa.Connection) -> ForgottenByClient:
        """Return what is forgotten now."""
        number = int(connection.scalar(sa.select(sa.func.count()).select_from(schema.exclusions)) or 0)
        with self._lock:
            if number != self._of:
                self._counts, self._of = _read(connection), number
            return self._counts


def _read(connection: sa.Connection) -> ForgottenByClient:
    client, samples = schema.requests.c.client_id, schema.requests.c.num_samples
    is_whole = samples == 0
    query = (
        sa.select(client, is_whole.label("is_whole"), sa.func.sum(samples).label("num"))
        .join(schema.exclusions, schema.exclusions.c.request_number == schema.requests.c.number)
        .where(client.is_not(None))
        .group_by(client, is_whole)
    )
    rows = connection.execute(query).all()
    return ForgottenByClient(
        frozenset(row.client_id for row in rows if row.is_whole),
        {row.client_id: int(row.num) for row in rows if not row.is_whole},
    )
