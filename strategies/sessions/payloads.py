"""What travels in a session: invitations, instructions and replies, as payloads and back."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from strategies.exchange import Failure, read_each, reported_failure
from strategies.messages import (
    NUM_EXAMPLES,
    ROUND,
    VECTOR,
    Json,
    instruction_from,
    instruction_values,
    make_reply,
)
from strategies.sessions.framing import Payload
from unlearning.errors import SessionError, UpdateRefused
from unlearning.methods.method import Instruction, Reply
from unlearning.plain import from_plain
from unlearning.untrusted import as_line

INVITATION, ACCOUNT = "session", "account"
"""Under these keys a Flower message carries the invitation, and its reply the account."""


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
        """Return what `to_plain` made of statistics; None where it is anything else, for a client may send that.

        More is passed over.
        """
        if not isinstance(value, Mapping):
            return None
        found: dict[str, Any] = {item.name: value.get(item.name) for item in fields(cls)}
        if not all(type(one) in (int, float) and 0 <= one < _MOST for one in found.values()):
            return None
        return cls(**found)


_MOST = 2**63


def instruction_payload(
    exchange: int, server_round: int, method: str, instruction: Instruction, model_hash: str
) -> Payload:
    """Return an instruction; its model is kept by the receiver under `model_hash`."""
    return Payload(
        exchange=exchange,
        values={**instruction_values(method, instruction), ROUND: server_round},
        arrays={VECTOR: instruction.model, **instruction.arrays},
        hashes={VECTOR: model_hash},
    )


def instruction_of(payload: Payload) -> tuple[str, int, Instruction]:
    """Return the method's name, the server's round, and the instruction.

    Raises:
        SessionError: a key or the model is missing.
    """
    arrays = dict(payload.arrays)
    try:
        model = arrays.pop(VECTOR)
        name, instruction = instruction_from(payload.values, model, arrays)
        return name, int(payload.values[ROUND]), instruction
    except (KeyError, TypeError) as exc:
        raise SessionError(f"Instruction {payload.exchange} lacks something or has too much: {exc}.") from exc


def reply_payload(exchange: int, reply: Reply) -> Payload:
    """Return a client's reply to instruction `exchange`."""
    values = {
        NUM_EXAMPLES: reply.num_examples,
        "metrics": dict(reply.metrics),
        "values": dict(reply.values),
    }
    return Payload(exchange=exchange, values=values, arrays={VECTOR: reply.vector, **reply.arrays})


def failure_payload(exchange: int, values: Json) -> Payload:
    """Return a client's answer that it cannot do what instruction `exchange` asks."""
    return Payload(exchange=exchange, values=values, arrays={})


def reply_of(client: str, payload: Payload) -> Reply | Failure:
    """Return the reply, or why there is none; whatever is in the payload."""
    read, refused = read_each({client: payload}, _reply)
    return read[client] if client in read else Failure(refused[client], is_refusal=True)


def _reply(_client: str, payload: Payload) -> Reply | Failure:
    """Return the reply, or why the client has none.

    Raises:
        UpdateRefused: the reply is malformed.
    """
    failure = reported_failure(payload.values)
    if failure is not None:
        return failure
    arrays = dict(payload.arrays)
    if VECTOR not in arrays:
        raise UpdateRefused(f"The reply has no array {VECTOR!r}, it has {as_line(sorted(arrays)[:5], 100)}.")
    metrics = {str(name): float(value) for name, value in payload.values["metrics"].items()}
    metrics[NUM_EXAMPLES] = float(payload.values[NUM_EXAMPLES])
    return make_reply(arrays.pop(VECTOR), metrics, arrays, dict(payload.values["values"]))
