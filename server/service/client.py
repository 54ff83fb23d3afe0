"""The client half of the deletion service: typed calls that raise the service's own errors."""

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import grpc

from server.ledger import Event, NewRequest, Refusal, RequestFilter, RequestPage, RoundRecord
from server.ledger.records import request_number
from server.requests.plan_data import Plan, joined
from server.service import deletion_pb2 as pb
from server.service.calls import (
    CALLS,
    VERBS,
    EventPage,
    FederationClients,
    LedgerCheck,
    MethodDescription,
    Report,
)
from server.service.convert import from_message, message_of, to_message
from server.service.statuses import ServiceUnavailable, error_of
from strategies.tls_files import TlsFiles, is_loopback
from unlearning.gdpr import NOTHING_GIVEN, Particulars
from unlearning.protocol import PROTOCOL, own_version
from unlearning.requests import DeletionRequest, Target
from unlearning.runtime.json_codec import from_plain

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_SERVICE = pb.DESCRIPTOR.services_by_name["DeletionService"]
DEFAULT_TIMEOUT_S = 60.0
"""The first plan or filing waits until the service has a process with PyTorch: seconds, on a busy machine many."""
# Of sample ids in one message: half of the service's default limit.
_PART_BYTES = 512 * 1024
# Between the parts of a plan, so that the longest list stays below the service's calls a second.
_PART_PAUSE_S = 0.06
# For a list of samples that goes in parts.
UPLOAD_TIMEOUT_S = 330.0
LIST_PAGE = 1000
"""How many requests the service lists at once (deletion.proto)."""
WATCH_POLL_S = 0.5
# How long a broken watch waits for the service to come back; a supervisor restarts it sooner.
RECONNECT_S = 60.0
# The service says what it takes; this bounds what the command line is ready to receive.
MAX_MESSAGE_BYTES = 1024 * 1024 * 1024

_Answer = TypeVar("_Answer", bound="DataclassInstance")


class DeletionClient:
    """A connection to the deletion service at `address` (host:port).

    Every call raises what the service raised (a `RequestError` or `LedgerUnavailable`), or
    `ServiceUnavailable` where it gave no answer.
    """

    def __init__(
        self, address: str, tls: TlsFiles | None = None, *, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> None:
        self._address = address
        self._uses_tls = tls is not None
        self._timeout_s = timeout_s
        options: list[tuple[str, Any]] = [
            ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
            ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
            ("grpc.keepalive_time_ms", 30_000),
            # A client that waits for the service to come back sees it at once.
            ("grpc.max_reconnect_backoff_ms", 2_000),
        ]
        if is_loopback(address):
            options.append(("grpc.enable_http_proxy", 0))  # a proxy cannot reach this machine's loopback
        if tls is None:
            self._channel = grpc.insecure_channel(address, options)
        else:
            self._channel = grpc.secure_channel(address, tls.channel_credentials(), options)
        self._calls = {name: open_call(self._channel, name) for name in CALLS}

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
        method: str = "",
        parameters: Mapping[str, Any] | None = None,
        submitted_by: str = "",
        idempotency_key: str = "",
        particulars: Particulars = NOTHING_GIVEN,
        hold_reason: str = "",
    ) -> DeletionRequest:
        """File a request; it is durable when this returns. A long list of samples goes in parts.

        method: empty for the recommended one.
        """
        new = NewRequest(
            target=target,
            method=method,
            parameters=parameters or {},
            submitted_by=submitted_by,
            idempotency_key=idempotency_key,
            particulars=particulars,
            hold_reason=hold_reason,
        )
        message = to_message(pb.SubmitRequestRequest, new)
        ids = list(message.target.sample_ids)
        first, *parts = _parts(ids) or [[]]
        if not parts:
            return from_message(DeletionRequest, self._call("SubmitRequest", message))
        message.target.num_samples = 0  # the service counts what comes
        del message.target.sample_ids[len(first) :]
        sent = iter(
            [
                pb.SubmitSamplesRequest(request=message),
                *(pb.SubmitSamplesRequest(more=pb.SampleIds(sample_ids=part)) for part in parts),
            ]
        )
        answer = self._call("SubmitSamples", sent, timeout_s=max(self._timeout_s, UPLOAD_TIMEOUT_S))
        return from_message(DeletionRequest, answer)

    def change(self, verb: str, request_id: str, *, by: str = "", **values: Any) -> DeletionRequest:
        """Do what a verb of `server.service.calls.VERBS` says to a request, such as `change("hold", id, reason=...)`.

        by: who does it, where no certificate says so.

        Raises:
            InvalidRequest: a value is missing, is not the verb's, or cannot be.
        """
        message = message_of(pb.ChangeRequest, request_id=request_id, by=by, **VERBS[verb].check(values))
        return from_message(DeletionRequest, self._call(f"{verb.capitalize()}Request", message))

    def get(self, request_id: str) -> DeletionRequest:
        """Return one request in its present state."""
        return self._ask("GetRequest", DeletionRequest, request_id=request_id)

    def page(self, wanted: RequestFilter) -> RequestPage:
        """Return one page of the requests that a filter finds, and how many there are on all."""
        answer = self._call("ListRequests", to_message(pb.ListRequestsRequest, wanted))
        return from_message(RequestPage, answer)

    def totals(self, lists: Iterable[RequestFilter]) -> tuple[int, ...]:
        """Return how many requests each of several filters finds, in order."""
        asked = to_message(pb.CountRequestsRequest, tuple(lists))
        return tuple(self._call("CountRequests", asked).totals)

    def list_requests(self, **wanted: Any) -> list[DeletionRequest]:
        """Return all requests that a filter (`RequestFilter`) finds, in order of arrival."""
        found: list[DeletionRequest] = []
        after = 0
        while True:
            page = self.page(RequestFilter(**wanted, after=after)).requests
            found += page
            if len(page) < LIST_PAGE:
                return found
            after = request_number(page[-1].id)

    def watch(self, request_id: str) -> Iterator[DeletionRequest | Event | RoundRecord]:
        """Yield the request, its events and the federation's rounds as they happen; last, the request again.

        Goes on where it was when the service is away for less than a minute.
        """
        request = self.get(request_id)
        yield request
        after_event = after_round = 0
        while True:
            try:
                events, _ = self.events(request_id, after=after_event)
                if events and request.is_open:
                    # The state is read before the last of what led to it: if it is final, all of that is there.
                    request = self.get(request_id)
                    events += self.events(request_id, after=events[-1].sequence)[0]
                rounds = self.rounds(request_id=request_id, after=after_round)
            except ServiceUnavailable as exc:
                self._wait_for_service(exc)
                continue
            after_event = events[-1].sequence if events else after_event
            after_round = rounds[-1].sequence if rounds else after_round
            happened: list[Event | RoundRecord] = [*rounds, *events]
            yield from sorted(happened, key=lambda item: item.at)
            if len(rounds) == LIST_PAGE:
                continue
            if not request.is_open:
                yield request
                return
            time.sleep(WATCH_POLL_S)

    def _wait_for_service(self, error: ServiceUnavailable) -> None:
        try:
            grpc.channel_ready_future(self._channel).result(timeout=RECONNECT_S)
        except grpc.FutureTimeoutError:
            raise error from None
        time.sleep(WATCH_POLL_S)

    def report(self, request_id: str) -> Report:
        """Return the report of a completed request."""
        return self._ask("GetReport", Report, request_id=request_id)

    def clients(self) -> FederationClients:
        """Return every client that ever took part, and whom the run waits for."""
        return self._ask("ListClients", FederationClients)

    def methods(self) -> list[MethodDescription]:
        """Return every method of the service."""
        return self._ask_list("ListMethods", MethodDescription)

    def plan(self, target: Target) -> Plan:
        """Return what serving a target would take, by every method; a long list of samples is sent in parts."""
        plans: list[Plan] = []
        for ids in _parts(sorted(target.sample_ids)) or [[]]:
            if plans:
                time.sleep(_PART_PAUSE_S)
            part = replace(target, sample_ids=frozenset(ids), num_samples=0) if ids else target
            answer = self._call("PlanDeletion", to_message(pb.Target, part))
            plans.append(from_plain(Plan, json.loads(answer.plan_json)))
        return joined(plans, target)

    def refusals(self, *, after: int = 0, limit: int = 0, caller: str = "") -> list[Refusal]:
        """Return the newest refusals, at most `limit` (0: 1,000) and in order, of this caller where given."""
        return self._ask_list("ListRefusals", Refusal, after=after, limit=limit, caller=caller)

    def verify_ledger(self, sequence: int = 0) -> LedgerCheck:
        """Check the hash chain of the ledger's events, and return the hash of one."""
        return self._ask("VerifyLedger", LedgerCheck, sequence=sequence)

    def events(self, request_id: str = "", *, after: int = 0) -> tuple[list[Event], int]:
        """Return a request's events so far (of all requests where none is named), and the newest event's number.

        after: only events with a higher sequence number.
        """
        found: list[Event] = []
        while True:
            page = self._ask("ListEvents", EventPage, request_id=request_id, after=after)
            found += page.events
            if len(page.events) < LIST_PAGE:
                return found, page.newest
            after = page.events[-1].sequence

    def rounds(self, *, after: int = 0, limit: int = 0, request_id: str = "") -> list[RoundRecord]:
        """Return the newest rounds, at most `limit` (0: 1,000) and in order, with a sequence number above `after`.

        request_id: where it is given, the first rounds between its filing and its end.
        """
        return self._ask_list("ListRounds", RoundRecord, after=after, limit=limit, request_id=request_id)

    def _ask(self, name: str, kind: type[_Answer], **values: Any) -> _Answer:
        """Make a call with these values in its message; return its answer as this dataclass."""
        return from_message(kind, self._call(name, _message_of(name)(**values)))

    def _ask_list(self, name: str, kind: type[_Answer], **values: Any) -> list[_Answer]:
        """Make a call whose answer is a list of these; return it."""
        answer = self._call(name, _message_of(name)(**values))
        [only] = answer.DESCRIPTOR.fields
        return [from_message(kind, item) for item in getattr(answer, only.name)]

    def _call(self, name: str, message: Any, *, timeout_s: float = 0.0) -> Any:
        try:
            return self._calls[name](message, timeout=timeout_s or self._timeout_s, metadata=_version())
        except grpc.RpcError as exc:
            raise error_of(exc, self._address, uses_tls=self._uses_tls) from exc


def open_call(channel: grpc.Channel, name: str) -> Any:
    """Return what makes a call of deletion.proto over a channel."""
    method = _SERVICE.methods_by_name[name]
    open_one = channel.stream_unary if method.client_streaming else channel.unary_unary
    return open_one(
        f"/{_SERVICE.full_name}/{name}",
        request_serializer=_message_of(name).SerializeToString,
        response_deserializer=getattr(pb, method.output_type.name).FromString,
    )


def _message_of(name: str) -> Any:
    return getattr(pb, _SERVICE.methods_by_name[name].input_type.name)


def _version() -> tuple[tuple[str, str]]:
    return ((PROTOCOL, str(own_version())),)


def _parts(ids: Sequence[str]) -> list[list[str]]:
    """Return a list of ids in parts of which each fits into a message."""
    longest = max(map(len, ids), default=1)
    each = _PART_BYTES // (4 * longest + 4)  # four bytes a letter at most, and as many around each id
    return [list(ids[start : start + each]) for start in range(0, len(ids), each)]
