"""What a deletion request asks for, the states it goes through, and what has been forgotten.

    received ──► scheduled ──► unlearning ──► recovering ──► verifying ──► completed
        │          ▲ ▲ ▲           │  │            │
        │          │ │ └───────────┘  │            │      a client that is needed went away: back in the queue
        │          │ └────── failed ◄─┴────────────┘      a retry; with another method failed ──► replaced
        ▼          │
    awaiting ──► accepted                                 where the federation decides before it begins
    completed ──► reopened ──► scheduled                  a recheck no longer finds its effect; a retry, as of failed

A request that has not begun may fail, and be cancelled. One whose target is forgotten already, by earlier requests,
goes to completed: their reports and certificates answer it. One that has not begun or has failed may be refused:
answered without deletion, for a reason that an officer gives.
Up to `recovering` a request may fail without a trace in the model. `recovering` → `verifying` commits the
recovered model, once the gate has accepted it, and permanently excludes the data; from there the only way is
forward, and what goes wrong is said in the report. The data of a reopened request stays excluded, whatever becomes of
it: its deadline is the one that it had, its certificate stays, and it answers no other request any more.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, date, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

from unlearning.errors import InvalidRequest
from unlearning.gdpr import Ground
from unlearning.one_line import list_first
from unlearning.runtime.json_codec import Sorted

MAX_SAMPLE_IDS = 1_000_000
MAX_ID_LENGTH = 200


class Granularity(StrEnum):
    """What kind of thing is forgotten."""

    CLIENT = "client"
    SAMPLE = "sample"
    CLASS = "class"


class Status(StrEnum):
    """Where a request stands."""

    RECEIVED = "received"
    AWAITING = "awaiting-decision"
    ACCEPTED = "accepted"
    SCHEDULED = "scheduled"
    UNLEARNING = "unlearning"
    RECOVERING = "recovering"
    VERIFYING = "verifying"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    REFUSED = "refused"
    REPLACED = "replaced"
    REOPENED = "reopened"


class Outcome(StrEnum):
    """What was shown of a completed deletion, beside that it was carried out; the weakest first."""

    OVER_FORGETTING = "over-forgetting"
    NOT_SHOWN = "not-shown"
    TOO_FEW = "too-few"
    REDUCED = "reduced"
    INDISTINGUISHABLE = "indistinguishable"
    RETRAINED = "retrained"
    GUARANTEED = "guaranteed"


UNSHOWN_OUTCOMES = frozenset({Outcome.NOT_SHOWN, Outcome.TOO_FEW, Outcome.OVER_FORGETTING})
"""After these the person may not be told that the model knows less than before."""


_TRIED_AGAIN = frozenset({Status.SCHEDULED, Status.REFUSED, Status.REPLACED})
_ENDS_UNBEGUN = frozenset({Status.COMPLETED, Status.FAILED, Status.CANCELLED, Status.REFUSED})
LEGAL_MOVES: Mapping[Status, frozenset[Status]] = {
    Status.RECEIVED: _ENDS_UNBEGUN | {Status.AWAITING, Status.SCHEDULED},
    Status.AWAITING: _ENDS_UNBEGUN | {Status.ACCEPTED},
    Status.ACCEPTED: _ENDS_UNBEGUN | {Status.SCHEDULED},
    Status.SCHEDULED: _ENDS_UNBEGUN | {Status.UNLEARNING},
    Status.UNLEARNING: frozenset({Status.RECOVERING, Status.SCHEDULED, Status.FAILED}),
    Status.RECOVERING: frozenset({Status.VERIFYING, Status.FAILED}),
    Status.VERIFYING: frozenset({Status.COMPLETED}),
    Status.FAILED: _TRIED_AGAIN,
    Status.COMPLETED: frozenset({Status.REOPENED}),
    Status.REOPENED: _TRIED_AGAIN,
    Status.CANCELLED: frozenset(),
    Status.REFUSED: frozenset(),
    Status.REPLACED: frozenset(),
}

UNBEGUN_STATUSES = frozenset({Status.RECEIVED, Status.AWAITING, Status.ACCEPTED, Status.SCHEDULED})
OPEN_STATUSES = UNBEGUN_STATUSES | {Status.UNLEARNING, Status.RECOVERING, Status.VERIFYING}
WITHOUT_DELETION = frozenset({Status.CANCELLED, Status.REFUSED, Status.REPLACED})
"""In these a request has ended, and the ids of its samples are erased."""
ANSWERED_STATUSES = WITHOUT_DELETION | {Status.COMPLETED}
"""After these no answer is due any more. A failure is none: its deadline runs on."""
HOLDABLE_STATUSES = UNBEGUN_STATUSES | {Status.FAILED, Status.REOPENED}
"""In these a request can be held back; later it has begun."""


@dataclass(frozen=True, slots=True)
class Forget:
    """Which of one client's examples must be forgotten: all, some by id, or whole classes."""

    everything: bool = False
    sample_ids: Annotated[frozenset[str], Sorted] = frozenset()
    classes: Annotated[frozenset[int], Sorted] = frozenset()

    def __bool__(self) -> bool:
        return self.everything or bool(self.sample_ids) or bool(self.classes)

    def __or__(self, other: "Forget") -> "Forget":
        return Forget(
            everything=self.everything or other.everything,
            sample_ids=self.sample_ids | other.sample_ids,
            classes=self.classes | other.classes,
        )


NOTHING = Forget()


@dataclass(frozen=True, slots=True)
class Target:
    """What one request asks to forget: a client, some of its samples, or a class everywhere.

    num_samples: how many samples it names; where `sample_ids` is empty all the same, the ids were not loaded, or
        are erased. Without being given it is the number of ids.

    Raises:
        InvalidRequest: the fields do not fit the granularity.
    """

    granularity: Granularity
    client_id: str | None = None
    sample_ids: Annotated[frozenset[str], Sorted] = frozenset()
    num_samples: int = 0
    class_label: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "granularity", _granularity(self.granularity))
        object.__setattr__(self, "sample_ids", _sample_ids(self.sample_ids))
        if type(self.num_samples) is not int:
            raise InvalidRequest(
                f"The number of samples is a whole number, got {str(self.num_samples)[:40]!r}."
            )
        if not self.num_samples:
            object.__setattr__(self, "num_samples", len(self.sample_ids))
        needs_client = self.granularity is not Granularity.CLASS
        if needs_client and not self.client_id:
            raise InvalidRequest(f"A {self.granularity} deletion must name a client.", field="client_id")
        if not needs_client and self.client_id:
            raise InvalidRequest(
                "A class deletion concerns every client; leave the client out, "
                f"got client {self.client_id!r}."
            )
        if self.client_id is not None:
            _check_id("client id", self.client_id)
        if self.granularity is Granularity.SAMPLE:
            if self.num_samples < 1:
                raise InvalidRequest("A sample deletion must name at least one sample id, got none.")
            if self.num_samples > MAX_SAMPLE_IDS:
                raise InvalidRequest(
                    f"A request may name at most {MAX_SAMPLE_IDS:,} sample ids, "
                    f"got {self.num_samples:,}. Split the list."
                )
            if self.sample_ids and len(self.sample_ids) != self.num_samples:
                raise InvalidRequest(
                    f"The target counts {self.num_samples:,} samples and names {len(self.sample_ids):,}."
                )
            for sample_id in self.sample_ids:
                _check_id("sample id", sample_id)
        elif self.num_samples:
            raise InvalidRequest(f"A {self.granularity} deletion takes no sample ids.")
        if self.granularity is Granularity.CLASS:
            if type(self.class_label) is not int or self.class_label < 0:
                raise InvalidRequest(
                    f"A class deletion must name a class label of 0 or more, got {str(self.class_label)[:40]}."
                )
        elif self.class_label is not None:
            raise InvalidRequest(f"A {self.granularity} deletion takes no class label.")

    @property
    def forget(self) -> Forget:
        """What each client that the target concerns must forget."""
        if self.granularity is Granularity.CLIENT:
            return Forget(everything=True)
        if self.granularity is Granularity.SAMPLE:
            assert self.sample_ids, "the ids must be loaded: to forget none of them is another thing"
            return Forget(sample_ids=self.sample_ids)
        assert self.class_label is not None
        return Forget(classes=frozenset({self.class_label}))

    def describe(self) -> str:
        """Return a short phrase for people: `client 3`, `12 samples of client 3`, `class 5`."""
        if self.granularity is Granularity.CLIENT:
            return f"client {self.client_id}"
        if self.granularity is Granularity.SAMPLE:
            count = self.num_samples
            return f"{count:,} sample{'s' if count != 1 else ''} of client {self.client_id}"
        return f"class {self.class_label} on every client"

    def without_ids(self) -> "Target":
        """Return the same target with the number of its samples only."""
        return replace(self, sample_ids=frozenset(), num_samples=self.num_samples)


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownSamples:
    """What a client says of samples that it is asked for.

    unknown: those that it does not have, and has not had as far as it knows.
    removed: those that it could train on before and no longer has; the model may have learnt of them.
    forgotten: those that it may never use again, each with the forgotten class that it is of; None where it is of none.
    moved: why its ids may name other samples than they did at first; empty where they do not.
    """

    unknown: frozenset[str] = frozenset()
    removed: frozenset[str] = frozenset()
    forgotten: Mapping[str, int | None] = field(default_factory=dict)
    moved: str = ""

    def only(self, sample_ids: frozenset[str]) -> "KnownSamples":
        """Return what is said of these samples."""
        forgotten = {item: label for item, label in self.forgotten.items() if item in sample_ids}
        return KnownSamples(
            unknown=self.unknown & sample_ids,
            removed=self.removed & sample_ids,
            forgotten=forgotten,
            moved=self.moved,
        )


def list_ids(sample_ids: Iterable[str]) -> str:
    """Return the one text that stands for a set of ids: a JSON list, sorted, without blanks, letters as they are."""
    return json.dumps(sorted(sample_ids), separators=(",", ":"), ensure_ascii=False)


def hash_of_ids(sample_ids: Iterable[str]) -> str:
    """SHA-256 of `list_ids` as 64 hexadecimal digits. It hides nothing of ids that can be guessed."""
    return hash_of_text(list_ids(sample_ids))


def hash_of_text(listed: str) -> str:
    """`hash_of_ids` of a list that is a text already."""
    return hashlib.sha256(listed.encode()).hexdigest()


ID_RULE = (
    f"an id is a text of 1 to {MAX_ID_LENGTH} printable characters without leading or trailing blanks, and does not "
    "begin with #, as comments in lists of ids do"
)


def is_id(value: object) -> bool:
    """Return whether a client or an example can be named so."""
    if not isinstance(value, str) or not 0 < len(value) <= MAX_ID_LENGTH:
        return False
    return value == value.strip() and value.isprintable() and not value.startswith("#")


def _check_id(kind: str, value: object) -> None:
    if not is_id(value):
        raise InvalidRequest(f"Malformed {kind} {value!r:.42}: {ID_RULE}.", code="malformed-id")


def _granularity(value: object) -> Granularity:
    try:
        return Granularity(str(value))
    except ValueError:
        raise InvalidRequest(
            f"A deletion is of a {', a '.join(Granularity)}, got {value!r:.42}.", code="granularity"
        ) from None


def _sample_ids(value: object) -> frozenset[str]:
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise InvalidRequest(f"Sample ids are a set of texts, got {value!r:.42}.", code="malformed-id")
    return frozenset(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionRequest:
    """One deletion request as the ledger holds it. Times are UTC.

    submitted_role: in which role `submitted_by` filed it, None where that was not written down.
    approvals_needed: how many people must accept it before it begins, as the federation asked when it was filed.
    attempts: how often it has begun.
    outcome: what was shown of its deletion, once it is completed.
    due_on: by when it must be answered, with the `extended_days` of its one extension (0: none).
    is_held: it must not begin, because the data has to be kept; `hold_reason` says why.
    reference, note, *_reason: texts of people, empty where there is none, or it `is_redacted`.
    """

    id: str
    idempotency_key: str
    target: Target
    method: str
    parameters: Mapping[str, Any]
    submitted_by: str
    submitted_role: str | None = None
    status: Status
    reason: str = ""
    retryable: bool = False
    approvals_needed: int = 0
    attempts: int = 0
    outcome: Outcome | None = None
    created_at: datetime
    updated_at: datetime
    result: Mapping[str, Any] = field(default_factory=dict)
    received_on: date
    due_on: date
    extended_days: int = 0
    ground: Ground | None = None
    is_held: bool = False
    reference: str = ""
    note: str = ""
    extension_reason: str = ""
    hold_reason: str = ""
    refusal_reason: str = ""
    is_redacted: bool = False

    @property
    def is_open(self) -> bool:
        """Whether the request still has to be carried out."""
        return self.status in OPEN_STATUSES

    @property
    def is_answered(self) -> bool:
        """Whether no answer is due any more."""
        return self.status in ANSWERED_STATUSES

    @property
    def answered_by(self) -> tuple[str, ...]:
        """The earlier requests that forgot all of the target; empty where this one has a deletion of its own."""
        return tuple(self.result.get("answered_by", ()))

    @property
    def replaced_by(self) -> str:
        """The request that was filed in this one's place; empty where none was."""
        return str(self.result.get("replaced_by", ""))

    @property
    def first_due_on(self) -> date:
        """The deadline before it was extended."""
        return self.due_on - timedelta(days=self.extended_days)

    def days_left(self, today: date) -> int | None:
        """Return the days from `today` to the deadline, below 0 where that has passed; None once it is answered."""
        return None if self.is_answered else (self.due_on - today).days

    def is_overdue(self, today: date) -> bool:
        """Return whether the deadline has passed without an answer."""
        left = self.days_left(today)
        return left is not None and left < 0


def facts_of(request: DeletionRequest) -> dict[str, Any]:
    """Return a request's fields and those of its target by name, in the form that documents and tables have.

    `target` is the phrase for people, times are ISO 8601 in UTC. Ids of samples are left out, their number is in.
    """
    target = request.target
    found = {item.name: getattr(request, item.name) for item in fields(request)}
    found |= {item.name: getattr(target, item.name) for item in fields(target) if item.name != "sample_ids"}
    found |= {"target": target.describe(), "num_samples": target.num_samples or None}
    return {name: _stated(value) for name, value in found.items()}


def _stated(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="seconds")
    if isinstance(value, date):
        return value.isoformat()
    return str(value) if isinstance(value, StrEnum) else value


@dataclass(frozen=True, slots=True)
class Exclusions:
    """Everything a federation has forgotten for good; it only ever grows."""

    clients: Mapping[str, Forget] = field(default_factory=dict)
    classes: Annotated[frozenset[int], Sorted] = frozenset()

    def of(self, client_id: str) -> Forget:
        """Return what `client_id` may never train on again."""
        return self.clients.get(client_id, NOTHING) | Forget(classes=self.classes)

    def is_forgotten(self, client_id: str) -> bool:
        """Return whether the whole client was forgotten."""
        return self.clients.get(client_id, NOTHING).everything

    @property
    def num_clients(self) -> int:
        """How many whole clients were forgotten."""
        return sum(forget.everything for forget in self.clients.values())

    def cover(self, target: Target) -> bool:
        """Return whether nothing is left of `target`."""
        if target.client_id is None:
            return target.class_label in self.classes
        if self.is_forgotten(target.client_id):
            return True
        return bool(target.sample_ids) and target.sample_ids <= self.of(target.client_id).sample_ids

    def overlap(self, target: Target) -> bool:
        """Return whether something of `target` is forgotten."""
        if target.client_id is None or self.is_forgotten(target.client_id):
            return self.cover(target)
        return bool(target.sample_ids & self.of(target.client_id).sample_ids)

    def including(self, targets: Iterable[Target]) -> "Exclusions":
        """These exclusions and those of `targets`."""
        clients, classes = dict(self.clients), self.classes
        for target in targets:
            if target.client_id is None:
                classes = classes | target.forget.classes
            else:
                clients[target.client_id] = clients.get(target.client_id, NOTHING) | target.forget
        return Exclusions(clients, classes)


def read_sample_ids(path: Path) -> frozenset[str]:
    """Return the ids in a file with one id a line, in UTF-8; see `parse_sample_ids`.

    Raises:
        InvalidRequest: the file cannot be read, is no such text, or has no id or one twice.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as exc:
        raise InvalidRequest(f"{str(path)!r} cannot be read as text: {exc.strerror}.") from exc
    except UnicodeDecodeError as exc:
        raise InvalidRequest(
            f"{str(path)!r} cannot be read as text in UTF-8. Save it so, one id a line."
        ) from exc
    try:
        return parse_sample_ids(text)
    except InvalidRequest as exc:
        raise InvalidRequest(f"{path}: {exc}") from exc


def parse_sample_ids(text: str) -> frozenset[str]:
    """Return the ids in a list with one id a line; blank lines and lines that begin with `#` do not count.

    Raises:
        InvalidRequest: the list has no id, or has one twice.
    """
    first_seen: dict[str, int] = {}
    repeated: list[str] = []
    for number, line in enumerate(text.removeprefix("\ufeff").splitlines(), start=1):
        sample_id = line.strip()
        if not sample_id or sample_id.startswith("#"):
            continue
        if sample_id in first_seen:
            repeated.append(f"line {number} repeats {sample_id[:40]!r} of line {first_seen[sample_id]}")
        else:
            first_seen[sample_id] = number
    if repeated:
        raise InvalidRequest(f"The list of sample ids has repetitions: {list_first(repeated, 20, '; ')}.")
    if not first_seen:
        lines = len(text.splitlines())
        raise InvalidRequest(f"The list of sample ids is empty: {lines} line(s), none with an id.")
    return frozenset(first_seen)
