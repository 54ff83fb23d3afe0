"""The client half of the deletion service: typed calls that raise the service's own errors."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import grpc

from server.api import convert
from server.api import deletion_pb2 as pb
from server.api.convert import ClientStatus, MethodDescription
from server.api.deletion_pb2_grpc import DeletionServiceStub
from server.api.errors import ServiceUnavailable, error_of
from server.ledger import Event, Refusal, RoundRecord
from server.ledger.records import request_number
from server.requests.plan_data import Plan
from strategies.tls_files import TlsFiles, is_loopback
from unlearning.gdpr import NOTHING_GIVEN, Amendment, Particulars, check_extension, check_reason
from unlearning.protocol import PROTOCOL, own_version
from unlearning.requests import DeletionRequest, Status, Target
from unlearning.runtime.json_codec import from_plain

DEFAULT_TIMEOUT_S = 30.0
# Of sample ids in one message: half of the service's default limit.
_PART_BYTES = 512 * 1024
# For a list of samples that goes in parts.
UPLOAD_TIMEOUT_S = 330.0
LIST_PAGE = 1000
"""How many requests the service lists at once (deletion.proto)."""
# How long a broken watch waits for the service to come back; a supervisor restarts it sooner.
RECONNECT_S = 60.0
# The service says what it takes; this bounds what the command line is ready to receive.
MAX_MESSAGE_BYTES = 1024 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Report:
    """A request's report, as JSON and as a page, its certificate and its timestamp (empty where there is none)."""

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


class DeletionClient:
    """A connection to the deletion service at `address` (host:port).

    Every call raises what the service raised (a `RequestError` or `LedgerUnavailable`), or
    `ServiceUnavailable` where it gave no answer.
    """

    def __init__(
        self, address: str, tls: TlsFiles | None = None, *, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> None:
        self._address = address
        self._timeout_s = timeout_s
        options: list[tuple[str, Any]] = [
            ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
            ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
            ("grpc.keepalive_time_ms", 30_000),
            # Who waits for the service to come back sees it at once.
            ("grpc.max_reconnect_backoff_ms", 2_000),
        ]
        if is_loopback(address):
            options.append(("grpc.enable_http_proxy", 0))  # a proxy cannot reach this machine's loopback
        if tls is None:
            self._channel = grpc.insecure_channel(address, options)
        else:
            self._channel = grpc.secure_channel(address, tls.channel_credentials(), options)
        self._stub: Any = DeletionServiceStub(self._channel)  # type: ignore[no-untyped-call]  # generated

    def __enter__(self) -> "DeletionClient":
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()

    def submit(
        self,
        target: Target,
        *,
        method: str,
        parameters: Mapping[str, Any] | None = None,
        submitted_by: str = "",
        idempotency_key: str = "",
        particulars: Particulars = NOTHING_GIVEN,
    ) -> DeletionRequest:
        """File a request; it is durable when this returns. A long list of samples goes in parts."""
        message = pb.SubmitRequestRequest(
            target=convert.target_message(target, without_ids=True),
            method=method,
            parameters_json=json.dumps(dict(parameters or {})),
            idempotency_key=idempotency_key,
            submitted_by=submitted_by,
            **convert.particulars_fields(particulars),
        )
        ids = sorted(target.sample_ids)
        longest = max(map(len, ids), default=1)
        each = _PART_BYTES // (4 * longest + 4)  # four bytes a letter at most, and as many around each id
        parts = [ids[start : start + each] for start in range(0, len(ids), each)]
        message.target.sample_ids.extend(parts[0] if parts else ())
        if len(parts) < 2:
            return convert.request_of(self._call("SubmitRequest", message))
        sent = iter(
            [
                pb.SubmitSamplesRequest(request=message),
                *(pb.SubmitSamplesRequest(more=pb.SampleIds(sample_ids=part)) for part in parts[1:]),
            ]
        )
        answer = self._call("SubmitSamples", sent, timeout_s=max(self._timeout_s, UPLOAD_TIMEOUT_S))
        return convert.request_of(answer, target)

    def get(self, request_id: str) -> DeletionRequest:
        """Return one request as it stands."""
        return convert.request_of(self._call("GetRequest", pb.GetRequestRequest(id=request_id)))

    def list_requests(
        self, *, statuses: Iterable[Status | str] = (), client_id: str = ""
    ) -> list[DeletionRequest]:
        """Return the requests in order of arrival, of these statuses and this client where given."""
        names = [str(status) for status in statuses]
        message = pb.ListRequestsRequest(statuses=names, client_id=client_id)
        found: list[DeletionRequest] = []
        while True:
            page = self._call("ListRequests", message).requests
            found += [convert.request_of(item) for item in page]
            if len(page) < LIST_PAGE:
                return found
            message.after = request_number(page[-1].id)

    def watch(self, request_id: str) -> Iterator[DeletionRequest | Event | RoundRecord]:
        """Yield the request, its events and the federation's rounds as they happen; last, the request again.

        Goes on where it was when the service is away for less than a minute.
        """
        asked = pb.WatchRequestRequest(id=request_id)
        connected = False
        while True:
            try:
                for message in self._stub.WatchRequest(asked, metadata=_version()):
                    item = _watch_item(message)
                    if isinstance(item, Event):
                        asked.after_event = item.sequence
                    elif isinstance(item, RoundRecord):
                        asked.after_round = item.sequence
                    connected = True
                    yield item
                return
            except grpc.RpcError as exc:
                error = error_of(exc, self._address)
                if not (connected and isinstance(error, ServiceUnavailable)):
                    raise error from exc
            try:
                grpc.channel_ready_future(self._channel).result(timeout=RECONNECT_S)
            except grpc.FutureTimeoutError:
                raise error from None

    def cancel(self, request_id: str, *, by: str = "") -> DeletionRequest:
        """Withdraw a request that has not begun."""
        message = pb.CancelRequestRequest(id=request_id, by=by)
        return convert.request_of(self._call("CancelRequest", message))

    def retry(self, request_id: str, *, by: str = "", accept_score_loss: float = 0.0) -> DeletionRequest:
        """Schedule a failed request again; this time so many points of score may be lost, if it is not 0."""
        asked = pb.RetryRequestRequest(id=request_id, by=by, accept_score_loss=accept_score_loss)
        return convert.request_of(self._call("RetryRequest", asked))

    def extend(self, request_id: str, *, days: int, reason: str, by: str = "") -> DeletionRequest:
        """Put a request's deadline off, once, by 1 to 60 days."""
        asked = pb.ExtendRequestRequest(
            id=request_id, by=by, days=check_extension(days), reason=check_reason("an extension", reason)
        )
        return convert.request_of(self._call("ExtendRequest", asked))

    def hold(self, request_id: str, *, reason: str, by: str = "") -> DeletionRequest:
        """Keep a request from beginning until it is released."""
        asked = pb.HoldRequestRequest(id=request_id, by=by, reason=check_reason("a hold", reason))
        return convert.request_of(self._call("HoldRequest", asked))

    def release(self, request_id: str, *, reason: str = "", by: str = "") -> DeletionRequest:
        """Lift a request's hold."""
        said = check_reason("lifting a hold", reason) if reason else ""
        asked = pb.ReleaseRequestRequest(id=request_id, by=by, reason=said)
        return convert.request_of(self._call("ReleaseRequest", asked))

    def refuse(self, request_id: str, *, reason: str, by: str = "") -> DeletionRequest:
        """Answer a request that has not begun, or has failed, without deletion."""
        asked = pb.RefuseRequestRequest(id=request_id, by=by, reason=check_reason("a refusal", reason))
        return convert.request_of(self._call("RefuseRequest", asked))

    def amend(self, request_id: str, what: Amendment, *, by: str = "") -> DeletionRequest:
        """Change the ground, the reference or the note of a request."""
        given = {"ground": what.ground, "reference": what.reference, "note": what.note}
        asked = pb.AmendRequestRequest(id=request_id, by=by, **given)
        return convert.request_of(self._call("AmendRequest", asked))

    def redact(self, request_id: str, *, by: str = "") -> DeletionRequest:
        """Erase what people wrote about a request: reference, note and reasons."""
        asked = pb.RedactRequestRequest(id=request_id, by=by)
        return convert.request_of(self._call("RedactRequest", asked))

    def report(self, request_id: str) -> Report:
        """Return the report of a completed request."""
        answer = self._call("GetReport", pb.GetReportRequest(id=request_id))
        return Report(answer.json, answer.html, answer.certificate, answer.timestamp)

    def clients_and_waiting(self) -> tuple[list[ClientStatus], str]:
        """Return every client that ever took part, and whom the run waits for in a sentence; "" where it does not."""
        answer = self._call("ListClients", pb.ListClientsRequest())
        return [convert.client_of(item) for item in answer.clients], answer.waiting

    def methods(self) -> list[MethodDescription]:
        """Return every method of the service."""
        answer = self._call("ListMethods", pb.ListMethodsRequest())
        return [convert.from_message(MethodDescription, item) for item in answer.methods]

    def plan(self, target: Target) -> Plan:
        """Return what serving a target would take, by every method."""
        message = pb.PlanDeletionRequest(target=convert.target_message(target))
        return from_plain(Plan, json.loads(self._call("PlanDeletion", message).plan_json))

    def refusals(self, *, after: int = 0, limit: int = 0, caller: str = "") -> list[Refusal]:
        """Return the newest refusals, at most `limit` (0: 1,000) and in order, of this caller where given."""
        message = pb.ListRefusalsRequest(after=after, limit=limit, caller=caller)
        return [convert.from_message(Refusal, item) for item in self._call("ListRefusals", message).refusals]

    def verify_ledger(self, sequence: int = 0) -> LedgerCheck:
        """Check the hash chain of the ledger's events, and ask for the hash of one."""
        answer = self._call("VerifyLedger", pb.VerifyLedgerRequest(sequence=sequence))
        first_broken = answer.first_broken if answer.HasField("first_broken") else None
        problem = answer.problem
        if first_broken is not None and not problem:  # of an earlier service
            problem = f"Event {first_broken} does not follow from those before it."
        return LedgerCheck(first_broken, answer.head_sequence, answer.head_hash, answer.hash, problem)

    def events(self, request_id: str = "", *, after: int = 0) -> tuple[list[Event], int]:
        """Return a request's events so far (of all requests where none is named), and the newest event's number.

        after: only events with a higher sequence number.
        """
        found: list[Event] = []
        while True:
            answer = self._call("ListEvents", pb.ListEventsRequest(request_id=request_id, after=after))
            found += [convert.event_of(item) for item in answer.events]
            if len(answer.events) < LIST_PAGE:
                return found, answer.newest
            after = answer.events[-1].sequence

    def rounds(self, *, after: int = 0, limit: int = 0) -> list[RoundRecord]:
        """Return the newest rounds, at most `limit` (0: 1,000) and in order, with a sequence number above `after`."""
        answer = self._call("ListRounds", pb.ListRoundsRequest(after=after, limit=limit))
        return [convert.from_message(RoundRecord, item) for item in answer.rounds]

    def _call(self, name: str, message: Any, *, timeout_s: float = 0.0) -> Any:
        try:
            call = getattr(self._stub, name)
            return call(message, timeout=timeout_s or self._timeout_s, metadata=_version())
        except grpc.RpcError as exc:
            raise error_of(exc, self._address) from exc


def _version() -> tuple[tuple[str, str]]:
    return ((PROTOCOL, str(own_version())),)


def _watch_item(message: pb.WatchRequestResponse) -> DeletionRequest | Event | RoundRecord:
    match message.WhichOneof("item"):
        case "event":
            return convert.event_of(message.event)
        case "round":
            return convert.from_message(RoundRecord, message.round)
        case _:
            return convert.request_of(message.request)
