"""What the console knows of the service: read once, then brought up to date by what has happened since.

A list of 10,000 requests is ten calls; what happened since is one. While the service does not answer, pages show
what was known last and say so.
"""

import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from server.ledger import RoundRecord
from server.service.access import Caller
from server.service.calls import ClientStatus
from server.service.client import DeletionClient
from unlearning.errors import FlowerUnlearningError
from unlearning.requests import DeletionRequest

NEWEST_ROUNDS = 1000
# Beyond this number of changed requests the whole list is read again.
_SINGLE_READS = 50
_AFTER_ALL = 2**62


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What was known at one moment.

    rounds: the newest ones by number, each as it was done last. clients: None where the caller may not read them.
    waiting: for whom the run waits, in a sentence; "" where it does not.
    version: grows with each change. problem: why the service does not answer, "" where it does; since: from when.
    newest_event, newest_round: sequence numbers, after which the next look begins.
    """

    requests: Mapping[str, DeletionRequest] = field(default_factory=dict)
    rounds: tuple[RoundRecord, ...] = ()
    clients: tuple[ClientStatus, ...] | None = None
    waiting: str = ""
    version: int = 0
    problem: str = ""
    since: datetime | None = None
    newest_event: int | None = None
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
        self._reads_all = not caller.is_client  # a client may not read the events and clients of others

    def now(self, *, not_older_than_s: float = 0.0) -> Snapshot:
        """Return the newest snapshot; one of a moment ago may do."""
        with self._lock:
            if time.monotonic() - self._read_at >= not_older_than_s:
                self._known = self._read(self._known)
                self._read_at = time.monotonic()
            return self._known

    def _read(self, known: Snapshot) -> Snapshot:
        try:
            fresh = self._rounds_and_clients(self._requests(known))
        except FlowerUnlearningError as exc:
            return replace(known, problem=str(exc), since=known.since or datetime.now(UTC))
        is_same = (
            (fresh.requests is known.requests or fresh.requests == known.requests)
            and fresh.newest_round == known.newest_round
            and fresh.presence == known.presence
        )
        return replace(fresh, version=known.version + (not is_same), problem="", since=None)

    def _requests(self, known: Snapshot) -> Snapshot:
        if not self._reads_all or known.newest_event is None:
            return self._all_requests(known)
        events, newest = self._service.events(after=known.newest_event)
        changed = {item.request_id for item in events if item.request_id}
        # A number below the one before is that of an older ledger which was restored.
        if newest < known.newest_event or len(changed) > _SINGLE_READS:
            return self._all_requests(known)
        if not changed:
            return replace(known, newest_event=newest)
        found = {**known.requests, **{name: self._service.get(name) for name in sorted(changed)}}
        return replace(known, requests=found, newest_event=newest)

    def _all_requests(self, known: Snapshot) -> Snapshot:
        # The events first, so that what comes while the list is read is read once more and not missed.
        newest = self._service.events(after=_AFTER_ALL)[1] if self._reads_all else None
        found = {item.id: item for item in self._service.list_requests()}
        return replace(known, requests=found, newest_event=newest)

    def _rounds_and_clients(self, known: Snapshot) -> Snapshot:
        fresh = self._service.rounds(after=known.newest_round, limit=NEWEST_ROUNDS)
        answer = self._service.clients() if self._reads_all else None
        return replace(
            known,
            rounds=_by_number((*known.rounds, *fresh)) if fresh else known.rounds,
            newest_round=fresh[-1].sequence if fresh else known.newest_round,
            clients=None if answer is None else answer.clients,
            waiting="" if answer is None else answer.waiting,
        )


def _by_number(records: Iterable[RoundRecord]) -> tuple[RoundRecord, ...]:
    last = {record.round: record for record in records}
    return tuple(last[number] for number in sorted(last))[-NEWEST_ROUNDS:]
