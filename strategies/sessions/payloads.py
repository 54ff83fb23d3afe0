"""What travels in a session: invitations, and Flower messages as payloads and back.

A message's records keep their names and keys, so their reader finds what would have come by Flower; arrays travel
as their numbers and not as files of numpy's.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from strategies.held_arrays import numbers_of
from strategies.messages import (
    ARRAYS,
    CONFIG,
    METRICS,
    ROUND,
    VECTOR,
    Json,
    arrays_record,
    config_beside,
    round_of,
    text_of,
)
from strategies.sessions.framing import Payload
from unlearning.errors import SessionError, UpdateRefused
from unlearning.parameters import content_hash
from unlearning.runtime.json_codec import from_plain

INVITATION, ACCOUNT = "session", "account"
"""Under these keys a Flower message carries the invitation, and an answer what the client has done so far."""

_KIND, _TEXT, _BESIDE = "type", "json", "config"
_MOST = 2**63


@dataclass(frozen=True, slots=True, kw_only=True)
class Invitation:
    """What the Flower message that opens a session tells one client. The token is for this client alone."""

    address: str
    session_id: str
    token: str
    timeout_s: float

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Invitation":
        """Return what `to_plain` made of an invitation.

        Raises:
            SessionError: the message carries no invitation.
        """
        try:
            return from_plain(cls, value, exactly=True)
        except ValueError as exc:
            raise SessionError(f"The message carries no invitation to a session: {exc}.") from exc


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionStatistics:
    """What a client says it did in a session. Bytes are of frames, seconds of wall time."""

    instructions: int = 0
    seconds_computing: float = 0.0
    seconds: float = 0.0
    bytes_sent: int = 0
    bytes_received: int = 0
    connections: int = 0

    @classmethod
    def from_json(cls, value: Any) -> "SessionStatistics | None":
        """Return what `to_plain` made of statistics; None where it is anything else, which a client may send.

        More is passed over.
        """
        if not isinstance(value, Mapping):
            return None
        found: dict[str, Any] = {item.name: value.get(item.name) for item in fields(cls)}
        if not all(type(one) in (int, float) and 0 <= one < _MOST for one in found.values()):
            return None
        return cls(**found)


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedArrays:
    """The arrays of one record as they travel; clients of a round share the record, and so its model's hash."""

    record: ArrayRecord | None
    arrays: Mapping[str, Any]
    hashes: Mapping[str, str]

    @classmethod
    def of(cls, message: Message, known: "SharedArrays | None") -> "SharedArrays":
        """Return the arrays of a message; those `known` where it is the same record."""
        record = message.content.array_records.get(ARRAYS)
        if known is not None and known.record is record:
            return known
        arrays = _arrays(message.content)
        hashes = {VECTOR: content_hash(arrays[VECTOR])} if VECTOR in arrays else {}
        return cls(record=record, arrays=arrays, hashes=hashes)


def message_payload(message: Message, shared: SharedArrays) -> Payload:
    """Return a message to a client, not numbered yet; the receiver keeps its model under its hash."""
    return Payload(
        exchange=0,
        values={
            _KIND: message.metadata.message_type,
            ROUND: round_of(message),
            _TEXT: text_of(message.content),
            _BESIDE: config_beside(message.content),
        },
        arrays=shared.arrays,
        hashes=shared.hashes,
    )


def told_message(payload: Payload, node_id: int) -> Message:
    """Return the message that the server sent to this node.

    Raises:
        SessionError: a key is missing.
    """
    values = payload.values
    try:
        config = ConfigRecord({**values.get(_BESIDE, {}), ROUND: int(values[ROUND]), "json": values[_TEXT]})
        content = RecordDict({CONFIG: config, **_array_record(payload)})
        kind, group = values[_KIND], str(values[ROUND])
        return Message(content, dst_node_id=node_id, message_type=kind, group_id=group)
    except (KeyError, TypeError, ValueError) as exc:
        raise SessionError(f"Message {payload.exchange} lacks something or has too much: {exc}.") from exc


def answer_payload(exchange: int, content: RecordDict) -> Payload:
    """Return a client's answer to the message of this exchange."""
    values: Json = {_TEXT: text_of(content)}
    if METRICS in content.metric_records:
        values[METRICS] = dict(content.metric_records[METRICS])
    return Payload(exchange=exchange, values=values, arrays=_arrays(content))


def answer_content(payload: Payload) -> RecordDict:
    """Return the records of an answer. What they say is for its reader to check, as if they came by Flower.

    Raises:
        UpdateRefused: they make no records.
    """
    text, metrics = payload.values.get(_TEXT), payload.values.get(METRICS, {})
    if not isinstance(text, str) or not isinstance(metrics, dict):
        raise UpdateRefused(
            "The answer makes no records: its JSON is no text, or its metrics are not by name.",
            code="no-records",
        )
    try:
        content = RecordDict({CONFIG: ConfigRecord({"json": text}), **_array_record(payload)})
        if metrics:
            content[METRICS] = MetricRecord(metrics)
    except (TypeError, ValueError) as exc:
        raise UpdateRefused(f"The answer makes no records: {exc}", code="no-records") from exc
    return content


def _arrays(content: RecordDict) -> dict[str, Any]:
    record = content.array_records.get(ARRAYS)
    return {} if record is None else {name: numbers_of(name, array) for name, array in record.items()}


def _array_record(payload: Payload) -> dict[str, ArrayRecord]:
    if not payload.arrays:
        return {}
    return {ARRAYS: arrays_record(payload.arrays, payload.hashes)}
