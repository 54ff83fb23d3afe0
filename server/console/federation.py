"""What the console knows of the federation: who is in it, and its newest rounds."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from server.console.mirror import Remembered
from server.ledger import RoundRecord
from server.service.access import Caller
from server.service.calls import ClientStatus
from server.service.client import DeletionClient
from unlearning.errors import FlowerUnlearningError
from unlearning.requests import DeletionRequest

NEWEST_ROUNDS = 1000
_ACCOUNT = "privacy account"


@dataclass(frozen=True, slots=True, kw_only=True)
class Federation:
    """The federation at one moment.

    rounds: the newest ones by number, each as it was done last. clients: None where the caller may not read them.
    waiting: whom the run waits for, in a sentence; "" where it does not. problem: why the service does not answer.
    """

    rounds: tuple[RoundRecord, ...] = ()
    clients: tuple[ClientStatus, ...] | None = None
    waiting: str = ""
    problem: str = ""
    newest: int = 0

    @property
    def stamp(self) -> str:
        """A word that differs from the one before whenever a page would."""
        known = [(item.client.client_id, item.client.online, item.forgotten) for item in self.clients or ()]
        return f"{self.newest}-{hash((tuple(known), self.waiting, self.problem)) & 0xFFFFFFFF:x}"

    def serving(self, request_id: str) -> tuple[RoundRecord, ...]:
        """Return the rounds that served a request."""
        return tuple(record for record in self.rounds if request_id in record.request_ids)


class FederationMirror(Remembered[Federation]):
    """The federation as it was known last."""

    def __init__(self, service: DeletionClient, caller: Caller) -> None:
        super().__init__(Federation())
        self._service = service
        self._may_list_clients = not caller.is_client

    def _read(self) -> Federation:
        known = self._known
        try:
            fresh = self._service.rounds(after=known.newest, limit=NEWEST_ROUNDS)
            clients, waiting = (None, "")
            if self._may_list_clients:
                answer = self._service.clients()
                clients, waiting = answer.clients, answer.waiting
        except FlowerUnlearningError as exc:
            return replace(known, problem=str(exc))
        newest = fresh[-1].sequence if fresh else known.newest
        return Federation(
            rounds=_by_number((*known.rounds, *fresh)), clients=clients, waiting=waiting, newest=newest
        )


def failures_of(record: RoundRecord) -> dict[str, str]:
    """Return which clients did not answer in a round, or were refused, and why."""
    found: dict[str, str] = {}
    for name in ("failed", "refused"):
        told = record.metrics.get(name)
        if isinstance(told, Mapping):
            found |= {str(client): str(reason) for client, reason in told.items()}
    return found


def describe_round(record: RoundRecord) -> str:
    """Say how a round ended: `round 7 (training): 4 of 5 clients answered`."""
    told = record.metrics.get("participants")
    names: set[str] = set(told) if isinstance(told, list | tuple) else set()
    asked = names | set(failures_of(record))
    answered = (
        f": {len(names)} of {len(asked)} client{'' if len(asked) == 1 else 's'} answered" if asked else ""
    )
    held = ", not committed" if record.metrics.get("not_committed") else ""
    return f"Round {record.round} ({record.kind}{held}){answered}"


def figure(record: RoundRecord, name: str) -> float | None:
    """Return a figure of a round; None where it was not measured."""
    value = record.metrics.get(name)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def privacy_account(requests: Iterable[DeletionRequest]) -> Mapping[str, Any] | None:
    """Return what all deletions together have used of the privacy budget, by the newest one that drew noise."""
    found = [item for item in requests if isinstance(item.result.get(_ACCOUNT), Mapping)]
    newest = max(found, key=lambda item: item.result[_ACCOUNT].get("num_releases", 0), default=None)
    return None if newest is None else newest.result[_ACCOUNT]


def _by_number(records: Iterable[RoundRecord]) -> tuple[RoundRecord, ...]:
    last = {record.round: record for record in records}
    return tuple(last[number] for number in sorted(last))[-NEWEST_ROUNDS:]
