"""What travels in a session: invitations, and Flower messages as payloads and back.

A message's records keep their names and keys, so their reader finds what would have come by Flower; arrays travel
as their numbers and not as files of numpy's, the model of a training round in 16 bits on demand (`wire_dtype`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from numpy.typing import NDArray

from strategies.held_arrays import numbers_of
from strategies.messages import (
    ARRAYS,
    CONFIG,
    METRICS,
    ROUND,
    TRAIN,
    VECTOR,
    Json,
    arrays_record,
    config_beside,
    records_of,
    round_of,
    text_of,
)
from strategies.sessions.framing import Payload
from strategies.sessions.wire_dtype import WIRE_DTYPES, read_bits, rounded_bits
from unlearning.errors import SessionError, UpdateRefused
from unlearning.parameters import fingerprint
from unlearning.runtime.json_codec import from_plain

INVITATION, ACCOUNT = "session", "account"
"""Under these keys a Flower message carries the invitation, and an answer what the client has done so far."""

_KIND, _TEXT, _BESIDE = "type", "json", "config"
_ROUNDED, _DTYPE = "wire-dtype", "dtype"
"""Under these keys a payload says in which 16 bits its model is, and a message what the model is otherwise."""
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
    """The arrays of one record as they travel; clients of a round share the record, and so its model's fingerprint.

    asked: the wire dtype that they were to have; rounded: what says that the model has it, empty where it has not.
    """

    record: ArrayRecord | None
    arrays: Mapping[str, Any]
    fingerprints: Mapping[str, str]
    asked: str = ""
    rounded: Json = field(default_factory=dict)

    @classmethod
    def of(cls, message: Message, known: "SharedArrays | None", wire_dtype: str = "") -> "SharedArrays":
        """Return the arrays of a message; those `known` where it is the same record.

        wire_dtype: in which the model travels if the message asks to train; empty: as it is.
        """
        record = records_of(message.content, ArrayRecord).get(ARRAYS)
        asked = wire_dtype if message.metadata.message_type == TRAIN else ""
        if known is not None and known.record is record and known.asked == asked:
            return known
        arrays, rounded = _arrays(message.content), {}
        if asked and VECTOR in arrays and (bits := rounded_bits(arrays[VECTOR], asked)) is not None:
            rounded = {_ROUNDED: asked, _DTYPE: arrays[VECTOR].dtype.str}
            arrays[VECTOR] = bits
        fingerprints = {VECTOR: fingerprint(arrays[VECTOR])} if VECTOR in arrays else {}
        return cls(record=record, arrays=arrays, fingerprints=fingerprints, asked=asked, rounded=rounded)


def message_payload(message: Message, shared: SharedArrays) -> Payload:
    """Return a message to a client, not numbered yet; the receiver keeps its model under its hash."""
    return Payload(
        exchange=0,
        values={
            _KIND: message.metadata.message_type,
            ROUND: round_of(message),
            _TEXT: text_of(message.content),
            _BESIDE: config_beside(message.content),
            **shared.rounded,
        },
        arrays=shared.arrays,
        fingerprints=shared.fingerprints,
    )


def told_message(payload: Payload, node_id: int, spool: Path | None = None) -> Message:
    """Return the message that the server sent to this node.

    spool: as in `answer_content`.

    Raises:
        SessionError: a key is missing.
        OSError: the spool has no room.
    """
    values = payload.values
    try:
        if _ROUNDED in values:
            bits = payload.arrays[VECTOR]
            like = np.broadcast_to(np.zeros((), values[_DTYPE]), bits.shape)
            payload = _with_model(payload, read_bits(bits, values[_ROUNDED], like=like, spool=spool))
        config = ConfigRecord({**values.get(_BESIDE, {}), ROUND: int(values[ROUND]), "json": values[_TEXT]})
        content = RecordDict({CONFIG: config, **_array_record(payload, payload.fingerprints)})
        kind, group = values[_KIND], str(values[ROUND])
        return Message(content, dst_node_id=node_id, message_type=kind, group_id=group)
    except (KeyError, TypeError, ValueError) as exc:
        raise SessionError(f"Message {payload.exchange} lacks something or has too much: {exc}.") from exc


def answer_payload(told: Payload, asked: RecordDict, content: RecordDict) -> Payload:
    """Return a client's answer to a message that was `told`, of which it read the records `asked`.

    Where the model came in a wire dtype, the answer's model goes as its difference from that in the same.
    """
    values: Json = {_TEXT: text_of(content)}
    if (metrics := records_of(content, MetricRecord).get(METRICS)) is not None:
        values[METRICS] = dict(metrics)
    payload = Payload(exchange=told.exchange, values=values, arrays=_arrays(content))
    wire_dtype, model = told.values.get(_ROUNDED), payload.arrays.get(VECTOR)
    if wire_dtype is None or model is None:
        return payload
    before = _arrays(asked)[VECTOR]
    if model.shape != before.shape or (bits := rounded_bits(model, wire_dtype, minus=before)) is None:
        return payload
    return _with_model(replace(payload, values={**values, _ROUNDED: wire_dtype}), bits)


def answer_content(payload: Payload, asked: RecordDict, spool: Path | None = None) -> RecordDict:
    """Return the records of an answer to the records `asked`. What they say is for its reader to check, as by Flower.

    spool: the directory of the file for a model that travelled in a wire dtype.

    Raises:
        UpdateRefused: they make no records.
        OSError: the spool has no room.
    """
    if _ROUNDED in payload.values:
        wire_dtype, bits, before = (
            payload.values[_ROUNDED],
            payload.arrays.get(VECTOR),
            _arrays(asked).get(VECTOR),
        )
        if wire_dtype not in [*WIRE_DTYPES] or bits is None or before is None:
            raise UpdateRefused("A model in a wire dtype came that was not asked for.", code="bad-wire-dtype")
        payload = _with_model(payload, read_bits(bits, wire_dtype, like=before, add=True, spool=spool))
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


def _with_model(payload: Payload, model: NDArray[Any]) -> Payload:
    return replace(payload, arrays={**payload.arrays, VECTOR: model})


def _arrays(content: RecordDict) -> dict[str, Any]:
    record = records_of(content, ArrayRecord).get(ARRAYS)
    return {} if record is None else {name: numbers_of(name, array) for name, array in record.items()}


def _array_record(
    payload: Payload, fingerprints: Mapping[str, str] = MappingProxyType({})
) -> dict[str, ArrayRecord]:
    return {ARRAYS: arrays_record(payload.arrays, fingerprints)} if payload.arrays else {}
