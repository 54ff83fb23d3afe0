"""The server half of a session: invite by Flower messages, ask and collect over the clients' streams.

A client that is late or gone is missing among the replies, and the method decides what that means.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from logging import getLogger
from types import TracebackType
from typing import Self

import grpc
from flwr.app import Message
from flwr.serverapp import Grid

from strategies.exchange import Exchange, Failure, pull, read_each, reported_failure
from strategies.messages import Json, count_bytes, values_of
from strategies.sessions.connections import ClientConnection, ClientConnections
from strategies.sessions.endpoint import Endpoint
from strategies.sessions.payloads import (
    ACCOUNT,
    INVITATION,
    Invitation,
    SessionStatistics,
    instruction_payload,
)
from strategies.sessions.session_pb2_grpc import add_SessionServiceServicer_to_server
from unlearning.methods.method import Instruction, Reply
from unlearning.parameters import Vector, content_hash
from unlearning.plain import to_plain

_log = getLogger(__name__)

RECONNECT_S = 30.0
"""How long a client whose stream broke is waited for."""
ACCOUNTS_S = 30.0
"""How long the clients' accounts are waited for at the end."""
_POLL_S = 2.0  # how often Flower is asked whether a client's message has failed

Inviting = Callable[[Mapping[str, Json]], Mapping[str, Message]]
"""Flower messages that carry these values, by client; clients that are not online are left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """The replies to one exchange by client, and what the exchange cost and who is missing."""

    replies: Mapping[str, Reply]
    exchange: Exchange


class Session:
    """One session. A context manager: entering listens, leaving ends the session for every client.

    Raises (on entering):
        SessionError: the address is taken, or open to other machines without TLS.
    """

    def __init__(self, grid: Grid, endpoint: Endpoint, *, reconnect_s: float = RECONNECT_S) -> None:
        self._grid = grid
        self._endpoint = endpoint
        self._reconnect_s = reconnect_s
        self._lines = ClientConnections()
        self._model: tuple[Vector, str] | None = None
        self._polled_at = 0.0
        self._accounts: dict[str, Message] = {}
        self._values: dict[str, Json] = {}
        self._server: grpc.Server | None = None

    def __enter__(self) -> Self:
        self._server = self._endpoint.listen()
        add_SessionServiceServicer_to_server(self._lines, self._server)  # type: ignore[no-untyped-call]  # generated
        self._server.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close(accounts_s=0.0 if kind else ACCOUNTS_S)

    def exchange(
        self, server_round: int, method: str, instructions: Mapping[str, Instruction], invite: Inviting
    ) -> Answers:
        """Ask each client its instruction, invite those that are new, and collect until the deadline.

        The deadline of a client counts from now or, if it first has to come, from its arrival.
        """
        started = time.monotonic()
        lines = self._lines
        before = (lines.bytes_sent, lines.bytes_received)
        number = lines.next_exchange()
        for instruction in instructions.values():
            lines.reply_limit_bytes = max(lines.reply_limit_bytes, 8 * instruction.model.nbytes + 2**24)
        self._invite([client for client in sorted(instructions) if client not in lines.by_client], invite)
        with lines.changed:
            for client, instruction in instructions.items():
                lines.by_client[client].instruction = instruction_payload(
                    number, server_round, method, instruction, self._hash(instruction.model)
                )
            lines.changed.notify_all()
        asked = [lines.by_client[client] for client in sorted(instructions)]
        while any(self._is_awaited(line, started) for line in asked):
            self._poll_flower()
            with lines.changed:
                lines.changed.wait_for(
                    lambda: all(line.answer is not None for line in asked), timeout=_POLL_S / 4
                )
        return self._collect(asked, started, before)

    def close(self, *, accounts_s: float = ACCOUNTS_S) -> Exchange:
        """End the session and give the clients' accounts, waited for `accounts_s` seconds at most."""
        started = time.monotonic()
        lines = self._lines
        if lines.is_over:
            return Exchange()
        before = (lines.bytes_sent, lines.bytes_received)
        leaving = [line for line in lines.by_client.values() if line.stream and not line.instruction]
        lines.end()
        while any(not line.has_returned for line in leaving) and time.monotonic() - started < accounts_s:
            self._polled_at = 0.0
            self._poll_flower()
            time.sleep(0.1)
        if self._server is not None:
            self._server.stop(1.0).wait()
        for client, values in self._values.items():
            _log.info("Session of client %s: %s", client, SessionStatistics.from_json(values.get(ACCOUNT)))
        return Exchange(
            messages=dict(self._accounts),
            values=dict(self._values),
            bytes_sent=lines.bytes_sent - before[0],
            bytes_received=lines.bytes_received - before[1],
            seconds=time.monotonic() - started,
        )

    def _invite(self, clients: list[str], invite: Inviting) -> None:
        if not clients:
            return
        opened = {client: self._lines.open(client) for client in clients}
        messages = invite({client: {INVITATION: self._invitation(line)} for client, line in opened.items()})
        ids = list(self._grid.push_messages(list(messages.values())))
        handed = dict(zip(messages, ids, strict=False))
        with self._lines.changed:
            for client, line in opened.items():
                line.message_id = handed.get(client) or ""
                if not line.message_id:
                    line.lost = "its invitation could not be handed to the SuperLink"
            self._lines.bytes_sent += sum(count_bytes(message.content) for message in messages.values())
        _log.info("Session at %s: invited %s", self._endpoint.address, ", ".join(clients))

    def _invitation(self, line: ClientConnection) -> Json:
        own = Invitation(
            address=self._endpoint.address,
            session_id=self._lines.session_id,
            token=line.token,
            timeout_s=self._endpoint.timeout_s,
        )
        plain: Json = to_plain(own)
        return plain

    def _is_awaited(self, line: ClientConnection, started: float) -> bool:
        """Return whether the line's answer may still come; where not, its answer says why."""
        now, timeout_s = time.monotonic(), self._endpoint.timeout_s
        with self._lines.changed:
            if line.answer is not None:
                return False
            if not line.lost and line.attached_at is None and now - line.invited_at > timeout_s:
                line.lost = f"it did not come to the session within {timeout_s:g} s"
            is_broken = line.attached_at is not None and line.stream is None
            if not line.lost and is_broken and now - line.detached_at > self._reconnect_s:
                line.lost = f"its stream broke off and did not come back within {self._reconnect_s:g} s"
            if line.lost:
                line.answer = Failure(line.lost, is_refusal=line.is_refused)
            elif line.attached_at is not None and now - max(started, line.attached_at) > timeout_s:
                line.answer = Failure(f"no answer within {timeout_s:g} s")
            return line.answer is None

    def _collect(self, asked: list[ClientConnection], started: float, before: tuple[int, int]) -> Answers:
        with self._lines.changed:
            replies = {line.client: line.answer for line in asked if isinstance(line.answer, Reply)}
            failures = {line.client: line.answer for line in asked if isinstance(line.answer, Failure)}
            sent, received = self._lines.bytes_sent - before[0], self._lines.bytes_received - before[1]
        for client, reason in failures.items():
            _log.warning("Client %s did not take part in the exchange: %s", client, reason)
        return Answers(
            replies=replies,
            exchange=Exchange(
                failures=failures,
                refused={client: one.reason for client, one in failures.items() if one.is_refusal},
                bytes_sent=sent,
                bytes_received=received,
                seconds=time.monotonic() - started,
            ),
        )

    def _poll_flower(self) -> None:
        """Take in the Flower replies that have come: an account, or that the client's process has died."""
        waiting = {
            line.message_id: line
            for line in self._lines.by_client.values()
            if line.message_id and not line.has_returned
        }
        if not waiting or time.monotonic() - self._polled_at < _POLL_S:
            return
        self._polled_at = time.monotonic()
        for asked, reply in pull(self._grid, list(waiting)):
            line = waiting.get(asked if isinstance(reply, str) else reply.metadata.reply_to_message_id)
            if line is not None:
                with self._lines.changed:
                    self._result(line, reply)

    def _result(self, line: ClientConnection, reply: Message | str) -> None:
        line.has_returned = True
        if isinstance(reply, str):
            line.lost, line.is_refused = reply, True
            return
        if reply.has_error():
            line.lost = Failure(reply.error.reason or f"error code {reply.error.code}").reason
            return
        read, refused = read_each({line.client: reply}, lambda _, one: values_of(one.content))
        if line.client in refused:
            line.lost, line.is_refused = refused[line.client], True
            return
        values = read[line.client]
        self._lines.bytes_received += count_bytes(reply.content)
        self._accounts[line.client], self._values[line.client] = reply, values
        failure = reported_failure(values)
        if failure is None:
            line.lost = line.lost or "it left the session"
            return
        line.lost = str(failure)
        if failure.is_final and line.answer is None:
            line.answer = failure

    def _hash(self, model: Vector) -> str:
        if self._model is None or self._model[0] is not model:
            self._model = (model, content_hash(model))
        return self._model[1]
