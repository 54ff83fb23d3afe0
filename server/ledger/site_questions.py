"""Questions to sites that the deletion service writes down and the live loop answers: which samples does a site know?

They are of what may never be filed, so they are kept for `KEPT` only, and no event tells of them.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

import sqlalchemy as sa

from server.ledger import schema
from server.ledger.database import Database
from unlearning.requests import KnownSamples, list_ids
from unlearning.runtime.json_codec import from_plain, to_plain

_table = schema.site_questions
KEPT = timedelta(minutes=5)
"""How long a question and its answer are kept; asked again later, it is another question."""


@dataclass(frozen=True, slots=True)
class SiteQuestions:
    """The questions, by client and ids."""

    database: Database

    def ask(self, client_id: str, sample_ids: Iterable[str], *, now: datetime) -> KnownSamples | None:
        """Return the site's answer about these samples; None, and the question is asked, while there is none."""
        ids = sorted(sample_ids)
        key = hashlib.sha256(f"{client_id}\0{list_ids(ids)}".encode()).hexdigest()
        with self.database.writing() as connection:
            connection.execute(sa.delete(_table).where(_table.c.asked_at < now - KEPT))
            row = connection.execute(sa.select(_table).where(_table.c.id == key)).one_or_none()
            if row is None:
                values = {"id": key, "client_id": client_id, "sample_ids": ids, "asked_at": now}
                connection.execute(sa.insert(_table).values(values))
                return None
        return None if row.answer is None else from_plain(KnownSamples, row.answer)

    def open(self) -> dict[str, tuple[str, frozenset[str]]]:
        """Return client and ids of each question without an answer, by its key."""
        query = sa.select(_table.c.id, _table.c.client_id, _table.c.sample_ids).where(
            _table.c.answer.is_(None)
        )
        with self.database.reading() as connection:
            return {row.id: (row.client_id, frozenset(row.sample_ids)) for row in connection.execute(query)}

    def answer(self, answers: Mapping[str, KnownSamples]) -> None:
        """Write answers down, by the keys of their questions."""
        with self.database.writing() as connection:
            for key, known in answers.items():
                answered = sa.update(_table).where(_table.c.id == key).values(answer=to_plain(known))
                connection.execute(answered)
