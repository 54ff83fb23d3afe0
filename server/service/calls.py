"""The table of calls: who may make each, what it is read into and what answers it.

gRPC's handlers, the client's methods and the plain commands of `flower-unlearn` follow from this table and from the
messages of deletion.proto. A new verb on a request is its entry in `VERBS`, its rpc in deletion.proto and the ledger's
method of its name, which does it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Any

from server.ledger import ClientRecord, Event, NewRequest, RequestFilter, RequestLists
from unlearning.errors import InvalidRequest
from unlearning.gdpr import MAX_EXTENSION_DAYS, MAX_REASON_LENGTH, check_extension, check_reason
from unlearning.requests import Target


class Role(StrEnum):
    """The roles that a certificate's organisational units may name."""

    OPERATOR = "operator"
    OFFICER = "officer"
    AUDITOR = "auditor"
    CLIENT = "client"


_ALL = frozenset(Role)
_READERS = _ALL - {Role.CLIENT}
_FILERS = _ALL - {Role.AUDITOR}


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call of deletion.proto.

    roles: who may make it. step: the method of `DeletionService` that answers it; "" of the two that stream.
    request: the dataclass that its message is read into; None: the message's fields are the step's arguments.
    """

    roles: frozenset[Role]
    step: str = ""
    request: type | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """What a verb takes beside the request: its type and sentence on the command line, and the check of what is given.

    default: of a value that may be left out; `...` of one that may not.
    """

    kind: type
    help: str
    default: Any = ...
    metavar: str | None = None
    at_most: float | None = None
    check: Callable[[Any], Any] = lambda given: given


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb:
    """What can be done about a request: `flower-unlearn VERB ID`, and a method of the ledger.

    help: its sentence on the command line. confirm: what the command asks before, with the request's id for `{}`.
    """

    help: str
    roles: frozenset[Role] = frozenset({Role.OFFICER})
    values: Mapping[str, Value] = field(default_factory=dict)
    confirm: str = ""

    def check(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values that are given, each checked.

        Raises:
            InvalidRequest: one is missing, is not the verb's, or cannot be.
        """
        if strange := sorted(given.keys() - self.values.keys()):
            raise InvalidRequest(f"This call takes no {strange[0]}.", code="strange-value", value=strange[0])
        missing = [name for name, value in self.values.items() if value.default is ... and name not in given]
        if missing:
            raise InvalidRequest(
                f"Give the {missing[0]}: {self.values[missing[0]].help}",
                code="missing-value",
                value=missing[0],
            )
        return {name: self._checked(name, value) for name, value in given.items()}

    def _checked(self, name: str, value: Any) -> Any:
        try:
            return self.values[name].check(value)
        except InvalidRequest as exc:
            exc.fields["field"] = name
            raise


def _reason(what: str, default: Any = ...) -> Value:
    text = f"Why, in at most {MAX_REASON_LENGTH:,} characters; `redact` can erase it."
    check = partial(check_reason, what)
    return Value(
        kind=str,
        help=text,
        default=default,
        check=check if default is ... else lambda said: said and check(said),
    )


def _check_points(points: float) -> float:
    if not 0 <= points <= 100:
        raise InvalidRequest(
            f"accept_score_loss: between 0 and 100 points can be lost, got {points:g}.", code="accepted-loss"
        )
    return points


VERBS: Mapping[str, Verb] = {
    "accept": Verb(
        help="Approve a request that waits for a decision, so that it begins; where two people decide, the second does."
    ),
    "cancel": Verb(help="Withdraw a request that has not begun.", roles=_FILERS),
    "retry": Verb(
        help="Try a failed request again, or file a new one in its place that asks for the same in another way.",
        roles=frozenset({Role.OPERATOR}),
        values={
            "accept_score_loss": Value(
                kind=float,
                help="Let the model lose up to this many points of score, this time, whatever max-score-loss says. The "
                "ledger and the report name you.",
                default=0.0,
                metavar="POINTS",
                at_most=100,
                check=_check_points,
            ),
            "method": Value(kind=str, help="Another method, in a new request.", default=""),
            "parameters": Value(
                kind=dict,
                help="A parameter of the method, in a new request.",
                default=None,
                metavar="NAME=VALUE",
            ),
        },
    ),
    "recheck": Verb(
        help="Attack today's model again for a completed deletion, between two rounds; `status` shows the result.",
        roles=frozenset({Role.OPERATOR, Role.OFFICER}),
    ),
    "extend": Verb(
        help="Put a request's deadline off, once and before it has passed.",
        values={
            "days": Value(
                kind=int, help=f"By how many days: 1 to {MAX_EXTENSION_DAYS}.", check=check_extension
            ),
            "reason": _reason("an extension"),
        },
    ),
    "hold": Verb(
        help="Keep a request from beginning, because the data has to be kept; its deadline runs on.",
        values={"reason": _reason("a hold")},
    ),
    "release": Verb(
        help="Lift a request's hold, so that it goes on.",
        values={"reason": _reason("lifting a hold", default="")},
    ),
    "refuse": Verb(
        help="Answer a request without deletion, for example because Art. 17(3) GDPR exempts it.",
        values={"reason": _reason("a refusal")},
    ),
    "amend": Verb(
        help="Change a request's ground, reference or note; what stood there stays in the ledger until `redact`.",
        values={
            "ground": Value(
                kind=str,
                help="The ground: a letter of Art. 17(1) GDPR; empty: none.",
                default=None,
                metavar="a-f",
            ),
            "reference": Value(kind=str, help="The number in your own system.", default=None),
            "note": Value(kind=str, help="The note for your colleagues.", default=None),
        },
    ),
    "redact": Verb(
        help="Erase a request's reference, note and reasons permanently, but why it was refused; all else of the "
        "ledger stays and still verifies.",
        values={
            "include_refusal": Value(
                kind=bool,
                help="Erase why it was refused too: the proof that the person was answered (Art. 12(4) GDPR).",
                default=False,
            )
        },
        confirm="Erase reference, note and reasons of {} permanently?",
    ),
}
"""The calls CancelRequest, RetryRequest and so on: each has a ChangeRequest for its message and answers the request."""

CALLS: Mapping[str, Call] = {
    "SubmitRequest": Call(roles=_FILERS, step="submit", request=NewRequest),
    "SubmitSamples": Call(roles=_FILERS),
    "GetRequest": Call(roles=_ALL, step="get"),
    "ListRequests": Call(roles=_ALL, step="list_requests", request=RequestFilter),
    "CountRequests": Call(roles=_ALL, step="count_requests", request=RequestLists),
    **{f"{name.capitalize()}Request": Call(roles=verb.roles, step=name) for name, verb in VERBS.items()},
    "GetReport": Call(roles=_ALL, step="report"),
    "ListClients": Call(roles=_READERS, step="clients"),
    "ListMethods": Call(roles=_ALL, step="methods"),
    "PlanDeletion": Call(roles=_ALL, step="plan", request=Target),
    "ListRefusals": Call(roles=_READERS, step="refusals"),
    "VerifyLedger": Call(roles=_READERS, step="verify_ledger"),
    "ListEvents": Call(roles=_ALL, step="events"),
    "ListRounds": Call(roles=_ALL, step="rounds"),
}
"""Every call of deletion.proto by its name. One that is not here is refused to all."""


REPORT_PRUNED = "The report was erased when it had been kept long enough; its certificate stays."


@dataclass(frozen=True, slots=True)
class Report:
    """A request's report, as JSON and as a page, its certificate and its timestamp (empty where there is none).

    Without JSON and page it was pruned: `REPORT_PRUNED`.
    """

    json: bytes
    html: bytes
    certificate: bytes = b""
    timestamp: bytes = b""


@dataclass(frozen=True, slots=True)
class LedgerCheck:
    """The first event that does not follow from those before it, if any; and the newest event.

    problem: what does not fit, of events or of the rows that they commit to; "" where all does.
    hash: of the event that was asked for; "" where there is none.
    """

    first_broken: int | None
    head_sequence: int
    head_hash: str
    hash: str
    problem: str = ""


@dataclass(frozen=True, slots=True)
class ClientStatus:
    """A client of the federation and how much of it was forgotten."""

    client: ClientRecord
    forgotten: bool
    num_forgotten_samples: int


@dataclass(frozen=True, slots=True)
class FederationClients:
    """Every client that ever took part; waiting: whom the run waits for in a sentence, "" where it does not.

    federation: its name; "" before its first run.
    """

    clients: tuple[ClientStatus, ...]
    waiting: str
    federation: str = ""


@dataclass(frozen=True, slots=True)
class EventPage:
    """Events in order; newest: the sequence number of the newest event of the ledger, 0 where there is none."""

    events: tuple[Event, ...]
    newest: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodDescription:
    """The description of a method by itself.

    parameters: name -> JSON schema. keeps: what is kept where in training rounds, if the method needs that.
    measured: medians over the deletions that this federation has completed by it; empty before the first.
    """

    name: str
    title: str
    source: str
    granularities: tuple[str, ...]
    several_at_once: bool
    needs: tuple[str, ...]
    remark: str
    parameters: Mapping[str, Any]
    keeps: str = ""
    measured: Mapping[str, Any] = field(default_factory=dict)
