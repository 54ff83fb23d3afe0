"""What the ledger returns besides requests: events, clients, rounds, refusals; and how rows become these."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from unlearning.errors import FlowerUnlearningError, RequestError, RequestNotFound
from unlearning.gdpr import NOTHING_GIVEN, Ground, Particulars
from unlearning.requests import DeletionRequest, Outcome, Status, Target

if TYPE_CHECKING:
    import sqlalchemy as sa
    from _typeshed import DataclassInstance

_Record = TypeVar("_Record", bound="DataclassInstance")

SUBMITTED, MOVED = "submitted", "moved"
EXTENDED, HELD, HOLD_LIFTED = "extended", "held", "hold-lifted"
AMENDED, REDACTED = "amended", "redacted"
"""The kinds of events of a request's deadline, its hold and its texts."""
PRUNED = "pruned"
"""The kind of the event that a report was erased after its time; its certificate stays."""
APPROVED = "approved"
"""The kind of the event that one person has accepted a request."""
RECHECK_REQUESTED, RECHECKED = "recheck-requested", "rechecked"
"""The kinds of the events that a person requests a recheck of a completed deletion, and of one that reopens nothing."""
RECHECK = "recheck"
"""Under this key the event of a recheck, also of one that reopens the request, has what it found
(`server.deletion.rechecking`): `due`, the number of rounds for which it was done, or `answers`, the number of the event
that requested it."""
GROUND_BEFORE = "ground_before"
"""Under this key the event of an amendment that changes the ground has the one before; null: there was none."""
ACCEPTED_LOSS = "accepted_score_loss"
"""Under this key the event of a retry says how many points of score the model may lose this time."""
ATTEMPTS_BEFORE = "attempts_before"
"""Under this key it says how often the request had begun by then."""
RECOMMENDED = "recommended"
"""Under this key the event of filing says that the method was left to the federation."""
SEALED = "sealed"
"""The kind of the federation's own events, which commit to rows of other tables (`server.ledger.row_seals`)."""
FEDERATION = "federation"
"""The fact that says what the federation is: `unlearning.methods.eligibility.FederationProfile`."""
SITE = "site"
"""The role in which the ServerApp files what a client requests at its own site."""
PRIVATE_TRAINING = "private-training"
"""What private training has used of its budget (`server.requests.training_privacy`)."""
SAMPLE_PRIVACY = "sample-privacy"
"""What sites say of their training with privacy for single samples (`server.requests.training_privacy`)."""
WAITING = "waiting"
"""The fact that says whom the run waits for, in a sentence (`text`); `clients`, `since` and `until` (ISO 8601) where it
waits for answers. Empty where it waits for no client."""
APPROVAL = "approval"
"""The fact that says how many people must accept a request before it begins."""
SITE_PROBLEMS = "site-problems"
"""The fact that says by client what is wrong with the set-up of its site."""
OWN_COMPARISONS = "own-comparisons"
"""The fact that has what the user's own runs measured: a list of `server.requests.comparisons.Comparison`."""
LEFT_OUT = "left-out"
"""The fact that says by client until when, and why, it is left out of rounds."""
DAY = timedelta(days=1)
HEARTBEAT = timedelta(seconds=35)
"""A SuperNode sends a heartbeat every 17.5 to 22.5 s, which the ledger has within 5 s; the rest is for a slow one."""


class LedgerUnavailable(FlowerUnlearningError):
    """An error of the ledger's database: out of reach, locked for too long, or a statement refused."""

    exit_code = 4


class LimitExceeded(RequestError):
    """A call for more than the caller's share: too much, too often, or too many at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """A bound on what one submitter may file within 24 hours, in requests and in sample ids; the ledger keeps both.

    A deletion takes minutes and a target has one open request, so 100 requests a day are more than can be carried
    out; a million ids is the longest list that one request may have.
    """

    requests_per_day: int = 100
    samples_per_day: int = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """How much one submitter may file. max_open: open requests, with the new one; daily: within 24 hours; None: any."""

    max_open: int | None = None
    daily: Quota | None = None


UNBOUNDED = Allowance()


@dataclass(frozen=True, slots=True, kw_only=True)
class LastRetry:
    """What the newest retry of a request lets the model lose, in points of score, and who accepted that.

    attempts_before: how often the request had begun by then.
    """

    accepted_loss: float = 0.0
    accepted_by: str = ""
    attempts_before: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRequest:
    """A request as it is filed.

    submitted_role: in which role the submitter files; people of one name in two roles are two submitters.
    method: empty for the one that is recommended (`server.requests.admission`). why: the reason of that, for the event.
    idempotency_key: its submitter, who files the same under it again, gets the request that it made. Those of others
        are other keys.
    hold_reason: where it is to be held from the start, why.
    approvals_needed: how many people must accept it before it begins; admission says so.
    replays: the number of the request that a restore has undone, and files again.
    """

    target: Target
    method: str = ""
    why: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    submitted_by: str
    submitted_role: str | None = None
    idempotency_key: str
    particulars: Particulars = NOTHING_GIVEN
    hold_reason: str = ""
    approvals_needed: int = 0
    replays: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One thing that happened to a request; never changed, never removed.

    request_id: "" of an event of the federation, which has the kind `sealed`.
    kind: `submitted`, `moved` (then from_status and to_status are set), or the word of a note.
    actor: who did it: a person's name or the holder of the fence.
    text: the reason that a person gave with it; empty where there is none, or it is erased.
    """

    sequence: int
    request_id: str
    kind: str
    from_status: Status | None
    to_status: Status | None
    actor: str
    detail: Mapping[str, Any]
    at: datetime
    text: str = ""


@dataclass(frozen=True, slots=True)
class ClientRecord:
    """A client that has taken part at least once.

    last_seen: of its last heartbeat at the SuperLink; of a virtual client, when it was last online.
    """

    client_id: str
    node_name: str = ""
    public_key_hex: str = ""
    online: bool = True
    last_seen: datetime | None = None

    def silence(self, now: datetime) -> timedelta:
        """Return for how long nothing was heard of it; from `HEARTBEAT` on it is not there, or no run is."""
        return timedelta() if self.last_seen is None else now - self.last_seen


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRecord:
    """One round of the live loop.

    sequence: given by the ledger; 0 before.
    round: the loop's own number. A round done again after a crash is recorded again; the last counts.
    kind: `training`, `unlearning` or `recovery`.
    request_ids: the requests that the round served.
    """

    sequence: int = 0
    round: int
    kind: str
    request_ids: tuple[str, ...] = ()
    metrics: Mapping[str, Any] = field(default_factory=dict)
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A call that was refused; never changed, never removed.

    sequence: given by the ledger; 0 before.
    caller, role: who it was by certificate; "" where unknown.
    call: what was called, such as `SubmitRequest`.
    detail: what else is known, such as the status and how often it happened.
    """

    sequence: int = 0
    at: datetime
    caller: str
    role: str
    call: str
    reason: str
    detail: Mapping[str, Any] = field(default_factory=dict)


def request_id(number: int) -> str:
    """Return the id of the request in row `number`: short, sorts in order of arrival, easy to type."""
    return f"r-{number:06d}"


def request_number(identifier: str) -> int:
    """Return the row of request `identifier`.

    Raises:
        RequestNotFound: this is not an id of a request.
    """
    match = re.fullmatch(r"r-([0-9]{1,9})", identifier)
    if match is None:
        raise RequestNotFound(f"No deletion request {identifier[:40]!r}; ids look like r-000007.")
    return int(match.group(1))


def no_such_request(identifier: str) -> RequestNotFound:
    """Return the one answer to a well-formed id that no request has."""
    return RequestNotFound(f"No deletion request {identifier!r}; `flower-unlearn list` shows them.")


def target_of(row: "sa.Row[Any]") -> Target:
    """Return what the request of a row of `requests` asks to forget, without ids."""
    return Target(**row.target, num_samples=row.num_samples)


def request_of(row: "sa.Row[Any]", texts: Mapping[str, Any]) -> DeletionRequest:
    """Return the request of a row of `requests`. texts: its fields that hold people's texts."""
    return _read(
        DeletionRequest,
        row,
        id=request_id(row.number),
        target=target_of(row),
        status=Status(row.status),
        ground=Ground(row.ground) if row.ground else None,
        outcome=Outcome(row.outcome) if row.outcome else None,
        **texts,
    )


def event_of(row: "sa.Row[Any]", text: str = "") -> Event:
    """Return the event of a row of `events`, with the text that goes with it."""
    return _read(
        Event,
        row,
        request_id="" if row.request_number is None else request_id(row.request_number),
        from_status=Status(row.from_status) if row.from_status else None,
        to_status=Status(row.to_status) if row.to_status else None,
        text=text,
    )


def round_of(row: "sa.Row[Any]") -> RoundRecord:
    """Return the record of a row of `rounds`."""
    return _read(RoundRecord, row, request_ids=tuple(row.request_ids))


@cache
def field_names(kind: type["DataclassInstance"]) -> tuple[str, ...]:
    """Return the names of a dataclass's fields; a list of requests asks a thousand times."""
    return tuple(item.name for item in fields(kind))


def _read(kind: type[_Record], row: "sa.Row[Any]", **given: Any) -> _Record:
    """Return the record of a row whose columns have its fields' names. given: fields that are not what a column has."""
    own = {name: getattr(row, name) for name in field_names(kind) if name not in given}
    return kind(**own, **given)


TARGET_FIELDS = ("granularity", "client_id", "class_label")
"""What the column `target` of a request has: all but the ids of samples, which are in a table of their own."""


def columns_of(table: "sa.Table", *records: "DataclassInstance", **given: Any) -> dict[str, Any]:
    """Return the values of a row: each column from the record with a field of its name, or from `given`."""
    values = {
        item.name: as_json(getattr(record, item.name))
        for record in records
        for item in fields(record)
        if item.name in table.c
    }
    return values | given


def as_json(value: Any) -> Any:
    """Return `value` without NaN and infinity, which JSON (and PostgreSQL) does not know: they become null."""
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): as_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(item) for item in value]
    return str(value) if isinstance(value, StrEnum) else value
