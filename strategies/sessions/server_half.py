"""The server half of a session: invite by Flower messages, ask and collect over the clients' streams.

Each client that takes part has a line: its token, its newest stream, and the instruction it owes an answer to.
A stream may break and come back; the line lives as long as the session, and its outstanding instruction is sent
again. A client that is late or gone is missing among the replies, and the method decides what that means.
"""

import hmac
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from logging import getLogger
from types import TracebackType
from typing import Self

import grpc
from flwr.app import Message
from flwr.serverapp import Grid

from strategies.exchange import Exchange, Failure, reported_failure
from strategies.messages import Json, count_bytes, values_of
from strategies.sessions import session_pb2 as pb
from strategies.sessions.endpoint import Endpoint
from strategies.sessions.framing import Assembler, Parcel, frames
from strategies.sessions.parcels import ACCOUNT, INVITATION, Invitation, instruction_parcel, reply_of
from strategies.sessions.session_pb2_grpc import add_SessionServiceServicer_to_server
from unlearning.errors import SessionError, UpdateRefused
from unlearning.methods.method import Instruction, Reply
from unlearning.parameters import Vector, content_hash

_log = getLogger(__name__)

HELLO_S = 10.0
RECONNECT_S = 30.0
ACCOUNTS_S = 30.0
_POLL_S = 2.0  # how often Flower is asked whether a client's message has failed

Inviting = Callable[[Mapping[str, Json]], Mapping[str, Message]]
"""Flower messages that carry these values, by client; clients that are not online are left out."""


@dataclass(slots=True, eq=False)
class _Stream:
    """One connection of a client. `sent`: the newest exchange whose instruction went over it."""

    assembler: Assembler
    sent: int = 0
    known: frozenset[str] = frozenset()
    refusal: tuple[grpc.StatusCode, str] | None = None


@dataclass(slots=True, eq=False)
class _Line:
    """One client's part in the session. Times are of the monotonic clock."""

    client: str
    token: str
    invited_at: float
    message_id: str = ""
    connection: int = 0
    stream: _Stream | None = None
    attached_at: float | None = None
    detached_at: float = 0.0
    instruction: Parcel | None = None
    answer: Reply | Failure | None = None
    lost: str = ""
    has_returned: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """The replies to one exchange by client, and what the exchange cost and who is missing."""

    replies: Mapping[str, Reply]
    exchange: Exchange


class Session:
    """One session. A context manager: entering listens, leaving ends the session for every client.

    reconnect_s: how long a client whose stream broke is waited for.

    Raises (on entering):
        SessionError: the address is taken, or open to other machines without TLS.
    """

    def __init__(self, grid: Grid, endpoint: Endpoint, *, reconnect_s: float = RECONNECT_S) -> None:
        self.id = secrets.token_hex(16)
        self._grid = grid
        self._endpoint = endpoint
        self._reconnect_s = reconnect_s
        self._lines: dict[str, _Line] = {}
        self._changed = threading.Condition()
        self._number = 0
        self._is_over = False
        self._model: tuple[Vector, str] | None = None
        self._reply_limit_bytes = 0
        self._sent = self._received = 0
        self._polled_at = 0.0
        self._accounts: dict[str, Message] = {}
        self._server: grpc.Server | None = None

    def __enter__(self) -> Self:
        self._server = self._endpoint.listen()
        add_SessionServiceServicer_to_server(self, self._server)  # type: ignore[no-untyped-call]  # generated
        self._server.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close(accounts_s=0.0 if kind else ACCOUNTS_S)

    # --- what the driver does

    def exchange(
        self, server_round: int, method: str, instructions: Mapping[str, Instruction], invite: Inviting
    ) -> Answers:
        """Ask each client its instruction, invite those that are new, and collect until the deadline.

        The deadline of a client counts from now or, if it first has to come, from its arrival.
        """
        started = time.monotonic()
        with self._changed:
            before = (self._sent, self._received)
            self._number += 1
            for line in self._lines.values():
                line.answer = line.instruction = None
        for instruction in instructions.values():
            self._reply_limit_bytes = max(self._reply_limit_bytes, 8 * instruction.model.nbytes + 2**24)
        self._invite([client for client in sorted(instructions) if client not in self._lines], invite)
        with self._changed:
            for client, instruction in instructions.items():
                self._lines[client].instruction = instruction_parcel(
                    self._number, server_round, method, instruction, self._hash(instruction.model)
                )
            self._changed.notify_all()
        asked = [self._lines[client] for client in sorted(instructions)]
        while any(self._is_awaited(line, started) for line in asked):
            self._poll_flower()
            with self._changed:
                self._changed.wait_for(
                    lambda: all(line.answer is not None for line in asked), timeout=_POLL_S / 4
                )
        return self._collected(asked, started, before)

    def close(self, *, accounts_s: float = ACCOUNTS_S) -> Exchange:
        """End the session and give the clients' accounts, waited for `accounts_s` seconds at most."""
        started = time.monotonic()
        with self._changed:
            if self._is_over:
                return Exchange()
            self._is_over = True
            before = (self._sent, self._received)
            leaving = [line for line in self._lines.values() if line.stream and not line.instruction]
            self._changed.notify_all()
        while any(not line.has_returned for line in leaving) and time.monotonic() - started < accounts_s:
            self._polled_at = 0.0
            self._poll_flower()
            time.sleep(0.1)
        if self._server is not None:
            self._server.stop(1.0).wait()
        for client, message in self._accounts.items():
            _log.info("Session of client %s: %s", client, values_of(message.content).get(ACCOUNT))
        return Exchange(
            messages=dict(self._accounts),
            bytes_sent=self._sent - before[0],
            bytes_received=self._received - before[1],
            seconds=time.monotonic() - started,
        )

    # --- inside an exchange

    def _invite(self, clients: list[str], invite: Inviting) -> None:
        if not clients:
            return
        lines = {
            client: _Line(client, secrets.token_urlsafe(32), invited_at=time.monotonic())
            for client in clients
        }
        with self._changed:
            self._lines |= lines
        messages = invite(
            {
                client: {
                    INVITATION: Invitation(
                        address=self._endpoint.address,
                        session_id=self.id,
                        token=line.token,
                        timeout_s=self._endpoint.timeout_s,
                    ).to_json()
                }
                for client, line in lines.items()
            }
        )
        ids = list(self._grid.push_messages(list(messages.values())))
        handed = dict(zip(messages, ids, strict=False))
        with self._changed:
            for client, line in lines.items():
                line.message_id = handed.get(client) or ""
                if not line.message_id:
                    line.lost = "its invitation could not be handed to the SuperLink"
            self._sent += sum(count_bytes(message.content) for message in messages.values())
        _log.info("Session %s at %s: invited %s", self.id[:8], self._endpoint.address, ", ".join(clients))

    def _is_awaited(self, line: _Line, started: float) -> bool:
        """Whether the line's answer may still come; where not, its answer says why."""
        now, timeout_s = time.monotonic(), self._endpoint.timeout_s
        with self._changed:
            if line.answer is not None:
                return False
            if not line.lost and line.attached_at is None and now - line.invited_at > timeout_s:
                line.lost = f"it did not come to the session within {timeout_s:g} s"
            is_broken = line.attached_at is not None and line.stream is None
            if not line.lost and is_broken and now - line.detached_at > self._reconnect_s:
                line.lost = f"its stream broke off and did not come back within {self._reconnect_s:g} s"
            if line.lost:
                line.answer = Failure(line.lost)
            elif line.attached_at is not None and now - max(started, line.attached_at) > timeout_s:
                line.answer = Failure(f"no answer within {timeout_s:g} s")
            return line.answer is None

    def _collected(self, asked: list[_Line], started: float, before: tuple[int, int]) -> Answers:
        with self._changed:
            replies = {line.client: line.answer for line in asked if isinstance(line.answer, Reply)}
            failures = {line.client: line.answer for line in asked if isinstance(line.answer, Failure)}
            sent, received = self._sent - before[0], self._received - before[1]
        for client, reason in failures.items():
            _log.warning("Client %s did not take part in the exchange: %s", client, reason)
        return Answers(
            replies=replies,
            exchange=Exchange(
                failures=failures,
                bytes_sent=sent,
                bytes_received=received,
                seconds=time.monotonic() - started,
            ),
        )

    def _poll_flower(self) -> None:
        """Take in the Flower replies that have come: an account, or that the client's process has died."""
        waiting = {
            line.message_id: line
            for line in self._lines.values()
            if line.message_id and not line.has_returned
        }
        if not waiting or time.monotonic() - self._polled_at < _POLL_S:
            return
        self._polled_at = time.monotonic()
        for reply in self._grid.pull_messages(list(waiting)):
            line = waiting.get(reply.metadata.reply_to_message_id)
            if line is not None:
                with self._changed:
                    self._returned(line, reply)

    def _returned(self, line: _Line, reply: Message) -> None:
        line.has_returned = True
        if reply.has_error():
            line.lost = reply.error.reason or f"error code {reply.error.code}"
            return
        self._received += count_bytes(reply.content)
        try:
            failure = reported_failure(values_of(reply.content))
        except UpdateRefused as exc:
            failure = Failure(str(exc))
        self._accounts[line.client] = reply
        if failure is not None:
            line.lost = str(failure)
            if failure.is_final and line.answer is None:
                line.answer = failure
        else:
            line.lost = line.lost or "it left the session"

    def _hash(self, model: Vector) -> str:
        if self._model is None or self._model[0] is not model:
            self._model = (model, content_hash(model))
        return self._model[1]

    # --- what gRPC calls

    def Attend(  # noqa: N802 - the method's name in session.proto
        self, request_iterator: Iterator[pb.Frame], context: grpc.ServicerContext
    ) -> Iterator[pb.Frame]:
        """One client's stream, from its Hello to the End; see session.proto."""
        patience = threading.Timer(HELLO_S, context.cancel)
        patience.daemon = True
        patience.start()
        try:
            first = next(request_iterator)
        except (StopIteration, grpc.RpcError):
            return
        finally:
            patience.cancel()
        line, stream = self._admitted(first, context)
        if not context.add_callback(lambda: self._detach(line, stream)):
            self._detach(line, stream)
            return
        threading.Thread(
            target=self._read, args=(line, stream, request_iterator), name="session-reader", daemon=True
        ).start()
        yield from self._instructions(line, stream, context)

    def _admitted(self, first: pb.Frame, context: grpc.ServicerContext) -> tuple[_Line, _Stream]:
        hello = first.hello
        with self._changed:
            line = self._line_of(hello)
            if line is not None and hello.connection > line.connection and not self._is_over:
                line.connection = hello.connection
                line.stream = _Stream(Assembler(self._reply_limit_bytes))
                line.attached_at = line.attached_at or time.monotonic()
                line.lost = line.lost if line.has_returned else ""
                self._changed.notify_all()
                return line, line.stream
        if line is None:
            _log.warning("A stream from %s is refused: unknown session or wrong token.", context.peer())
            context.abort(
                grpc.StatusCode.UNAUTHENTICATED, "There is no such session, or the token is another's."
            )
        if self._is_over:
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "The session is over.")
        _log.warning("A second stream of client %s from %s is refused.", line.client, context.peer())
        context.abort(grpc.StatusCode.ALREADY_EXISTS, "This client has a newer stream already.")
        raise AssertionError("abort raises")

    def _line_of(self, hello: pb.Hello) -> _Line | None:
        if not hmac.compare_digest(hello.session_id.encode(), self.id.encode()):
            return None
        given = hello.token.encode()
        found = [line for line in self._lines.values() if hmac.compare_digest(line.token.encode(), given)]
        return found[0] if found else None

    def _read(self, line: _Line, stream: _Stream, incoming: Iterator[pb.Frame]) -> None:
        """Take in the client's frames until its stream ends."""
        try:
            for frame in incoming:
                parcel = stream.assembler.add(frame)
                with self._changed:
                    self._received += frame.ByteSize()
                    if parcel is not None and line.stream is stream:
                        self._take(line, parcel)
        except SessionError as exc:
            _log.warning("The stream of client %s is refused: %s", line.client, exc)
            with self._changed:
                stream.refusal = (grpc.StatusCode.INVALID_ARGUMENT, str(exc))
                line.lost = line.lost or f"it was refused: {exc}"
                self._changed.notify_all()
        except grpc.RpcError:
            pass  # the stream is over; `_detach` is told by gRPC

    def _take(self, line: _Line, parcel: Parcel) -> None:
        if parcel.exchange != self._number or line.answer is not None:
            _log.info("A late or repeated reply of client %s is ignored.", line.client)
            return
        line.answer = reply_of(parcel)
        line.instruction = None
        self._changed.notify_all()

    def _detach(self, line: _Line, stream: _Stream) -> None:
        with self._changed:
            if line.stream is stream:
                line.stream, line.detached_at = None, time.monotonic()
            self._changed.notify_all()

    def _instructions(
        self, line: _Line, stream: _Stream, context: grpc.ServicerContext
    ) -> Iterator[pb.Frame]:
        """The frames for one stream: every instruction that the line is given, then the End."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._next_move(line, stream))
                if stream.refusal is not None:
                    break
                if line.stream is not stream:
                    return
                parcel = None if self._is_over else line.instruction
            if parcel is None:
                yield pb.Frame(end=pb.End())
                return
            for frame in frames(parcel, stream.known):
                yield frame
                with self._changed:
                    self._sent += frame.ByteSize()
            stream.sent, stream.known = parcel.exchange, frozenset(parcel.hashes.values())
        context.abort(*stream.refusal)

    def _next_move(self, line: _Line, stream: _Stream) -> bool:
        has_work = line.instruction is not None and line.instruction.exchange > stream.sent
        return has_work or self._is_over or stream.refusal is not None or line.stream is not stream
