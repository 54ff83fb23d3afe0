"""Between the project's types and the messages of deletion.proto, both ways."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from google.protobuf.timestamp_pb2 import Timestamp

from server.api import deletion_pb2 as pb
from server.ledger import ClientRecord, Event, Refusal, RoundRecord
from unlearning.errors import InvalidRequest
from unlearning.requests import DeletionRequest, Granularity, Status, Target


@dataclass(frozen=True, slots=True)
class ClientStatus:
    """A client of the federation and how much of it was forgotten."""

    client: ClientRecord
    forgotten: bool
    num_forgotten_samples: int


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


def target_message(target: Target, *, without_ids: bool = False) -> pb.Target:
    """Return the message."""
    return pb.Target(
        granularity=str(target.granularity),
        client_id=target.client_id or "",
        sample_ids=() if without_ids else sorted(target.sample_ids),
        class_label=target.class_label,
        num_samples=target.num_samples,
    )


def target_of(message: pb.Target, sample_ids: Sequence[str] | None = None) -> Target:
    """Return the target of a message, checked. sample_ids: instead of the message's, where the list came in parts.

    Raises:
        InvalidRequest: it is not a target, or names a sample twice.
    """
    try:
        granularity = Granularity(message.granularity)
    except ValueError:
        allowed = ", ".join(Granularity)
        raise InvalidRequest(
            f"Unknown granularity {message.granularity[:40]!r}; it is one of: {allowed}."
        ) from None
    named = list(sample_ids) if sample_ids is not None else list(message.sample_ids)
    distinct = frozenset(named)
    if len(distinct) != len(named):
        repeated = len(named) - len(distinct)
        raise InvalidRequest(f"The list of sample ids has {repeated:,} repetition(s); name each once.")
    return Target(
        granularity=granularity,
        client_id=message.client_id or None,
        sample_ids=distinct,
        class_label=message.class_label if message.HasField("class_label") else None,
        # Of an answer, which has no ids; what is filed counts by its ids, which may come in parts.
        num_samples=0 if distinct else message.num_samples,
    )


def parameters_of(text: str) -> Mapping[str, Any]:
    """Return a method's parameters from the wire.

    Raises:
        InvalidRequest: it is not a JSON object.
    """
    try:
        value = json.loads(text or "{}")
    except (ValueError, RecursionError) as exc:
        raise InvalidRequest(f"The parameters are not JSON: {exc}.") from exc
    if not isinstance(value, dict):
        raise InvalidRequest(f"The parameters must be a JSON object, got {type(value).__name__}.")
    return value


def request_message(request: DeletionRequest, *, without_ids: bool = False) -> pb.DeletionRequest:
    """Return the message. without_ids: for who has just sent a long list of samples and knows it."""
    return pb.DeletionRequest(
        id=request.id,
        idempotency_key=request.idempotency_key,
        target=target_message(request.target, without_ids=without_ids),
        method=request.method,
        parameters_json=json.dumps(dict(request.parameters)),
        submitted_by=request.submitted_by,
        submitted_role=request.submitted_role,
        status=str(request.status),
        reason=request.reason,
        retryable=request.retryable,
        attempts=request.attempts,
        created_at=_timestamp(request.created_at),
        updated_at=_timestamp(request.updated_at),
        result_json=json.dumps(dict(request.result)),
    )


def request_of(message: pb.DeletionRequest, target: Target | None = None) -> DeletionRequest:
    """Return the request of a message. target: what was asked for, where the message leaves it out."""
    return DeletionRequest(
        id=message.id,
        idempotency_key=message.idempotency_key,
        target=target or target_of(message.target),
        method=message.method,
        parameters=json.loads(message.parameters_json),
        submitted_by=message.submitted_by,
        submitted_role=message.submitted_role if message.HasField("submitted_role") else None,
        status=Status(message.status),
        reason=message.reason,
        retryable=message.retryable,
        attempts=message.attempts,
        created_at=_time(message.created_at),
        updated_at=_time(message.updated_at),
        result=json.loads(message.result_json),
    )


def event_message(event: Event) -> pb.Event:
    """Return the message."""
    return pb.Event(
        sequence=event.sequence,
        request_id=event.request_id,
        kind=event.kind,
        from_status=str(event.from_status or ""),
        to_status=str(event.to_status or ""),
        actor=event.actor,
        detail_json=json.dumps(dict(event.detail)),
        at=_timestamp(event.at),
    )


def event_of(message: pb.Event) -> Event:
    """Return what the message says."""
    return Event(
        sequence=message.sequence,
        request_id=message.request_id,
        kind=message.kind,
        from_status=Status(message.from_status) if message.from_status else None,
        to_status=Status(message.to_status) if message.to_status else None,
        actor=message.actor,
        detail=json.loads(message.detail_json),
        at=_time(message.at),
    )


def round_message(record: RoundRecord) -> pb.Round:
    """Return the message."""
    return pb.Round(
        sequence=record.sequence,
        round=record.round,
        kind=record.kind,
        request_ids=record.request_ids,
        metrics_json=json.dumps(dict(record.metrics)),
        at=_timestamp(record.at),
    )


def round_of(message: pb.Round) -> RoundRecord:
    """Return what the message says."""
    return RoundRecord(
        sequence=message.sequence,
        round=message.round,
        kind=message.kind,
        request_ids=tuple(message.request_ids),
        metrics=json.loads(message.metrics_json),
        at=_time(message.at),
    )


def refusal_message(refusal: Refusal) -> pb.Refusal:
    """Return the message."""
    return pb.Refusal(
        sequence=refusal.sequence,
        at=_timestamp(refusal.at),
        caller=refusal.caller,
        role=refusal.role,
        call=refusal.call,
        reason=refusal.reason,
        detail_json=json.dumps(dict(refusal.detail)),
    )


def refusal_of(message: pb.Refusal) -> Refusal:
    """Return what the message says."""
    return Refusal(
        sequence=message.sequence,
        at=_time(message.at),
        caller=message.caller,
        role=message.role,
        call=message.call,
        reason=message.reason,
        detail=json.loads(message.detail_json),
    )


def client_message(status: ClientStatus) -> pb.Client:
    """Return the message."""
    client = status.client
    return pb.Client(
        client_id=client.client_id,
        node_name=client.node_name,
        public_key_hex=client.public_key_hex,
        online=client.online,
        last_seen=None if client.last_seen is None else _timestamp(client.last_seen),
        forgotten=status.forgotten,
        num_forgotten_samples=status.num_forgotten_samples,
    )


def client_of(message: pb.Client) -> ClientStatus:
    """Return what the message says."""
    client = ClientRecord(
        client_id=message.client_id,
        node_name=message.node_name,
        public_key_hex=message.public_key_hex,
        online=message.online,
        last_seen=_time(message.last_seen) if message.HasField("last_seen") else None,
    )
    return ClientStatus(client, message.forgotten, message.num_forgotten_samples)


def method_message(method: MethodDescription) -> pb.Method:
    """Return the message."""
    return pb.Method(
        name=method.name,
        title=method.title,
        source=method.source,
        granularities=method.granularities,
        several_at_once=method.several_at_once,
        needs=method.needs,
        remark=method.remark,
        parameters_json=json.dumps(dict(method.parameters)),
        keeps=method.keeps,
        measured_json=json.dumps(dict(method.measured)) if method.measured else "",
    )


def method_of(message: pb.Method) -> MethodDescription:
    """Return what the message says."""
    return MethodDescription(
        name=message.name,
        title=message.title,
        source=message.source,
        granularities=tuple(message.granularities),
        several_at_once=message.several_at_once,
        needs=tuple(message.needs),
        remark=message.remark,
        parameters=json.loads(message.parameters_json),
        keeps=message.keeps,
        measured=json.loads(message.measured_json) if message.measured_json else {},
    )


def _timestamp(value: datetime) -> Timestamp:
    message = Timestamp()
    message.FromDatetime(value)
    return message


def _time(message: Timestamp) -> datetime:
    return message.ToDatetime(tzinfo=UTC)
