"""The clients' lines to a session: who may come, over which stream, what each owes and what it answered.

A stream may break and come back; the line lives as long as the session, and an instruction that is not answered
is sent again over the next stream. gRPC's threads and the session's own meet here, under one condition.
"""

import hmac
import secrets
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from logging import getLogger

import grpc

from strategies.exchange import Failure
from strategies.sessions import session_pb2 as pb
from strategies.sessions.framing import Assembler, Payload, frames
from strategies.sessions.payloads import reply_of
from unlearning.methods.method import Reply
from unlearning.untrusted import reason_of

_log = getLogger(__name__)

HELLO_S = 10.0
"""A stream that says nothing for so long is closed."""


@dataclass(slots=True, eq=False)
class Stream:
    """One connection of a client.

    sent: the newest exchange whose instruction went over it; known: hashes of arrays that went with it.
    """

    assembler: Assembler
    sent: int = 0
    known: frozenset[str] = frozenset()
    refusal: str = ""


@dataclass(slots=True, eq=False)
class ClientConnection:
    """One client's part in the session. Times are of the monotonic clock.

    connection: the number of its newest stream; instruction: what it has not answered yet.
    lost: why it is not waited for any more; is_refused: because of what it sent.
    has_returned: whether its Flower message was answered.
    """

    client: str
    token: str
    invited_at: float
    message_id: str = ""
    connection: int = 0
    stream: Stream | None = None
    attached_at: float | None = None
    detached_at: float = 0.0
    instruction: Payload | None = None
    answer: Reply | Failure | None = None
    lost: str = ""
    has_returned: bool = False
    is_refused: bool = False


class ClientConnections:
    """The lines of one session, and the gRPC service behind them. Hold `changed` to look at or change a line.

    reply_limit_bytes: how large a reply may be; set it before clients are invited.
    """

    def __init__(self) -> None:
        self.session_id = secrets.token_hex(16)
        self.changed = threading.Condition()
        self.by_client: dict[str, ClientConnection] = {}
        self.number = 0
        self.is_over = False
        self.reply_limit_bytes = 0
        self.bytes_sent = self.bytes_received = 0

    def open(self, client: str) -> ClientConnection:
        """Return a line for a client that will be invited, with a token of its own."""
        line = ClientConnection(client, secrets.token_urlsafe(32), invited_at=time.monotonic())
        with self.changed:
            self.by_client[client] = line
        return line

    def next_exchange(self) -> int:
        """Begin an exchange: what was asked and answered before is gone. Gives its number."""
        with self.changed:
            self.number += 1
            for line in self.by_client.values():
                line.answer = line.instruction = None
            return self.number

    def end(self) -> None:
        """End the session: every stream gets an End."""
        with self.changed:
            self.is_over = True
            self.changed.notify_all()

    def Attend(  # noqa: N802 - the method's name in session.proto
        self, request_iterator: Iterator[pb.Frame], context: grpc.ServicerContext
    ) -> Iterator[pb.Frame]:
        """Yield one client's stream, from its Hello to the End; see session.proto."""
        patience = threading.Timer(HELLO_S, context.cancel)
        patience.daemon = True
        patience.start()
        try:
            first = next(request_iterator)
        except (StopIteration, grpc.RpcError):
            return
        finally:
            patience.cancel()
        line, stream = self._admit(first, context)
        if not context.add_callback(lambda: self._detach(line, stream)):
            self._detach(line, stream)
            return
        threading.Thread(
            target=self._read, args=(line, stream, request_iterator), name="session-reader", daemon=True
        ).start()
        yield from self._instructions(line, stream, context)

    def _admit(self, first: pb.Frame, context: grpc.ServicerContext) -> tuple[ClientConnection, Stream]:
        hello = first.hello
        with self.changed:
            line = self._line_of(hello)
            if line is not None and hello.connection > line.connection and not self.is_over:
                line.connection = hello.connection
                line.stream = Stream(Assembler(self.reply_limit_bytes))
                line.attached_at = line.attached_at or time.monotonic()
                line.lost = line.lost if line.has_returned else ""
                self.changed.notify_all()
                return line, line.stream
        if line is None:
            _log.warning("A stream from %s is refused: unknown session or wrong token.", context.peer())
            context.abort(
                grpc.StatusCode.UNAUTHENTICATED, "There is no such session, or the token is another's."
            )
        if self.is_over:
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "The session is over.")
        _log.warning("A second stream of client %s from %s is refused.", line.client, context.peer())
        context.abort(grpc.StatusCode.ALREADY_EXISTS, "This client has a newer stream already.")
        raise AssertionError("abort raises")

    def _line_of(self, hello: pb.Hello) -> ClientConnection | None:
        if not hmac.compare_digest(hello.session_id.encode(), self.session_id.encode()):
            return None
        given = hello.token.encode()
        found = [line for line in self.by_client.values() if hmac.compare_digest(line.token.encode(), given)]
        return found[0] if found else None

    def _read(self, line: ClientConnection, stream: Stream, incoming: Iterator[pb.Frame]) -> None:
        """Take in the client's frames until its stream ends."""
        try:
            for frame in incoming:
                payload = stream.assembler.add(frame)
                with self.changed:
                    self.bytes_received += frame.ByteSize()
                    if payload is not None and line.stream is stream:
                        self._take(line, payload)
        except grpc.RpcError:
            pass  # the stream is over; `_detach` is told by gRPC
        except Exception as exc:  # noqa: BLE001 - the frames are the client's, and so is what they lead to
            reason = reason_of(exc)
            _log.warning("The stream of client %s is refused: %s", line.client, reason)
            with self.changed:
                stream.refusal = reason
                line.lost = line.lost or f"it was refused: {reason}"
                line.is_refused = True
                self.changed.notify_all()

    def _take(self, line: ClientConnection, payload: Payload) -> None:
        if payload.exchange != self.number or line.answer is not None:
            _log.info("A late or repeated reply of client %s is ignored.", line.client)
            return
        line.answer = reply_of(line.client, payload)
        line.instruction = None
        self.changed.notify_all()

    def _detach(self, line: ClientConnection, stream: Stream) -> None:
        with self.changed:
            if line.stream is stream:
                line.stream, line.detached_at = None, time.monotonic()
            self.changed.notify_all()

    def _instructions(
        self, line: ClientConnection, stream: Stream, context: grpc.ServicerContext
    ) -> Iterator[pb.Frame]:
        """Yield the frames for one stream: every instruction that the line is given, then the End."""
        while True:
            with self.changed:
                self.changed.wait_for(lambda: self._next_move(line, stream))
                if stream.refusal:
                    break
                if line.stream is not stream:
                    return
                payload = None if self.is_over else line.instruction
            if payload is None:
                yield pb.Frame(end=pb.End())
                return
            for frame in frames(payload, stream.known):
                yield frame
                with self.changed:
                    self.bytes_sent += frame.ByteSize()
            stream.sent, stream.known = payload.exchange, frozenset(payload.hashes.values())
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, stream.refusal)

    def _next_move(self, line: ClientConnection, stream: Stream) -> bool:
        has_work = line.instruction is not None and line.instruction.exchange > stream.sent
        return has_work or self.is_over or bool(stream.refusal) or line.stream is not stream
