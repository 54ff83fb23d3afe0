"""What the console knows of the service's requests: read once, then brought up to date by what has happened since.

A list of 10,000 requests is ten questions to the service; what happened since is one. While the service does not
answer, pages show what was known last and say so.
"""

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Generic, TypeVar

from server.service.access import Caller
from server.service.client import DeletionClient
from unlearning.errors import FlowerUnlearningError
from unlearning.requests import DeletionRequest

T = TypeVar("T")

# Beyond so many changed requests the whole list is read again.
_SINGLE_READS = 50
_AFTER_ALL = 2**62


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The requests as they were known at one moment.

    version: grows with each change. problem: why the service does not answer, "" where it does; since: from when.
    """

    requests: Mapping[str, DeletionRequest] = field(default_factory=dict)
    version: int = 0
    problem: str = ""
    since: datetime | None = None

    @property
    def stamp(self) -> str:
        """A word that differs from the one before whenever a page would."""
        return f"{self.version}{'!' if self.problem else ''}"


class Remembered(ABC, Generic[T]):
    """What the service said last; safe to be asked by several threads."""

    def __init__(self, first: T) -> None:
        self._lock = threading.Lock()
        self._known = first
        self._asked_at = float("-inf")

    def now(self, *, not_older_than_s: float = 0.0) -> T:
        """Return it as it stands; what was asked a moment ago may do."""
        with self._lock:
            if time.monotonic() - self._asked_at >= not_older_than_s:
                self._known = self._read()
                self._asked_at = time.monotonic()
            return self._known

    @abstractmethod
    def _read(self) -> T:
        """Ask the service; what is known stays known where it does not answer."""


class Mirror(Remembered[Snapshot]):
    """The newest snapshot."""

    def __init__(self, service: DeletionClient, caller: Caller) -> None:
        super().__init__(Snapshot())
        self._service = service
        self._reads_all = not caller.is_client  # a client may not read what happened to others
        self._newest: int | None = None

    def _read(self) -> Snapshot:
        known = self._known
        try:
            found = self._read_all() if self._newest is None or not self._reads_all else self._read_changes()
        except FlowerUnlearningError as exc:
            return replace(known, problem=str(exc), since=known.since or datetime.now(UTC))
        changed = found is not known.requests and found != known.requests
        return Snapshot(requests=found, version=known.version + changed)

    def _read_all(self) -> Mapping[str, DeletionRequest]:
        # ListQuery first, so that what comes while the list is read is read once more and not missed.
        newest = self._service.events(after=_AFTER_ALL)[1] if self._reads_all else None
        found = {item.id: item for item in self._service.list_requests()}
        self._newest = newest
        return found

    def _read_changes(self) -> Mapping[str, DeletionRequest]:
        assert self._newest is not None
        events, newest = self._service.events(after=self._newest)
        if newest < self._newest:  # an older ledger was put back
            return self._read_all()
        changed = {item.request_id for item in events if item.request_id}
        if len(changed) > _SINGLE_READS:
            return self._read_all()
        found = self._known.requests
        if changed:
            found = {**found, **{name: self._service.get(name) for name in sorted(changed)}}
        self._newest = newest
        return found
