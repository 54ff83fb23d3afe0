"""What the deletion service answers to each call: admission and ledger, translated to gRPC.

Errors are raised; the gate (gate.py), which every call has passed, turns them into statuses.
"""

import json
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path

import grpc

from server.admission import admit, check_admissible
from server.api import access, convert
from server.api import deletion_pb2 as pb
from server.api.access import Caller
from server.api.deletion_pb2_grpc import DeletionServiceServicer
from server.api.errors import AccessDenied
from server.api.limits import Limits, Watchers
from server.ledger import Event, Ledger, RoundRecord
from server.planning import measured, plan
from server.plans import Measured
from unlearning.errors import ConflictingRequest, IllegalMove, InvalidRequest, UnknownClient
from unlearning.methods import METHODS, Method
from unlearning.requests import DeletionRequest, Status

POLL_INTERVAL_S = 0.2
_PAGE = 1000


def utc_now() -> datetime:
    """The current time."""
    return datetime.now(UTC)


class DeletionService(DeletionServiceServicer):
    """The calls of deletion.proto over one ledger and one folder of reports, for callers with a role."""

    def __init__(
        self,
        ledger: Ledger,
        reports_dir: Path,
        *,
        limits: Limits,
        certificates_required: bool,
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        self._ledger = ledger
        self._reports_dir = reports_dir
        self._limits = limits
        self._certificates_required = certificates_required
        self._clock = clock
        self._watchers = Watchers(limits)

    def SubmitRequest(  # noqa: N802  the names of calls are the protocol's
        self, request: pb.SubmitRequestRequest, context: grpc.ServicerContext
    ) -> pb.DeletionRequest:
        """Admit a request and answer once it is durable."""
        caller = self._caller(context)
        target = convert.target_of(request.target)
        access.check_may_file(caller, target)
        try:
            admitted = admit(
                self._ledger,
                target,
                method=request.method,
                parameters=convert.parameters_of(request.parameters_json),
                submitted_by=caller.sign(request.submitted_by),
                submitted_role=caller.role and str(caller.role),
                idempotency_key=request.idempotency_key,
                now=self._clock(),
                by_operator=caller.is_operator,
                max_open=self._limits.max_open_requests,
            )
        except (ConflictingRequest, UnknownClient) as exc:
            self._refuse_discreetly(caller, request.idempotency_key, exc)
            raise
        return convert.request_message(admitted)

    def GetRequest(  # noqa: N802
        self, request: pb.GetRequestRequest, context: grpc.ServicerContext
    ) -> pb.DeletionRequest:
        """One request as it stands."""
        return convert.request_message(self._seen(self._caller(context), request.id))

    def ListRequests(  # noqa: N802
        self, request: pb.ListRequestsRequest, context: grpc.ServicerContext
    ) -> pb.ListRequestsResponse:
        """The requests of some statuses and of one client, or all; a client gets those about itself."""
        caller = self._caller(context)
        client_id = request.client_id or (caller.name if caller.is_client else "")
        if not client_id.isprintable():
            raise InvalidRequest(f"Malformed client id {client_id[:40]!r}: it has control characters.")
        if caller.is_client and client_id != caller.name:
            raise AccessDenied(
                f"A client sees its own requests only: {caller.name!r} asked for those of {client_id[:40]!r}. "
                "Leave the client out."
            )
        found = self._ledger.list_requests(
            statuses=_statuses(request.statuses) or None, client_id=client_id or None
        )
        return pb.ListRequestsResponse(requests=[convert.request_message(item) for item in found])

    def WatchRequest(  # noqa: N802
        self, request: pb.WatchRequestRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.WatchRequestResponse]:
        """The request, its events and the federation's rounds as they happen, and the request again.

        Ends when the request is over or the caller hangs up.
        """
        caller = self._caller(context)
        started = self._seen(caller, request.id)
        with self._watchers.place(caller):
            yield pb.WatchRequestResponse(request=convert.request_message(started))
            for item in self._follow(started.id, request, context):
                if isinstance(item, RoundRecord) and caller.is_client:
                    item = _about_itself(item, started.id)
                yield _watch_item(item)

    def CancelRequest(  # noqa: N802
        self, request: pb.CancelRequestRequest, context: grpc.ServicerContext
    ) -> pb.DeletionRequest:
        """Withdraw a request that has not begun."""
        caller = self._caller(context)
        known = self._seen(caller, request.id)
        access.check_may_cancel(caller, known)
        by = caller.sign(request.by)
        return convert.request_message(self._ledger.cancel(request.id, by=by, now=self._clock()))

    def RetryRequest(  # noqa: N802
        self, request: pb.RetryRequestRequest, context: grpc.ServicerContext
    ) -> pb.DeletionRequest:
        """Schedule a failed request again, if it could still be filed today."""
        known = self._ledger.get(request.id)
        if known.status is Status.FAILED:
            check_admissible(self._ledger, known.target, method=known.method, parameters=known.parameters)
        by = self._caller(context).sign(request.by)
        return convert.request_message(self._ledger.retry(known.id, by=by, now=self._clock()))

    def GetReport(  # noqa: N802
        self, request: pb.GetReportRequest, context: grpc.ServicerContext
    ) -> pb.GetReportResponse:
        """The report of a request, as JSON and as a page, and its certificate."""
        known = self._seen(self._caller(context), request.id)
        folder = self._reports_dir / known.id
        try:
            report = (folder / "report.json").read_bytes()
        except FileNotFoundError:
            raise IllegalMove(_why_no_report(known)) from None
        page, certificate = (
            path.read_bytes() if path.exists() else b""
            for path in (folder / "report.html", folder / "certificate.json")
        )
        return pb.GetReportResponse(json=report, html=page, certificate=certificate)

    def ListClients(  # noqa: N802
        self, request: pb.ListClientsRequest, context: grpc.ServicerContext
    ) -> pb.ListClientsResponse:
        """Every client that ever took part, and how much of it was forgotten."""
        forgotten = self._ledger.exclusions()
        statuses = [
            convert.ClientStatus(
                client,
                forgotten=forgotten.is_forgotten(client.client_id),
                num_forgotten_samples=len(forgotten.of(client.client_id).sample_ids),
            )
            for client in self._ledger.clients()
        ]
        return pb.ListClientsResponse(clients=[convert.client_message(item) for item in statuses])

    def ListMethods(  # noqa: N802
        self, request: pb.ListMethodsRequest, context: grpc.ServicerContext
    ) -> pb.ListMethodsResponse:
        """Every method and what it states about itself."""
        past = measured(self._ledger)
        messages = [
            convert.method_message(_describe(method, past.get(name))) for name, method in METHODS.items()
        ]
        return pb.ListMethodsResponse(methods=messages)

    def PlanDeletion(  # noqa: N802
        self, request: pb.PlanDeletionRequest, context: grpc.ServicerContext
    ) -> pb.PlanDeletionResponse:
        """What serving a target would take, by every method."""
        target = convert.target_of(request.target)
        access.check_may_file(self._caller(context), target)
        return pb.PlanDeletionResponse(plan_json=json.dumps(plan(self._ledger, target).to_json()))

    def ListRefusals(  # noqa: N802
        self, request: pb.ListRefusalsRequest, context: grpc.ServicerContext
    ) -> pb.ListRefusalsResponse:
        """The newest refusals after a sequence number, in order."""
        if not request.caller.isprintable() or request.limit < 0:
            raise InvalidRequest("Malformed question: the caller is a name, the limit is 0 or more.")
        limit = min(request.limit or _PAGE, _PAGE)
        found = self._ledger.refusals(after=request.after, limit=limit, caller=request.caller or None)
        return pb.ListRefusalsResponse(refusals=[convert.refusal_message(item) for item in found])

    def VerifyLedger(  # noqa: N802
        self, request: pb.VerifyLedgerRequest, context: grpc.ServicerContext
    ) -> pb.VerifyLedgerResponse:
        """Check the hash chain of the events, and give the hash of one."""
        first_broken = self._ledger.verify_chain()
        sequence, digest = self._ledger.event_head()
        return pb.VerifyLedgerResponse(
            first_broken=first_broken,
            head_sequence=sequence,
            head_hash=digest,
            hash=self._ledger.event_hash(request.sequence),
        )

    def _caller(self, context: grpc.ServicerContext) -> Caller:
        return access.caller_of(context, certificates_required=self._certificates_required)

    def _seen(self, caller: Caller, request_id: str) -> DeletionRequest:
        access.check_may_see(caller, self._ledger, request_id)
        return self._ledger.get(request_id)

    def _refuse_discreetly(self, caller: Caller, key: str, error: Exception) -> None:
        """Tell a client why its request is refused without telling it of others."""
        if not caller.is_client:
            return
        if isinstance(error, UnknownClient):
            raise UnknownClient(
                f"Your certificate is for {caller.name!r}, which is not a client of this federation. "
                "Ask the operator under which name your site is registered."
            ) from error
        known = self._ledger.find(key) if key else None
        if known is not None and known.target.client_id != caller.name:
            raise ConflictingRequest("This idempotency key is taken. Use a new key.") from error

    def _follow(
        self, request_id: str, asked: pb.WatchRequestRequest, context: grpc.ServicerContext
    ) -> Iterator[DeletionRequest | Event | RoundRecord]:
        hung_up = threading.Event()
        context.add_callback(hung_up.set)
        after_event = asked.after_event
        after_round = asked.after_round or self._last_round_before(request_id)
        while not hung_up.is_set():
            # The state is read first: when it is final, all that led to it is there to be read.
            current = self._ledger.get(request_id)
            events = list(self._ledger.all_events(request_id, after=after_event))
            rounds = [
                record
                for record in self._ledger.all_rounds(after=after_round)
                if current.is_open or record.at <= current.updated_at
            ]
            after_event = events[-1].sequence if events else after_event
            after_round = rounds[-1].sequence if rounds else after_round
            happened: list[Event | RoundRecord] = [*rounds, *events]
            yield from sorted(happened, key=lambda item: item.at)
            if not current.is_open:
                yield current
                return
            hung_up.wait(POLL_INTERVAL_S)

    def _last_round_before(self, request_id: str) -> int:
        first = self._ledger.events(request_id, limit=1)
        return int(first[0].detail.get("last_round_sequence", 0)) if first else 0


def _about_itself(record: RoundRecord, request_id: str) -> RoundRecord:
    """A round as a client may see it: figures of the whole federation, no names of others."""
    figures = {name: value for name, value in record.metrics.items() if isinstance(value, int | float)}
    served = tuple(item for item in record.request_ids if item == request_id)
    return replace(record, request_ids=served, metrics=figures)


def _watch_item(item: DeletionRequest | Event | RoundRecord) -> pb.WatchRequestResponse:
    if isinstance(item, DeletionRequest):
        return pb.WatchRequestResponse(request=convert.request_message(item))
    if isinstance(item, Event):
        return pb.WatchRequestResponse(event=convert.event_message(item))
    return pb.WatchRequestResponse(round=convert.round_message(item))


def _statuses(names: Iterable[str]) -> list[Status]:
    try:
        return [Status(name) for name in names]
    except ValueError as exc:
        raise InvalidRequest(f"{exc}; a status is one of: {', '.join(Status)}.") from None


def _why_no_report(request: DeletionRequest) -> str:
    if request.status in (Status.FAILED, Status.CANCELLED):
        return f"Request {request.id} is {request.status}; only a completed request has a report."
    if request.status is Status.COMPLETED:
        return f"Request {request.id} is completed, but its report is not in the service's state directory."
    return f"Request {request.id} is {request.status}; its report comes with its completion."


def _describe(method: Method, past: Measured | None) -> convert.MethodDescription:
    info = method.info
    return convert.MethodDescription(
        name=info.name,
        title=info.title,
        source=info.source,
        granularities=tuple(sorted(info.granularities)),
        several_at_once=info.several_at_once,
        needs=tuple(sorted(info.needs)),
        remark=info.remark,
        parameters=method.Parameters.model_json_schema().get("properties", {}),
        keeps=info.preparation.keeps if info.preparation is not None else "",
        measured=asdict(past) if past is not None else {},
    )
