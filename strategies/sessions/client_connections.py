"""The clients' connections of a session: who may come, over which stream, what each owes and what it answered.

A stream may break and come back; the connection stays, and a message that is not answered is sent again over
the next stream. gRPC's threads and the server's own meet here, under one condition.
"""

import hmac
import math
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from logging import getLogger
from pathlib import Path

import grpc
from flwr.app import Message
from google.protobuf.message import DecodeError

from strategies.sessions import session_pb2 as pb
from strategies.sessions.endpoint import MAX_ARRIVING, MAX_CLIENTS, party_of
from strategies.sessions.framing import END, Assembler, Payload, frames, parsed
from strategies.waiting_places import WaitingPlaces
from unlearning.errors import VersionMismatch
from unlearning.protocol import check_protocol
from unlearning.untrusted import reason_of

_log = getLogger(__name__)

HELLO_S = 10.0
"""A stream without a Hello is closed after this time."""
CANNOT_KEEP = "the server cannot keep the answer"
END_S = 10.0
"""How long a client may take to read what is left, and the End."""
_WARN_AGAIN_S = 10.0


@dataclass(slots=True, eq=False)
class Stream:
    """One connection of a client.

    party: whose certificate or network it comes from; close: ends it, whatever it waits for.
    assembler: its limit is set for each frame. sent: the newest message that went over it; known: fingerprints of
    arrays that went with it.
    """

    party: str
    close: Callable[[], object]
    assembler: Assembler
    sent: int = 0
    known: frozenset[str] = frozenset()
    refusal: str = ""


@dataclass(slots=True, eq=False)
class ClientConnection:
    """One node's part in the session. Times are of the monotonic clock.

    has_returned: whether the Flower message that invited it was answered.
    number: counts what it was sent; asked, asked_at: the newest message until its answer was read, and its time.
    request: the same as it travels, until it is answered or not waited for any more.
    delivered: the number of the newest message that was handed to gRPC as a whole.
    attached_at: when its first stream came; detached_at: when its last one broke.
    lost: why it is not waited for any more; is_refused: because of what it sent; cannot_come: as it said itself.
    is_unable: it can take part in nothing. is_leaving: it answers nothing more; is_over: it is sent an End.
    """

    node_id: int
    token: str
    invited_at: float
    has_returned: bool = False
    connection: int = 0
    stream: Stream | None = None
    attached_at: float | None = None
    detached_at: float = 0.0
    number: int = 0
    asked: Message | None = None
    asked_at: float = 0.0
    request: Payload | None = None
    answer: Payload | None = None
    delivered: int = 0
    lost: str = ""
    is_refused: bool = False
    cannot_come: bool = False
    is_unable: bool = False
    is_leaving: bool = False
    is_over: bool = False

    def forget(self) -> None:
        """Hold neither the newest message nor its answer: both have models, and the next may be hours away."""
        self.asked = self.request = self.answer = None


class ClientConnections:
    """The connections of one session, and the gRPC service behind them. Hold `changed` to look at or change one.

    by_node: those that are open, by node id.
    reply_limit_bytes: how large an answer may be; set it before a message is sent.
    """

    def __init__(self, spool: Path | None = None) -> None:
        self._spool = spool
        self.session_id = secrets.token_hex(16)
        self.changed = threading.Condition()
        self.by_node: dict[int, ClientConnection] = {}
        self.num_answers = 0
        self.reply_limit_bytes = 0
        self.bytes_sent = self.bytes_received = 0
        self._arriving, self._ending = WaitingPlaces(MAX_ARRIVING), WaitingPlaces(MAX_CLIENTS)
        self._warned_at: dict[str, float] = {}

    def open(self, node_id: int) -> ClientConnection:
        """Return a connection for a node that will be invited, with a token of its own."""
        line = ClientConnection(node_id, secrets.token_urlsafe(32), invited_at=time.monotonic())
        with self.changed:
            self.by_node[node_id] = line
        return line

    def end(self, line: ClientConnection) -> None:
        """End a connection: its stream gets an End, and its token opens no other."""
        with self.changed:
            if line.stream is not None and not line.is_over:
                self._ending.enter(line.stream, END_S)
            line.is_over = True
            if self.by_node.get(line.node_id) is line:
                del self.by_node[line.node_id]
            self.changed.notify_all()

    def Attend(  # noqa: N802 - the method's name in session.proto
        self, request_iterator: Iterator[bytes], context: grpc.ServicerContext
    ) -> Iterator[bytes]:
        """Yield one client's stream, from its Hello to the End; see session.proto."""
        stream = Stream(party_of(context), context.cancel, Assembler(0, self._spool))
        self._arriving.enter(stream, HELLO_S)
        try:
            first = pb.Frame.FromString(next(request_iterator))
        except (StopIteration, grpc.RpcError, DecodeError):
            self._warn(stream, "A stream of %s ended before it said whose it is.", stream.party)
            return
        finally:
            self._arriving.leave(stream)
        line = self._admit(first.hello, stream, context)
        if not context.add_callback(lambda: self._detach(line, stream)):
            self._detach(line, stream)
            return
        threading.Thread(
            target=self._read, args=(line, stream, request_iterator), name="session-reader", daemon=True
        ).start()
        yield from self._requests(line, stream, context)

    def _admit(self, hello: pb.Hello, stream: Stream, context: grpc.ServicerContext) -> ClientConnection:
        """Return whose stream it is, in place of the stream that this client had.

        Ends the call where it is no client's.
        """
        with self.changed:
            line = self._line_of(hello)
        if line is not None:
            self._check_version(hello, line, context)
        with self.changed:
            if line is not None and hello.connection > line.connection:
                before, line.stream, line.connection = line.stream, stream, hello.connection
                line.attached_at = line.attached_at or time.monotonic()
                line.lost = line.lost if line.has_returned else ""
                self.changed.notify_all()
                if before is not None:
                    before.close()  # it may wait for a client that reads nothing
                return line
        if line is None:
            self._warn(stream, "A stream from %s is refused: unknown session or wrong token.", context.peer())
            context.abort(
                grpc.StatusCode.UNAUTHENTICATED, "There is no such session, or the token is another's."
            )
        self._warn(stream, "A second stream of node %s from %s is refused.", line.node_id, context.peer())
        context.abort(grpc.StatusCode.ALREADY_EXISTS, "This client has a newer stream already.")
        raise AssertionError("abort raises")

    def _warn(self, stream: Stream, text: str, *values: object) -> None:
        """Log a warning, but not for each stream that one party opens."""
        now = time.monotonic()
        if now - self._warned_at.get(stream.party, -math.inf) >= _WARN_AGAIN_S:
            self._warned_at[stream.party] = now
            _log.warning(text, *values)

    def _check_version(self, hello: pb.Hello, line: ClientConnection, context: grpc.ServicerContext) -> None:
        try:
            check_protocol(hello.protocol_version, other="the site", own="the server")
        except VersionMismatch as exc:
            with self.changed:
                line.lost, line.is_unable = str(exc), True
                self.changed.notify_all()
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(exc))

    def _line_of(self, hello: pb.Hello) -> ClientConnection | None:
        if not hmac.compare_digest(hello.session_id.encode(), self.session_id.encode()):
            return None
        given = hello.token.encode()
        # What is given may be long; a comparison takes as long as its second argument.
        found = [line for line in self.by_node.values() if hmac.compare_digest(given, line.token.encode())]
        return found[0] if found else None

    def _read(self, line: ClientConnection, stream: Stream, incoming: Iterator[bytes]) -> None:
        """Take in the client's frames until its stream ends."""
        try:
            for received in incoming:
                self._take_frame(line, stream, received)
                del received  # a client may say nothing for hours
        except grpc.RpcError:
            pass  # the stream has ended; gRPC calls `_detach`
        except OSError as exc:
            self._end_reading(line, stream, f"{CANNOT_KEEP}: {exc}", is_refused=False)
        except Exception as exc:  # noqa: BLE001 - the frames are the client's, and so is what they lead to
            self._end_reading(line, stream, reason_of(exc), is_refused=True)

    def _take_frame(self, line: ClientConnection, stream: Stream, received: bytes) -> None:
        frame = parsed(received)
        is_end = isinstance(frame, pb.Frame) and frame.HasField("end")
        stream.assembler.limit_bytes = self.reply_limit_bytes
        payload = None if is_end else stream.assembler.add(frame)
        with self.changed:
            self.bytes_received += len(received)
            if is_end and line.stream is stream:
                line.is_leaving = True
                self.changed.notify_all()
            elif payload is not None and line.stream is stream:
                self._take(line, payload)

    def _end_reading(self, line: ClientConnection, stream: Stream, reason: str, *, is_refused: bool) -> None:
        """End a stream, because of what came over it or because it has no room here."""
        self._warn(stream, "The stream of node %s is refused: %s", line.node_id, reason)
        with self.changed:
            stream.refusal = reason
            line.lost = line.lost or (f"it was refused: {reason}" if is_refused else reason)
            line.is_refused = is_refused
            self.changed.notify_all()

    def _take(self, line: ClientConnection, payload: Payload) -> None:
        if payload.exchange != line.number or line.request is None:
            _log.debug("A late or repeated answer of node %s is ignored.", line.node_id)
            return
        line.answer, line.request = payload, None
        self.num_answers += 1
        self.changed.notify_all()

    def _detach(self, line: ClientConnection, stream: Stream) -> None:
        with self.changed:
            if line.stream is stream:
                line.stream, line.detached_at = None, time.monotonic()
            self.changed.notify_all()
        self._ending.leave(stream)

    def _requests(
        self, line: ClientConnection, stream: Stream, context: grpc.ServicerContext
    ) -> Iterator[bytes]:
        """Yield the frames for one stream: every message that the client is sent, then the End."""
        while True:
            with self.changed:
                self.changed.wait_for(lambda: _has_next(line, stream))
                if stream.refusal:
                    break
                if line.stream is not stream:
                    return
                payload = None if line.is_over or line.is_leaving else line.request
            if payload is None:
                yield END
                return
            for frame in frames(payload, stream.known):
                yield frame
                with self.changed:
                    self.bytes_sent += len(frame)
            stream.sent, stream.known = payload.exchange, frozenset(payload.fingerprints.values())
            line.delivered = payload.exchange
            del payload, frame  # the model, until this client is asked again
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, stream.refusal)


def _has_next(line: ClientConnection, stream: Stream) -> bool:
    has_work = line.request is not None and line.request.exchange > stream.sent
    has_ended = line.is_over or line.is_leaving or bool(stream.refusal)
    return has_work or has_ended or line.stream is not stream
