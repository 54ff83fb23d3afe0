"""What the deletion service answers to each call of `server.service.calls`: admission and ledger, by the caller's role.

Every call has passed the checks (call_checks.py) and runs in one of its caller's threads; errors are raised. The one
that streams is in uploads.py. gRPC's messages are not known here: convert.py reads and writes them.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from importlib import import_module
from logging import getLogger
from pathlib import Path
from typing import Any, TypeAlias

from server.ledger import (
    FEDERATION,
    LEFT_OUT,
    SITE_PROBLEMS,
    WAITING,
    Ledger,
    NewRequest,
    Refusal,
    RequestFilter,
    RequestLists,
    RequestPage,
    RoundRecord,
)
from server.ledger.decisions import Instead
from server.ledger.records import PRUNED
from server.requests.plan_data import Plan
from server.service import access
from server.service.access import Caller
from server.service.calls import (
    CALLS,
    VERBS,
    ClientStatus,
    EventPage,
    FederationClients,
    LedgerCheck,
    MethodDescription,
    Report,
)
from server.service.limits import Limits
from server.service.statuses import AccessDenied
from unlearning.errors import ConflictingRequest, IllegalMove, InvalidRequest, UnknownClient
from unlearning.gdpr import Amendment
from unlearning.outcomes import has_noise
from unlearning.requests import WITHOUT_DELETION, DeletionRequest, Status, Target

_log = getLogger(__name__)
_PAGE = 1000
_LARGEST = 2**53
_LONGEST_SEARCH = 200
_MOST_LISTS = 50
_WITHOUT_RESULT = WITHOUT_DELETION | {Status.FAILED}


# What needs the methods, and with them PyTorch: imported where it runs (`server.operations.work_process`).
ADMIT, CHECK = "server.requests.admission:admit", "server.requests.admission:check_admissible"
PLAN = "server.requests.planning:plan"
DESCRIBE = "server.service.method_descriptions:describe_methods"
Runner: TypeAlias = Callable[..., Any]
"""Runs the function of a place (`module:name`) with arguments, and returns what it gives."""


def run_here(place: str, *args: Any, **given: Any) -> Any:
    """Run a function in this process."""
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)(*args, **given)


def utc_now() -> datetime:
    """Return the current time."""
    return datetime.now(UTC)


class DeletionService:
    """The calls over one ledger and one folder of reports. run_step: runs what needs the methods."""

    def __init__(
        self,
        ledger: Ledger,
        reports_dir: Path,
        *,
        limits: Limits,
        clock: Callable[[], datetime] = utc_now,
        run_step: Runner = run_here,
    ) -> None:
        self._ledger = ledger
        self._reports_dir = reports_dir
        self._limits = limits
        self._clock = clock
        self._run_step = run_step

    def step_of(self, call: str) -> Callable[..., Any]:
        """Return what answers a call: it takes the caller and the fields of the call's message."""
        step = CALLS[call].step
        return partial(self.change, step) if step in VERBS else getattr(self, step)

    def submit(self, caller: Caller, new: NewRequest) -> DeletionRequest:
        """Admit a request and return it once it is durable; one sent again is answered as long as it can succeed.

        Raises:
            ConflictingRequest: the key belongs to a request of this caller that failed or was withdrawn, too.
        """
        access.check_may_file(caller, new.target)
        if new.hold_reason and not caller.may("HoldRequest"):
            raise AccessDenied("Only an officer holds a request: leave the hold out.", code="hold")
        new = replace(
            new,
            submitted_by=caller.submitter_name(new.submitted_by),
            submitted_role=caller.role and str(caller.role),
        )
        try:
            filed: DeletionRequest = self._run_step(
                ADMIT,
                self._ledger,
                new,
                now=self._clock(),
                by_operator=caller.is_operator,
                allowance=self._limits.allowance(caller),
            )
        except UnknownClient as exc:
            if not caller.is_client:
                raise
            # Without the list of the others.
            raise UnknownClient(
                f"Your certificate is for {caller.name!r}, which is not a client of this federation. "
                "Ask the operator under which name your site is registered.",
                code="certificate-of-no-client",
                name=caller.name,
            ) from exc
        if filed.status in _WITHOUT_RESULT:
            raise ConflictingRequest(
                f"You filed request {filed.id} under this key; it is {filed.status}. To file it again, use a new key.",
                code="key-of-an-ended-request",
                request=filed.id,
            )
        return filed

    def get(self, caller: Caller, request_id: str) -> DeletionRequest:
        """Return the request with this id, where the caller may see it."""
        access.check_may_see(caller, self._ledger, request_id)
        return self._ledger.requests.get(request_id)

    def list_requests(self, caller: Caller, wanted: RequestFilter) -> RequestPage:
        """Return a page of the requests that a filter finds; a client gets those about itself."""
        return self._ledger.requests.page(_allowed(caller, wanted), today=self._clock().date())

    def count_requests(self, caller: Caller, asked: RequestLists) -> tuple[int, ...]:
        """Return how many requests each of several filters finds, in order; a client's are about itself."""
        if len(asked.lists) > _MOST_LISTS:
            raise InvalidRequest(f"At most {_MOST_LISTS} lists are counted at once.", code="too-many-lists")
        lists = [_allowed(caller, wanted) for wanted in asked.lists]
        return self._ledger.requests.totals(lists, today=self._clock().date())

    def change(
        self, verb: str, caller: Caller, *, request_id: str, by: str, **values: Any
    ) -> DeletionRequest:
        """Do what a verb of the table says to a request; the ledger's method of its name does it."""
        given = VERBS[verb].check(values)
        match verb:
            case "cancel":
                access.check_may_cancel(caller, self.get(caller, request_id))
            case "retry":
                given = self._checked_retry(request_id, **given)
            case "recheck":
                _refuse_recheck(self._ledger.requests.get(request_id))
            case "amend":
                given = {"what": Amendment(**given)}
        step: Callable[..., DeletionRequest] = getattr(self._ledger.decisions, verb)
        done = step(request_id, by=caller.submitter_name(by), now=self._clock(), **given)
        _log.info(
            "Request %s: %s by %s; it is %s",
            *(done.id, verb, caller.submitter_name(by), done.status),
            extra={
                "event": verb,
                "request": done.id,
                "by": caller.submitter_name(by),
                "role": caller.role,
                "status": done.status,
                "due_on": done.due_on,
            },
        )
        return done

    def report(self, caller: Caller, request_id: str) -> Report:
        """Return the report of a request, as JSON and as a page, its certificate and that one's timestamp.

        Of a request that earlier deletions answer, those of the last of them; of one that was replaced, the new one's.
        """
        known = self._ledger.requests.replacement_of(self.get(caller, request_id))
        folder = self._reports_dir / (known.answered_by or (known.id,))[-1]
        names = ("report.json", "report.html", "certificate.json", "certificate.tsr")
        files = [path.read_bytes() if path.exists() else b"" for path in map(folder.joinpath, names)]
        if not files[0] and not any(one.kind == PRUNED for one in self._ledger.events.all(folder.name)):
            raise IllegalMove(_why_no_report(known), code="no-report", status=known.status)
        return Report(*files)

    def clients(self, _: Caller) -> FederationClients:
        """Return every client that ever took part, and how much of it was forgotten."""
        forgotten, samples = self._ledger.forgotten_clients(), self._ledger.num_forgotten_samples()
        statuses = [
            ClientStatus(
                client,
                forgotten=client.client_id in forgotten,
                num_forgotten_samples=samples.get(client.client_id, 0),
            )
            for client in self._ledger.clients()
        ]
        return FederationClients(
            tuple(statuses),
            waiting="\n".join(_what_to_know(self._ledger)),
            federation=str((self._ledger.facts().get(FEDERATION) or {}).get("name", "")),
        )

    def methods(self, _: Caller) -> list[MethodDescription]:
        """Return every method and what it states about itself."""
        found: list[MethodDescription] = self._run_step(DESCRIBE, self._ledger)
        return found

    def plan(self, caller: Caller, target: Target) -> Plan:
        """Return what serving a target would take, by every method."""
        access.check_may_file(caller, target)
        found: Plan = self._run_step(PLAN, self._ledger, target, now=self._clock())
        return found

    def refusals(self, _: Caller, *, after: int, limit: int, caller: str) -> list[Refusal]:
        """Return the newest refusals after a sequence number, in order; caller: only those of this one."""
        if not caller.isprintable() or limit < 0:
            raise InvalidRequest("Malformed question: the caller is a name, the limit is 0 or more.")
        limit = min(limit or _PAGE, _PAGE)
        return self._ledger.refusals(after=after, limit=limit, caller=caller or None)

    def verify_ledger(self, _: Caller, sequence: int) -> LedgerCheck:
        """Check the events' chain and all rows that it commits to, and return the hash of one event."""
        head_sequence, head_hash = self._ledger.events.head()
        problem = self._ledger.events.verify()
        first_broken = self._ledger.events.verify_chain() if problem else None
        return LedgerCheck(
            first_broken, head_sequence, head_hash, self._ledger.events.hash_of(sequence) or "", problem or ""
        )

    def events(self, caller: Caller, *, request_id: str, after: int) -> EventPage:
        """Return events after a sequence number, in order: of one request, or of all."""
        if request_id:
            access.check_may_see(caller, self._ledger, request_id)
        elif caller.is_client:
            raise InvalidRequest(
                "Name the request; a client sees the events of its own requests.", code="events-of-all"
            )
        newest, _ = self._ledger.events.newest()
        return EventPage(
            tuple(self._ledger.events.page(request_id or None, after=after, limit=_PAGE)), newest
        )

    def rounds(self, caller: Caller, *, after: int, limit: int, request_id: str) -> list[RoundRecord]:
        """Return the newest rounds after a sequence number, in order; a client gets their figures, no names.

        request_id: where it is given, the first rounds between its filing and its end.
        """
        if limit < 0:
            raise InvalidRequest(f"The limit is 0 or more, got {limit}.")
        limit = min(limit or _PAGE, _PAGE)
        if request_id:
            found = self._rounds_of(self.get(caller, request_id), after, limit)
        else:
            _, newest = self._ledger.events.newest()
            found = self._ledger.rounds(after=max(after, newest - limit), limit=_PAGE)
        if caller.is_client:
            known = self._ledger.requests.select(client_id=caller.name) if not request_id else ()
            own = frozenset({request_id, *(item.id for item in known)})
            found = [access.figures_of(record, own) for record in found]
        return found

    def _rounds_of(self, request: DeletionRequest, after: int, limit: int) -> list[RoundRecord]:
        began = self._ledger.newest_at_filing(request.id)
        found = self._ledger.rounds(after=max(after, began), limit=limit)
        return [record for record in found if request.is_open or record.at <= request.updated_at]

    def _checked_retry(
        self,
        request_id: str,
        *,
        method: str = "",
        parameters: Mapping[str, Any] | None = None,
        accept_score_loss: float = 0.0,
    ) -> dict[str, Any]:
        """Return what the ledger's retry takes; refuse to retry a request that could not be filed today."""
        known, given = self._ledger.requests.get(request_id), {"accept_score_loss": accept_score_loss}
        if known.status not in (Status.FAILED, Status.REOPENED):
            return given  # the ledger says so
        target = self._ledger.requests.target_of(known)
        if not (method or parameters):
            self._check(target, known.method, known.parameters)
            return given
        name = method or known.method
        complete = self._check(target, name, parameters or {})
        approvals = self._ledger.approvals_needed()
        return {
            **given,
            "instead": Instead(method=name, parameters=complete, approvals_needed=approvals),
        }

    def _check(self, target: Target, method: str, parameters: Mapping[str, Any]) -> Mapping[str, Any]:
        given = {"method": method, "parameters": parameters}
        complete: Mapping[str, Any] = self._run_step(CHECK, self._ledger, target, **given)
        return complete


def _allowed(caller: Caller, wanted: RequestFilter) -> RequestFilter:
    """Return the filter with the bounds of a page; a client's finds what is about itself.

    Raises:
        AccessDenied: it asks for requests of others.
        InvalidRequest: the filter cannot be.
    """
    client_id = wanted.client_id or (caller.name if caller.is_client else "")
    if not client_id.isprintable():
        raise InvalidRequest(f"Malformed client id {client_id[:40]!r}: it has control characters.")
    if caller.is_client and client_id != caller.name:
        raise AccessDenied(
            f"A client sees its own requests only: {caller.name!r} requested those of {client_id[:40]!r}. "
            "Leave the client out.",
            code="requests-of-others",
        )
    problem = ""
    for name in ("after", "offset", "limit"):
        if not 0 <= getattr(wanted, name) <= _LARGEST:
            problem = f"{name}: 0 or more, got {getattr(wanted, name)}"
    if not wanted.text.isprintable() or len(wanted.text) > _LONGEST_SEARCH:
        problem = f"text: a search has at most {_LONGEST_SEARCH} printable characters"
    if wanted.since is not None and wanted.since.tzinfo is None:
        problem = "since: a time has its zone, as in 2026-11-20T10:00:00Z"
    if problem:
        raise InvalidRequest(f"{problem}.", code="bad-list")
    return replace(wanted, client_id=client_id, limit=min(wanted.limit or _PAGE, _PAGE))


def _refuse_recheck(request: DeletionRequest) -> None:
    """Refuse to attack the model of a deletion with noise again.

    Raises:
        IllegalMove: its guarantee would not cover the answer.
    """
    if has_noise(request.result):
        raise IllegalMove(
            f"Request {request.id} was carried out with noise, and its guarantee does not cover a figure of its "
            "records: a recheck would reveal more than was accounted for. The guarantee holds whatever training "
            "follows.",
            code="noise",
        )


def _why_no_report(request: DeletionRequest) -> str:
    if request.status in _WITHOUT_RESULT:
        return f"Request {request.id} is {request.status}; only a completed request has a report."
    if request.status is Status.COMPLETED:
        return f"Request {request.id} is completed, but its report is not in the service's state directory."
    return f"Request {request.id} is {request.status}; its report comes with its completion."


def _what_to_know(ledger: Ledger) -> Iterator[str]:
    """Say whom the run waits for, what is wrong with the set-up of which site, and who is left out of rounds."""
    facts = ledger.facts()
    if waiting := dict(facts.get(WAITING) or {}):
        yield str(waiting["text"])
    for fact in (SITE_PROBLEMS, LEFT_OUT):
        for client, problem in sorted(dict(facts.get(fact) or {}).items()):
            yield f"Client {client}: {problem}"
