"""The ledger as the ServerApp writes to it: with the fencing token that makes one process the only writer."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from server.ledger.records import ClientRecord, RoundRecord
from server.ledger.store import Ledger
from unlearning.requests import DeletionRequest, Status


@dataclass(frozen=True, slots=True)
class LedgerWriter:
    """A ledger, the fencing token that this process acquired, and the clock.

    Every method raises Fenced where a newer server process has taken over.
    """

    ledger: Ledger
    token: int
    now: Callable[[], datetime]

    def check_fence(self) -> None:
        """Refuse to go on where a newer process has taken over."""
        self.ledger.check_fence(self.token)

    def move(
        self,
        request_id: str,
        to: Status,
        *,
        reason: str = "",
        retryable: bool = False,
        detail: Mapping[str, Any] | None = None,
        result: Mapping[str, Any] | None = None,
    ) -> DeletionRequest:
        """Move a request to its next state, as `Ledger.move` says."""
        return self.ledger.move(
            request_id,
            to,
            token=self.token,
            now=self.now(),
            reason=reason,
            retryable=retryable,
            detail=detail,
            result=result,
        )

    def note(self, request_id: str, kind: str, detail: Mapping[str, Any]) -> None:
        """Write an event of a request that moves it nowhere."""
        self.ledger.note(request_id, kind, token=self.token, now=self.now(), detail=detail)

    def set_facts(self, facts: Mapping[str, Any]) -> None:
        """Write down what this federation is."""
        self.ledger.set_facts(facts, token=self.token, now=self.now())

    def register_clients(self, records: Iterable[ClientRecord]) -> None:
        """Write down who is online."""
        self.ledger.register_clients(records, token=self.token, now=self.now())

    def record_round(self, record: RoundRecord) -> None:
        """Write down what a round was like."""
        self.ledger.record_round(record, token=self.token)
