"""What the deletion service answers to each call: admission and ledger, translated to gRPC.

Errors are raised; the checks (call_checks.py), which every call has passed, turn them into statuses. Each call has one
message and one answer and runs in a thread of its caller's; the two that stream are in watching.py and uploads.py.
"""
# ruff: noqa: N802  the names of calls are the protocol's

import json
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from server.api import access, convert
from server.api import deletion_pb2 as pb
from server.api.access import Caller
from server.api.errors import AccessDenied
from server.api.limits import Limits
from server.api.method_descriptions import describe
from server.ledger import LEFT_OUT, SITE_PROBLEMS, WAITING, Ledger, NewRequest
from server.requests.admission import admit, check_admissible
from server.requests.planning import past_deletions, plan
from unlearning.errors import ConflictingRequest, IllegalMove, InvalidRequest, UnknownClient
from unlearning.gdpr import Amendment
from unlearning.methods.registry import METHODS
from unlearning.requests import DeletionRequest, Status, Target
from unlearning.runtime.json_codec import to_plain

_PAGE = 1000
_WITHOUT_RESULT = (Status.FAILED, Status.CANCELLED, Status.REFUSED)


def utc_now() -> datetime:
    """Return the current time."""
    return datetime.now(UTC)


class DeletionService:
    """The calls of deletion.proto over one ledger and one folder of reports, for callers with a role."""

    def __init__(
        self,
        ledger: Ledger,
        reports_dir: Path,
        *,
        limits: Limits,
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        self._ledger = ledger
        self._reports_dir = reports_dir
        self._limits = limits
        self._clock = clock

    def SubmitRequest(self, request: pb.SubmitRequestRequest, caller: Caller) -> pb.DeletionRequest:
        """Admit a request and answer once it is durable."""
        return convert.request_message(self.submit(convert.target_of(request.target), request, caller))

    def submit(self, target: Target, request: pb.SubmitRequestRequest, caller: Caller) -> DeletionRequest:
        """Admit a request whose target has been read already; one sent again is answered as long as it can succeed.

        Raises:
            ConflictingRequest: the key belongs to a request of this caller that failed or was withdrawn, too.
        """
        access.check_may_file(caller, target)
        try:
            new = NewRequest(
                target=target,
                method=request.method,
                parameters=convert.parameters_of(request.parameters_json),
                submitted_by=caller.submitter_name(request.submitted_by),
                submitted_role=caller.role and str(caller.role),
                idempotency_key=request.idempotency_key,
                particulars=convert.particulars_of(request),
            )
            filed = admit(
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
                "Ask the operator under which name your site is registered."
            ) from exc
        if filed.status in _WITHOUT_RESULT:
            raise ConflictingRequest(
                f"You filed request {filed.id} under this key; it is {filed.status}. To file it again, use a new key."
            )
        return filed

    def GetRequest(self, request: pb.GetRequestRequest, caller: Caller) -> pb.DeletionRequest:
        """Return one request as it stands."""
        return convert.request_message(self.get_visible(caller, request.id))

    def ListRequests(self, request: pb.ListRequestsRequest, caller: Caller) -> pb.ListRequestsResponse:
        """Return the requests of some statuses and of one client, or all; a client gets those about itself."""
        client_id = request.client_id or (caller.name if caller.is_client else "")
        if not client_id.isprintable():
            raise InvalidRequest(f"Malformed client id {client_id[:40]!r}: it has control characters.")
        if caller.is_client and client_id != caller.name:
            raise AccessDenied(
                f"A client sees its own requests only: {caller.name!r} asked for those of {client_id[:40]!r}. "
                "Leave the client out."
            )
        if request.after < 0:
            raise InvalidRequest(f"The list begins after a request's number, got {request.after}.")
        found = self._ledger.requests.select(
            statuses=_statuses(request.statuses) or None,
            client_id=client_id or None,
            after=request.after,
            limit=_PAGE,
        )
        return pb.ListRequestsResponse(requests=[convert.request_message(item) for item in found])

    def CancelRequest(self, request: pb.CancelRequestRequest, caller: Caller) -> pb.DeletionRequest:
        """Withdraw a request that has not begun."""
        known = self.get_visible(caller, request.id)
        access.check_may_cancel(caller, known)
        by = caller.submitter_name(request.by)
        return convert.request_message(self._ledger.decisions.cancel(request.id, by=by, now=self._clock()))

    def RetryRequest(self, request: pb.RetryRequestRequest, caller: Caller) -> pb.DeletionRequest:
        """Schedule a failed request again, if it could still be filed today."""
        known = self._ledger.requests.get(request.id)
        if known.status is Status.FAILED:
            target = self._ledger.requests.target_of(known) if known.retryable else known.target
            check_admissible(self._ledger, target, method=known.method, parameters=known.parameters)
        points = request.accept_score_loss
        if not 0 <= points <= 100:
            raise InvalidRequest(f"accept_score_loss: between 0 and 100 points can be lost, got {points:g}.")
        by = caller.submitter_name(request.by)
        done = self._ledger.decisions.retry(known.id, by=by, now=self._clock(), accept_score_loss=points)
        return convert.request_message(done)

    def ExtendRequest(self, request: pb.ExtendRequestRequest, caller: Caller) -> pb.DeletionRequest:
        """Put a request's deadline off, once."""
        by = caller.submitter_name(request.by)
        done = self._ledger.decisions.extend(
            request.id, days=request.days, reason=request.reason, by=by, now=self._clock()
        )
        return convert.request_message(done)

    def HoldRequest(self, request: pb.HoldRequestRequest, caller: Caller) -> pb.DeletionRequest:
        """Keep a request from beginning."""
        by = caller.submitter_name(request.by)
        done = self._ledger.decisions.hold(request.id, reason=request.reason, by=by, now=self._clock())
        return convert.request_message(done)

    def ReleaseRequest(self, request: pb.ReleaseRequestRequest, caller: Caller) -> pb.DeletionRequest:
        """Lift a request's hold."""
        by = caller.submitter_name(request.by)
        done = self._ledger.decisions.release(request.id, reason=request.reason, by=by, now=self._clock())
        return convert.request_message(done)

    def RefuseRequest(self, request: pb.RefuseRequestRequest, caller: Caller) -> pb.DeletionRequest:
        """Answer a request without deletion."""
        by = caller.submitter_name(request.by)
        done = self._ledger.decisions.refuse(request.id, reason=request.reason, by=by, now=self._clock())
        return convert.request_message(done)

    def AmendRequest(self, request: pb.AmendRequestRequest, caller: Caller) -> pb.DeletionRequest:
        """Change the ground, the reference or the note of a request."""
        by, what = caller.submitter_name(request.by), convert.from_message(Amendment, request)
        return convert.request_message(
            self._ledger.decisions.amend(request.id, what=what, by=by, now=self._clock())
        )

    def RedactRequest(self, request: pb.RedactRequestRequest, caller: Caller) -> pb.DeletionRequest:
        """Erase what people wrote about a request."""
        by = caller.submitter_name(request.by)
        return convert.request_message(self._ledger.decisions.redact(request.id, by=by, now=self._clock()))

    def GetReport(self, request: pb.GetReportRequest, caller: Caller) -> pb.GetReportResponse:
        """Return the report of a request, as JSON and as a page, its certificate and that one's timestamp."""
        known = self.get_visible(caller, request.id)
        folder = self._reports_dir / known.id
        try:
            report = (folder / "report.json").read_bytes()
        except FileNotFoundError:
            raise IllegalMove(_why_no_report(known)) from None
        page, certificate, timestamp = (
            path.read_bytes() if path.exists() else b""
            for path in (folder / name for name in ("report.html", "certificate.json", "certificate.tsr"))
        )
        return pb.GetReportResponse(json=report, html=page, certificate=certificate, timestamp=timestamp)

    def ListClients(self, request: pb.ListClientsRequest, caller: Caller) -> pb.ListClientsResponse:
        """Return every client that ever took part, and how much of it was forgotten."""
        forgotten, samples = self._ledger.forgotten_clients(), self._ledger.num_forgotten_samples()
        statuses = [
            convert.ClientStatus(
                client,
                forgotten=client.client_id in forgotten,
                num_forgotten_samples=samples.get(client.client_id, 0),
            )
            for client in self._ledger.clients()
        ]
        return pb.ListClientsResponse(
            clients=[convert.client_message(item) for item in statuses],
            waiting="\n".join(_what_to_know(self._ledger)),
        )

    def ListMethods(self, request: pb.ListMethodsRequest, caller: Caller) -> pb.ListMethodsResponse:
        """Return every method and what it states about itself."""
        past = past_deletions(self._ledger)
        messages = [
            convert.method_message(describe(method, past.get(name))) for name, method in METHODS.items()
        ]
        return pb.ListMethodsResponse(methods=messages)

    def PlanDeletion(self, request: pb.PlanDeletionRequest, caller: Caller) -> pb.PlanDeletionResponse:
        """Return what serving a target would take, by every method."""
        target = convert.target_of(request.target)
        access.check_may_file(caller, target)
        return pb.PlanDeletionResponse(plan_json=json.dumps(to_plain(plan(self._ledger, target))))

    def ListRefusals(self, request: pb.ListRefusalsRequest, caller: Caller) -> pb.ListRefusalsResponse:
        """Return the newest refusals after a sequence number, in order."""
        if not request.caller.isprintable() or request.limit < 0:
            raise InvalidRequest("Malformed question: the caller is a name, the limit is 0 or more.")
        limit = min(request.limit or _PAGE, _PAGE)
        found = self._ledger.refusals(after=request.after, limit=limit, caller=request.caller or None)
        return pb.ListRefusalsResponse(refusals=[convert.to_message(pb.Refusal, item) for item in found])

    def VerifyLedger(self, request: pb.VerifyLedgerRequest, caller: Caller) -> pb.VerifyLedgerResponse:
        """Check the events' chain and all rows that it commits to, and return the hash of one event."""
        sequence, digest = self._ledger.events.head()
        problem = self._ledger.events.verify()
        first_broken = self._ledger.events.verify_chain() if problem else None
        return pb.VerifyLedgerResponse(
            first_broken=first_broken,
            problem=problem,
            head_sequence=sequence,
            head_hash=digest,
            hash=self._ledger.events.hash_of(request.sequence),
        )

    def ListEvents(self, request: pb.ListEventsRequest, caller: Caller) -> pb.ListEventsResponse:
        """Return events after a sequence number, in order: of one request, or of all."""
        if request.request_id:
            access.check_may_see(caller, self._ledger, request.request_id)
        elif caller.is_client:
            raise InvalidRequest("Say of which request; a client sees the events of its own requests.")
        newest, _ = self._ledger.events.newest()
        found = self._ledger.events.page(request.request_id or None, after=request.after, limit=_PAGE)
        return pb.ListEventsResponse(
            events=[convert.to_message(pb.Event, item) for item in found], newest=newest
        )

    def ListRounds(self, request: pb.ListRoundsRequest, caller: Caller) -> pb.ListRoundsResponse:
        """Return the newest rounds after a sequence number, in order; a client gets their figures, no names."""
        if request.limit < 0:
            raise InvalidRequest(f"The limit is 0 or more, got {request.limit}.")
        _, newest = self._ledger.events.newest()
        after = max(request.after, newest - min(request.limit or _PAGE, _PAGE))
        found = self._ledger.rounds(after=after, limit=_PAGE)
        if caller.is_client:
            own = frozenset(item.id for item in self._ledger.requests.select(client_id=caller.name))
            found = [access.figures_of(record, own) for record in found]
        return pb.ListRoundsResponse(rounds=[convert.to_message(pb.Round, item) for item in found])

    def get_visible(self, caller: Caller, request_id: str) -> DeletionRequest:
        """Return the request with this id, where the caller may see it."""
        access.check_may_see(caller, self._ledger, request_id)
        return self._ledger.requests.get(request_id)


def _statuses(names: Iterable[str]) -> list[Status]:
    try:
        return [Status(name) for name in names]
    except ValueError as exc:
        raise InvalidRequest(f"{exc}; a status is one of: {', '.join(Status)}.") from None


def _why_no_report(request: DeletionRequest) -> str:
    if request.status in _WITHOUT_RESULT:
        return f"Request {request.id} is {request.status}; only a completed request has a report."
    if request.status is Status.COMPLETED:
        return f"Request {request.id} is completed, but its report is not in the service's state directory."
    return f"Request {request.id} is {request.status}; its report comes with its completion."


def _what_to_know(ledger: Ledger) -> Iterator[str]:
    """Say whom the run waits for, what is wrong with the set-up of which site, and who is left out of rounds."""
    facts = ledger.facts()
    if waiting := facts.get(WAITING):
        yield str(waiting)
    for fact in (SITE_PROBLEMS, LEFT_OUT):
        for client, problem in sorted(dict(facts.get(fact) or {}).items()):
            yield f"Client {client}: {problem}"
