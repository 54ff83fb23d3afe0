"""The ledger: the requests and who filed them, their state, and what may never be trained on again.

Two kinds of callers write: people, through the deletion service (`requests`, `decisions`), and the live loop, which
shows the token of the fence with every write (`live`). A loop that was thought dead and comes back shows an old
token, and is stopped by `Fenced` before it changes anything.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache
from logging import getLogger
from threading import Lock
from typing import Any

import sqlalchemy as sa

from server.ledger import row_seals, schema
from server.ledger.database import Database, all_pages, checked_url, missing_file
from server.ledger.decisions import Decisions
from server.ledger.event_store import Events
from server.ledger.forgotten import ForgottenCounts
from server.ledger.records import (
    APPROVAL,
    ClientRecord,
    Refusal,
    RoundRecord,
    as_json,
    request_id,
    round_of,
    target_of,
)
from server.ledger.request_search import Searched
from server.ledger.request_store import Requests
from server.ledger.site_questions import SiteQuestions
from server.ledger.statements import key_target, load_target
from server.ledger.writer import LedgerWriter
from unlearning.errors import ConfigurationError
from unlearning.one_line import as_line
from unlearning.pseudonyms import SubjectKeys
from unlearning.requests import Exclusions, Status, Target

_log = getLogger(__name__)
_requests = schema.requests
SUBJECT_KEY = "subject-key"
"""The fact that says with which key the ledger's sample ids are hashed."""


@dataclass(frozen=True, slots=True)
class Ledger:
    """The durable record that the deletion service, the live loop and the supervisor share.

    What a method has written is on disk when it returns. Times are timezone-aware and kept as UTC.
    One object serves several threads; several processes may open the same database.
    keys: of sample ids, if the ledger was opened with them. searched: what words are looked for in, once one was.
    forgotten: the counts of what is forgotten.
    """

    database: Database
    keys: SubjectKeys | None = None
    searched: Searched = field(default_factory=Searched, repr=False, compare=False)
    forgotten: ForgottenCounts = field(default_factory=ForgottenCounts, repr=False, compare=False)

    @property
    def requests(self) -> Requests:
        """The requests as they are filed and read."""
        return Requests(self.database, self.keys, self.searched)

    @property
    def decisions(self) -> Decisions:
        """What people decide about a request."""
        return Decisions(self.database)

    @property
    def site_questions(self) -> SiteQuestions:
        """What sites are asked before a request is filed."""
        return SiteQuestions(self.database)

    @property
    def events(self) -> Events:
        """What happened, chained by hashes."""
        return Events(self.database)

    def live(self, token: int, now: Callable[[], datetime]) -> LedgerWriter:
        """Return what the live loop writes with, as the holder of the fence by this token. now: the clock."""
        return LedgerWriter(database=self.database, token=token, now=now)

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

    @classmethod
    def open_existing(cls, url: str) -> "Ledger":
        """Open a ledger that must be there: what looks at one or erases in it makes no new one.

        Raises:
            ConfigurationError: it is no URL of a ledger, or there is none.
            LedgerUnavailable: it cannot be opened.
        """
        if path := missing_file(checked_url(url)):
            raise ConfigurationError([f"There is no ledger {path}; check --state-dir and --ledger."])
        return cls.open(url)

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel to another process of the host as its address; that process opens it once."""
        return _opened, (self.database.url, self.keys)

    def close(self) -> None:
        """Close every connection."""
        self.database.close()

    def acquire_fence(self, holder: str, *, now: datetime) -> int:
        """Become the one live loop; the token returned is valid until the next one is acquired."""
        fence = schema.fence
        with self.database.writing() as connection:
            token: int | None = connection.scalar(
                sa.update(fence)
                .values(token=fence.c.token + 1, holder=holder, acquired_at=now)
                .returning(fence.c.token)
            )
            row_seals.seal_whole(connection, fence, now)
        assert token is not None, "the schema begins with the fence's row"
        return token

    def approvals_needed(self) -> int:
        """Return how many people must accept a request that is filed now, before it begins."""
        return int(self.facts().get(APPROVAL, 0))

    def key_target(self, target: Target) -> Target:
        """Return `target` as this ledger names samples."""
        return key_target(self.keys, target)

    def clients(self) -> list[ClientRecord]:
        """Return the roster, in order of the ids."""
        table = schema.clients
        with self.database.reading() as connection:
            rows = connection.execute(sa.select(table).order_by(table.c.client_id)).all()
        return [ClientRecord(**row._mapping) for row in rows]

    def online_clients(self) -> list[ClientRecord]:
        """Return the clients of the roster that are online, in order of their ids."""
        return [record for record in self.clients() if record.online]

    def has_client(self, client_id: str) -> bool:
        """Return whether the client is in the roster."""
        query = sa.select(schema.clients.c.client_id).where(schema.clients.c.client_id == client_id)
        with self.database.reading() as connection:
            return connection.scalar(query) is not None

    def rounds(self, *, after: int = 0, limit: int = 1000) -> list[RoundRecord]:
        """Return the rounds with a sequence number above `after`, in order."""
        table = schema.rounds
        query = sa.select(table).where(table.c.sequence > after)
        with self.database.reading() as connection:
            rows = connection.execute(query.order_by(table.c.sequence).limit(limit))
            return [round_of(row) for row in rows]

    def newest_rounds(self, kind: str, limit: int) -> list[RoundRecord]:
        """Return the newest rounds of a kind, in order."""
        table = schema.rounds
        query = sa.select(table).where(table.c.kind == kind).order_by(table.c.sequence.desc()).limit(limit)
        with self.database.reading() as connection:
            return [round_of(row) for row in connection.execute(query)][::-1]

    def newest_at_filing(self, request_id: str) -> int:
        """Return the sequence number of the newest round when a request was filed; 0 where that is not known."""
        first = self.events.page(request_id, limit=1)
        return int(first[0].detail.get("last_round_sequence", 0)) if first else 0

    def all_rounds(self, *, after: int = 0) -> Iterator[RoundRecord]:
        """Yield all rounds with a sequence number above `after`, in order, read page by page."""
        return all_pages(lambda number, limit: self.rounds(after=number, limit=limit), after=after)

    def facts(self) -> dict[str, Any]:
        """Return the newest value of every fact that a ServerApp wrote down; empty before the first start."""
        table = schema.federation_facts
        with self.database.reading() as connection:
            rows = connection.execute(sa.select(table.c.key, table.c.value).order_by(table.c.key))
            return {row.key: row.value for row in rows}

    def exclusions(self) -> Exclusions:
        """Return all that is forgotten permanently, with all sample ids."""
        return Exclusions().including(target for _, target in self._forgotten())

    def answers(self, target: Target, labels: Mapping[str, int] | None = None) -> tuple[str, ...]:
        """Return the requests whose deletions forgot all of the target; empty where some of it is left.

        A reopened one answers none: its data is excluded, and its effect is not shown any more.
        labels: the classes of the target's samples, as far as its site says; the deletion of a class answers for them.
        """
        labels = labels or {}
        known, found, classes = Exclusions(), [], frozenset(labels.values())
        # A ledger may hold thousands; a class concerns every client.
        concerns = sa.or_(_requests.c.client_id == target.client_id, _requests.c.client_id.is_(None))
        holds = _requests.c.status.in_([str(Status.VERIFYING), str(Status.COMPLETED)])
        for number, forgotten in self._forgotten(concerns, holds):
            if Exclusions().including([forgotten]).overlap(target) or forgotten.class_label in classes:
                found.append(request_id(number))
                known = known.including([forgotten])
            if _cover(known, target, labels):
                return tuple(found)
        return ()

    def _forgotten(self, *conditions: sa.ColumnElement[bool]) -> Iterator[tuple[int, Target]]:
        """Yield the numbers and targets of the requests whose data is excluded, in their order."""
        query = (
            sa.select(_requests)
            .join(schema.exclusions, schema.exclusions.c.request_number == _requests.c.number)
            .where(*conditions)
            .order_by(_requests.c.number)
        )
        with self.database.reading() as connection:
            for row in connection.execute(query).all():
                yield row.number, load_target(connection, row.number, target_of(row), self.keys)

    def forgotten_clients(self) -> frozenset[str]:
        """Return the clients that were forgotten whole."""
        with self.database.reading() as connection:
            return self.forgotten.read(connection).clients

    def num_forgotten_samples(self) -> Mapping[str, int]:
        """Return how many samples of each client its deletions named; one that two deletions name counts twice."""
        with self.database.reading() as connection:
            return self.forgotten.read(connection).num_samples

    def record_refusals(self, refusals: Iterable[Refusal]) -> None:
        """Write calls down that were refused; text of strangers is cut and made printable."""
        rows = [
            {
                "at": item.at,
                "caller": as_line(item.caller, 200),
                "role": as_line(item.role, 20),
                "call": as_line(item.call, 100),
                "reason": as_line(item.reason, 2000),
                "detail": as_json(item.detail),
            }
            for item in refusals
        ]
        if rows:
            with self.database.writing() as connection:
                insert = sa.insert(schema.refusals).returning(*schema.refusals.c)
                written = connection.execute(insert, rows).all()
                written = sorted(written, key=lambda row: row.sequence)
                row_seals.seal_rows(connection, schema.refusals, written, rows[-1]["at"])
        for row in rows:
            _log.info(
                "Refused: %s of %s: %s",
                *(row["call"], row["caller"] or "an unknown caller", row["reason"]),
                extra={"event": "refused", "call": row["call"], "by": row["caller"], "role": row["role"]},
            )

    def refusals(self, *, after: int = 0, limit: int = 1000, caller: str | None = None) -> list[Refusal]:
        """Return the newest `limit` refusals with a sequence number above `after`, in order; of one caller if given."""
        table = schema.refusals
        query = sa.select(table).where(table.c.sequence > after)
        if caller is not None:
            query = query.where(table.c.caller == caller)
        query = query.order_by(table.c.sequence.desc()).limit(limit)
        with self.database.reading() as connection:
            return [Refusal(**row._mapping) for row in reversed(connection.execute(query).all())]


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
                row_seals.seal_whole(connection, facts, now)
    if known != keys.identity:
        raise ConfigurationError(
            [
                f"subject-key: the sample ids in the ledger {database.name} were hashed with another key ({known}) "
                f"than the one in the state directory ({keys.identity}), so no client could tell which samples are "
                "meant. Put the file subject-key of a backup in its place."
            ]
        )


_OPENING = Lock()


def _opened(url: str, keys: SubjectKeys | None) -> Ledger:
    """Return the process's own ledger; threads that ask for it at once get the same one."""
    with _OPENING:
        return _opened_once(url, keys)


@cache
def _opened_once(url: str, keys: SubjectKeys | None) -> Ledger:
    return Ledger.open(url, keys)


def _cover(known: Exclusions, target: Target, labels: Mapping[str, int]) -> bool:
    """Return whether all of the target is forgotten, by name or with the class that its site says it is of."""
    if not labels:
        return known.cover(target)
    named = frozenset(item for item in target.sample_ids if labels.get(item) not in known.classes)
    return not named or known.cover(replace(target, sample_ids=named, num_samples=len(named)))
