"""Between the project's types and the messages of deletion.proto, both ways."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any, TypeVar

from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from server.api import deletion_pb2 as pb
from server.ledger import ClientRecord, Event
from unlearning.errors import InvalidRequest
from unlearning.gdpr import Particulars, one_month_after, parse_day, parse_ground
from unlearning.requests import DeletionRequest, Granularity, Status, Target

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_Sent = TypeVar("_Sent", bound=Message)
_Read = TypeVar("_Read", bound="DataclassInstance")


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
    return to_message(
        pb.DeletionRequest, request, target=target_message(request.target, without_ids=without_ids)
    )


def request_of(message: pb.DeletionRequest, target: Target | None = None) -> DeletionRequest:
    """Return the request of a message. target: what was asked for, where the message leaves it out."""
    filed_on = message.created_at.ToDatetime(tzinfo=UTC).date()
    received_on = parse_day("received_on", message.received_on) or filed_on  # an earlier service says none
    return from_message(
        DeletionRequest,
        message,
        target=target or target_of(message.target),
        status=Status(message.status),
        received_on=received_on,
        due_on=parse_day("due_on", message.due_on) or one_month_after(received_on),
        ground=parse_ground(message.ground),
    )


def particulars_of(message: pb.SubmitRequestRequest) -> Particulars:
    """Return what the filer says beside the target.

    Raises:
        InvalidRequest: a day, the ground or a text is malformed.
    """
    return Particulars.from_texts(
        message.received_on, message.due_on, message.ground, message.reference, message.note
    )


def particulars_fields(particulars: Particulars) -> dict[str, str]:
    """Return the fields of a `SubmitRequestRequest` that say this."""
    return {item.name: str(getattr(particulars, item.name) or "") for item in fields(particulars)}


def event_of(message: pb.Event) -> Event:
    """Return what the message says."""
    moved = {name: getattr(message, name) for name in ("from_status", "to_status")}
    return from_message(Event, message, **{name: Status(one) if one else None for name, one in moved.items()})


def client_message(status: ClientStatus) -> pb.Client:
    """Return the message."""
    forgotten = {"forgotten": status.forgotten, "num_forgotten_samples": status.num_forgotten_samples}
    return to_message(pb.Client, status.client, **forgotten)


def client_of(message: pb.Client) -> ClientStatus:
    """Return what the message says."""
    return ClientStatus(from_message(ClientRecord, message), message.forgotten, message.num_forgotten_samples)


def method_message(method: MethodDescription) -> pb.Method:
    """Return the message."""
    return to_message(pb.Method, method, **({} if method.measured else {"measured_json": ""}))


def to_message(kind: type[_Sent], value: Any, **given: Any) -> _Sent:
    """Return the message of a dataclass whose fields it has by the same names, mappings as NAME_json; None is left out.

    given: fields of the message in place of the dataclass's, or beside them.
    """
    values = dict(given)
    for item in fields(value):
        found = getattr(value, item.name)
        if isinstance(found, Mapping):
            values.setdefault(f"{item.name}_json", json.dumps(dict(found)))
        elif isinstance(found, date) and not isinstance(found, datetime):
            values.setdefault(item.name, found.isoformat())
        elif found is not None:
            values.setdefault(item.name, found)
    return kind(**values)


def from_message(kind: type[_Read], message: Message, **given: Any) -> _Read:
    """Return the dataclass that `to_message` has made a message of. given: fields that are not what the message has."""
    values = dict(given)
    wanted = {item.name for item in fields(kind)} - set(given)
    for item in message.DESCRIPTOR.fields:
        name = item.name.removesuffix("_json")
        if name not in wanted or (item.has_presence and not message.HasField(item.name)):
            continue
        found = getattr(message, item.name)
        if name != item.name:
            values[name] = json.loads(found or "{}")
        elif isinstance(found, Timestamp):
            values[name] = found.ToDatetime(tzinfo=UTC)
        else:
            values[name] = found if isinstance(found, str | int) else tuple(found)  # what is repeated
    return kind(**values)
