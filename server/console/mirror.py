"""What the console knows of the service: how far it has come, its newest rounds, and the pages of lists shown last.

A look asks for what has happened since the last one. While the service does not answer, lists show what was known last
and say so.
"""

import threading
import time
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, TypeVar

from server.ledger import Order, RequestFilter, RequestPage, RoundRecord
from server.service.access import Caller
from server.service.calls import ClientStatus, FederationClients
from server.service.client import DeletionClient
from server.service.statuses import ServiceUnavailable
from unlearning.errors import FlowerUnlearningError
from unlearning.gdpr import today

NEWEST_ROUNDS = 1000
KEPT_PAGES = 50
CLIENTS_S = 1.0
"""How old the list of clients may be: it is the longest answer, and of each client says little that changes."""
_AFTER_ALL = 2**62
_Read = TypeVar("_Read")
_NEWEST = RequestFilter(order=Order.CHANGED, descending=True, limit=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What was known at one moment.

    changed: the number of the ledger's newest event; of a client, which request of its own has changed last, and when.
    rounds: the newest ones by number, each as it was done last. clients: None where the caller may not read them.
    federation: its name, "" where that is not known. waiting: for whom the run waits, in a sentence; "" where it does
        not.
    version: grows with each change. problem: why the service does not answer, "" where it does; since: from when.
    newest_round: the sequence number after which the next look begins.
    """

    changed: object = None
    rounds: tuple[RoundRecord, ...] = ()
    clients: tuple[ClientStatus, ...] | None = None
    federation: str = ""
    waiting: str = ""
    version: int = 0
    problem: str = ""
    since: datetime | None = None
    newest_round: int = 0

    @property
    def stamp(self) -> str:
        """A word that differs from the one before whenever a page would."""
        return f"{self.version}{'!' if self.problem else ''}"

    @property
    def presence(self) -> tuple[object, ...]:
        """What a page shows of the clients, but for when they were last seen, which changes all the time."""
        known = ((item.client.client_id, item.client.online, item.forgotten) for item in self.clients or ())
        return (self.waiting, *known)


class Mirror:
    """The newest snapshot; safe to be used by several threads."""

    def __init__(self, service: DeletionClient, caller: Caller) -> None:
        self._lock = threading.Lock()
        self._known = Snapshot()
        self._read_at = float("-inf")
        self._service = service
        self._pages: dict[Hashable, tuple[object, Any]] = {}  # by what was asked for, with when it was read
        self._clients = FederationClients((), waiting="")
        self._clients_at = float("-inf")
        self._reads_all = not caller.is_client  # a client may not read events and clients of others

    def now(self, *, not_older_than_s: float = 0.0) -> Snapshot:
        """Return the newest snapshot; one of a moment ago may do."""
        with self._lock:
            if time.monotonic() - self._read_at >= not_older_than_s:
                self._known = self._read(self._known)
                self._read_at = time.monotonic()
            return self._known

    def page(self, wanted: RequestFilter) -> RequestPage:
        """Return a page of the requests: as it was shown last while nothing has happened since, or the service is away.

        Raises:
            ServiceUnavailable: the service is away, and the page was not shown before.
        """
        return self._read_once(wanted, lambda: self._service.page(wanted))

    def totals(self, lists: Mapping[str, RequestFilter]) -> dict[str, int]:
        """Return how many requests each filter finds, by its name; kept like pages.

        Raises:
            ServiceUnavailable: as for pages.
        """
        wanted = tuple(lists.values())
        return dict(zip(lists, self._read_once(wanted, lambda: self._service.totals(wanted)), strict=True))

    def _read_once(self, wanted: Hashable, read: Callable[[], _Read]) -> _Read:
        at: object
        found: _Read
        with self._lock:
            at, kept = (self._known.changed, today()), self._pages.get(wanted)
        if kept is not None and kept[0] == at:
            found = kept[1]
            return found
        try:
            found = read()
        except ServiceUnavailable:
            if kept is None:
                raise
            at, found = kept
        with self._lock:
            self._pages.pop(wanted, None)
            self._pages[wanted] = at, found
            if len(self._pages) > KEPT_PAGES:
                del self._pages[next(iter(self._pages))]
        return found

    def _read(self, known: Snapshot) -> Snapshot:
        try:
            changed = self._newest_change()
            fresh = replace(self._rounds_and_clients(known), changed=changed)
        except FlowerUnlearningError as exc:
            return replace(known, problem=str(exc), since=known.since or datetime.now(UTC))
        is_same = (fresh.changed, fresh.newest_round, fresh.presence) == (
            known.changed,
            known.newest_round,
            known.presence,
        )
        return replace(fresh, version=known.version + (not is_same), problem="", since=None)

    def _newest_change(self) -> object:
        if self._reads_all:
            return self._service.events(after=_AFTER_ALL)[1]
        newest = self._service.page(_NEWEST)
        return newest.total, [(one.id, one.updated_at) for one in newest.requests]

    def _rounds_and_clients(self, known: Snapshot) -> Snapshot:
        fresh = self._service.rounds(after=known.newest_round, limit=NEWEST_ROUNDS)
        answer = self._newest_clients() if self._reads_all else None
        return replace(
            known,
            rounds=_by_number((*known.rounds, *fresh)) if fresh else known.rounds,
            newest_round=fresh[-1].sequence if fresh else known.newest_round,
            clients=None if answer is None else answer.clients,
            federation="" if answer is None else answer.federation,
            waiting="" if answer is None else answer.waiting,
        )

    def _newest_clients(self) -> FederationClients:
        if time.monotonic() - self._clients_at >= CLIENTS_S:
            self._clients = self._service.clients()
            self._clients_at = time.monotonic()
        return self._clients


def _by_number(records: Iterable[RoundRecord]) -> tuple[RoundRecord, ...]:
    last = {record.round: record for record in records}
    return tuple(last[number] for number in sorted(last))[-NEWEST_ROUNDS:]
