"""What the deletion service answers to each call: admission and ledger, translated to gRPC."""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc

from server.admission import admit, check_admissible
from server.api import convert
from server.api import deletion_pb2 as pb
from server.api.deletion_pb2_grpc import DeletionServiceServicer
from server.api.errors import answering
from server.ledger import Event, Ledger, RoundRecord
from unlearning.errors import IllegalMove, InvalidRequest
from unlearning.methods import METHODS, Method
from unlearning.requests import MAX_ID_LENGTH, DeletionRequest, Status

# A watcher holds one of the server's threads; the rest must stay free for new requests.
MAX_WATCHERS = 16
POLL_INTERVAL_S = 0.2
_PAGE = 1000


def utc_now() -> datetime:
    """The current time."""
    return datetime.now(UTC)


class DeletionService(DeletionServiceServicer):
    """The nine calls of deletion.proto over one ledger and one folder of reports."""

    def __init__(self, ledger: Ledger, reports_dir: Path, *, clock: Callable[[], datetime] = utc_now) -> None:
        self._ledger = ledger
        self._reports_dir = reports_dir
        self._clock = clock
        self._watchers = threading.BoundedSemaphore(MAX_WATCHERS)

    def SubmitRequest(  # noqa: N802  the names of calls are the protocol's
        self, request: pb.SubmitRequestRequest, context: grpc.ServicerContext
    ) -> pb.DeletionRequest:
        """Admit a request and answer once it is durable."""
        with answering(context):
            admitted = admit(
                self._ledger,
                convert.target_of(request.target),
                method=request.method,
                parameters=convert.parameters_of(request.parameters_json),
                submitted_by=_caller(context, request.submitted_by),
                idempotency_key=request.idempotency_key,
                now=self._clock(),
            )
            return convert.request_message(admitted)

    def GetRequest(  # noqa: N802
        self, request: pb.GetRequestRequest, context: grpc.ServicerContext
    ) -> pb.DeletionRequest:
        """One request as it stands."""
        with answering(context):
            return convert.request_message(self._ledger.get(request.id))

    def ListRequests(  # noqa: N802
        self, request: pb.ListRequestsRequest, context: grpc.ServicerContext
    ) -> pb.ListRequestsResponse:
        """The requests of some statuses and of one client, or all."""
        with answering(context):
            found = self._ledger.list_requests(
                statuses=_statuses(request.statuses) or None, client_id=request.client_id or None
            )
            return pb.ListRequestsResponse(requests=[convert.request_message(item) for item in found])

    def WatchRequest(  # noqa: N802
        self, request: pb.WatchRequestRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.WatchRequestResponse]:
        """The request, its events and the federation's rounds as they happen, and the request again.

        Ends when the request is over or the caller hangs up.
        """
        with answering(context):
            started = self._ledger.get(request.id)
            if not self._watchers.acquire(blocking=False):
                context.abort(
                    grpc.StatusCode.RESOURCE_EXHAUSTED,
                    f"{MAX_WATCHERS} callers are watching already. Ask for the status instead.",
                )
            try:
                yield pb.WatchRequestResponse(request=convert.request_message(started))
                yield from self._follow(started.id, request, context)
            finally:
                self._watchers.release()

    def CancelRequest(  # noqa: N802
        self, request: pb.CancelRequestRequest, context: grpc.ServicerContext
    ) -> pb.DeletionRequest:
        """Withdraw a request that has not begun."""
        with answering(context):
            by = _caller(context, request.by)
            return convert.request_message(self._ledger.cancel(request.id, by=by, now=self._clock()))

    def RetryRequest(  # noqa: N802
        self, request: pb.RetryRequestRequest, context: grpc.ServicerContext
    ) -> pb.DeletionRequest:
        """Schedule a failed request again, if it could still be filed today."""
        with answering(context):
            known = self._ledger.get(request.id)
            if known.status is Status.FAILED:
                check_admissible(self._ledger, known.target, method=known.method, parameters=known.parameters)
            by = _caller(context, request.by)
            return convert.request_message(self._ledger.retry(known.id, by=by, now=self._clock()))

    def GetReport(  # noqa: N802
        self, request: pb.GetReportRequest, context: grpc.ServicerContext
    ) -> pb.GetReportResponse:
        """The report of a request, as JSON and as a page."""
        with answering(context):
            known = self._ledger.get(request.id)
            folder = self._reports_dir / known.id
            try:
                report, page = (folder / "report.json").read_bytes(), folder / "report.html"
            except FileNotFoundError:
                raise IllegalMove(_why_no_report(known)) from None
            return pb.GetReportResponse(json=report, html=page.read_bytes() if page.exists() else b"")

    def ListClients(  # noqa: N802
        self, request: pb.ListClientsRequest, context: grpc.ServicerContext
    ) -> pb.ListClientsResponse:
        """Every client that ever took part, and how much of it was forgotten."""
        with answering(context):
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
        with answering(context):
            messages = [convert.method_message(_describe(method)) for method in METHODS.values()]
            return pb.ListMethodsResponse(methods=messages)

    def _follow(
        self, request_id: str, asked: pb.WatchRequestRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.WatchRequestResponse]:
        hung_up = threading.Event()
        context.add_callback(hung_up.set)
        after_event = asked.after_event
        after_round = asked.after_round or self._last_round_before(request_id)
        while not hung_up.is_set():
            # The state is read first: when it is final, all that led to it is there to be read.
            current = self._ledger.get(request_id)
            events = list(_pages(lambda after: self._ledger.events(request_id, after=after), after_event))
            rounds = [
                record
                for record in _pages(lambda after: self._ledger.rounds(after=after), after_round)
                if current.is_open or record.at <= current.updated_at
            ]
            after_event = events[-1].sequence if events else after_event
            after_round = rounds[-1].sequence if rounds else after_round
            yield from (_watch_item(item) for item in sorted([*rounds, *events], key=lambda item: item.at))
            if not current.is_open:
                yield pb.WatchRequestResponse(request=convert.request_message(current))
                return
            hung_up.wait(POLL_INTERVAL_S)

    def _last_round_before(self, request_id: str) -> int:
        first = self._ledger.events(request_id, limit=1)
        return int(first[0].detail.get("last_round_sequence", 0)) if first else 0


def _pages(fetch: Callable[[int], list[Any]], after: int) -> Iterator[Any]:
    while True:
        page = fetch(after)
        yield from page
        if len(page) < _PAGE:
            return
        after = page[-1].sequence


def _watch_item(item: Event | RoundRecord) -> pb.WatchRequestResponse:
    if isinstance(item, Event):
        return pb.WatchRequestResponse(event=convert.event_message(item))
    return pb.WatchRequestResponse(round=convert.round_message(item))


def _statuses(names: Iterable[str]) -> list[Status]:
    try:
        return [Status(name) for name in names]
    except ValueError as exc:
        raise InvalidRequest(f"{exc}; a status is one of: {', '.join(Status)}.") from None


def _caller(context: grpc.ServicerContext, declared: str) -> str:
    """Who calls: what the certificate says; without one, what the caller says."""
    # A mapping from names to lists of bytes, whatever the stubs say.
    identity: Mapping[str, Iterable[bytes]] = context.auth_context()  # type: ignore[assignment]
    names = list(identity.get("x509_common_name", ()))
    name = names[0].decode(errors="replace") if names else declared
    if len(name) > MAX_ID_LENGTH or not name.isprintable():
        raise InvalidRequest(f"Malformed name of the caller: {name[:40]!r}.")
    return name or "unnamed"


def _why_no_report(request: DeletionRequest) -> str:
    if request.status in (Status.FAILED, Status.CANCELLED):
        return f"Request {request.id} is {request.status}; only a completed request has a report."
    if request.status is Status.COMPLETED:
        return f"Request {request.id} is completed, but its report is not in the service's state directory."
    return f"Request {request.id} is {request.status}; its report comes with its completion."


def _describe(method: Method) -> convert.MethodDescription:
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
    )
