"""What a step of the live federation decided. A step writes neither ledger nor checkpoint; `LiveLoop.commit` does."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from server.federation.round_log import RoundResult
from server.federation.state import FederationState
from unlearning.requests import Status


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A request's next state in the ledger; fields as in `LedgerWriter.move`."""

    request_id: str
    to: Status
    reason: str = ""
    retryable: bool = False
    detail: Mapping[str, Any] | None = None
    result: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """An event of a request that moves it nowhere; fields as in `LedgerWriter.note`."""

    request_id: str
    kind: str
    detail: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundDone:
    """A round for the ledger's record: its result, its kind, and the requests that it served."""

    result: RoundResult
    kind: str
    request_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What a step decided.

    state: the federation after it; the object of before where only the ledger changes.
    notes, round: written first.
    moves: written after the checkpoint, or before it where `ledger_first`.
    overtakable: a person may have cancelled, refused or held a request meanwhile; its move is then left out.
    cleanup: called last; a crash before it leaves files that the next start or the next deletion erases.
    """

    state: FederationState
    notes: tuple[Note, ...] = ()
    round: RoundDone | None = None
    moves: tuple[Move, ...] = ()
    ledger_first: bool = False
    overtakable: bool = False
    cleanup: tuple[Callable[[], object], ...] = ()
