"""The client half of a session: connect, answer messages until the End, connect again if the stream breaks.

Messages are answered one after the other. While one is computed nothing is read, so gRPC's flow control holds the
server back. A message that comes again, because the stream broke before its answer arrived, is answered from memory.
"""

import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from logging import getLogger
from pathlib import Path
from typing import Any, TypeAlias

import grpc
from flwr.app import Message, RecordDict

from strategies.messages import with_values
from strategies.sessions import session_pb2 as pb
from strategies.sessions.endpoint import attend, open_channel
from strategies.sessions.framing import END, MAX_INSTRUCTION_BYTES, Assembler, Payload, frames, parsed
from strategies.sessions.payloads import (
    ACCOUNT,
    Invitation,
    SessionStatistics,
    answer_payload,
    told_message,
)
from strategies.tls_files import TlsFiles
from unlearning.errors import SessionError
from unlearning.protocol import own_version
from unlearning.runtime.growing_pause import GrowingPause
from unlearning.runtime.json_codec import to_plain

_log = getLogger(__name__)

RECONNECT_S = 30.0
_PAUSE = GrowingPause(first_s=0.5, longest_s=4.0)
_FINAL = frozenset(
    {
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.ALREADY_EXISTS,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.UNIMPLEMENTED,
    }
)
"""Refusals; everything else may be the network, or a server that has no place now, and the client tries again."""

Answering = Callable[[Message], RecordDict]
"""The answer to a message."""
_Outgoing: TypeAlias = "queue.SimpleQueue[Iterable[bytes] | None]"


def run_client_session(
    invitation: Invitation,
    answer: Answering,
    node_id: int,
    *,
    is_over: Callable[[], bool] = lambda: False,
    tls: TlsFiles | None = None,
    reconnect_s: float = RECONNECT_S,
    spool: Path | None = None,
) -> SessionStatistics:
    """Answer the session's messages until its End.

    spool: where large arrays that arrive are held in files; without it they are in memory.
    node_id: whom they are for. is_over: whether to leave, asked after each answer.
    reconnect_s: how long to try to connect, at first and after the stream broke.

    Raises:
        SessionError: refused, or the server cannot be reached for `reconnect_s`, or it asked nothing for
            three times its own deadline.
        ConfigurationError: a TLS file cannot be read.
    """
    with open_channel(invitation.address, tls) as channel:
        session = _ClientSession(channel, invitation, answer, node_id, is_over, reconnect_s, spool)
        session.run()
    return session.account


class _ClientSession:
    """One client's stay in a session, over as many connections as it takes.

    gRPC's sending thread takes frames when the network has room for one, so an answer is never copied as a whole.
    """

    def __init__(
        self,
        channel: grpc.Channel,
        invitation: Invitation,
        answer: Answering,
        node_id: int,
        is_over: Callable[[], bool],
        reconnect_s: float,
        spool: Path | None,
    ) -> None:
        self._attend = attend(channel)
        self._invitation = invitation
        self._answer = answer
        self._node_id = node_id
        self._is_over = is_over
        self._reconnect_s = reconnect_s
        self._spool = spool
        self._idle_s = 3 * invitation.timeout_s
        self._started = self._contact_at = time.monotonic()
        self._last: Payload | None = None
        self._has_ended = self._is_leaving = False
        self._connections = self._instructions = self._bytes_sent = self._bytes_received = 0
        self._seconds_computing = 0.0

    @property
    def account(self) -> SessionStatistics:
        """What the client has done so far."""
        return SessionStatistics(
            instructions=self._instructions,
            seconds_computing=self._seconds_computing,
            seconds=time.monotonic() - self._started,
            bytes_sent=self._bytes_sent,
            bytes_received=self._bytes_received,
            connections=self._connections,
        )

    def run(self) -> None:
        """Connect until the End has come."""
        said, failures = "", 0
        while True:
            contact_at = self._contact_at
            reason = self._connect_once()
            if reason is None:
                return
            if reason != said:
                _log.warning("No stream to %s: %s; trying again.", self._invitation.address, reason)
                said = reason
            if time.monotonic() - self._contact_at > self._reconnect_s:
                raise SessionError(
                    f"The session at {self._invitation.address} cannot be reached for {self._reconnect_s:g} s: "
                    f"{reason}. Check session-address, the firewall and the certificates.",
                    code="unreachable",
                )
            failures = failures + 1 if self._contact_at == contact_at else 1
            time.sleep(_PAUSE.after(failures))

    def _connect_once(self) -> str | None:
        """Serve one connection; return None when the End has come, else why it broke.

        Raises:
            SessionError: the server refuses this client, or does not ask anything any more.
        """
        self._connections += 1
        received = self._bytes_received
        outgoing: _Outgoing = queue.SimpleQueue()
        hello = pb.Hello(
            session_id=self._invitation.session_id,
            token=self._invitation.token,
            connection=self._connections,
            protocol_version=own_version(),
        )
        call = self._attend(self._sent(hello, outgoing))
        is_idle = threading.Event()
        try:
            self._converse(call, outgoing, is_idle)
        except grpc.RpcError as exc:
            if is_idle.is_set():
                raise SessionError(f"The server asked nothing for {self._idle_s:g} s.", code="idle") from exc
            code = exc.code() if isinstance(exc, grpc.Call) else None
            reason = exc.details() if isinstance(exc, grpc.Call) else str(exc)
            is_too_large = code is grpc.StatusCode.RESOURCE_EXHAUSTED and self._bytes_received > received
            if code in _FINAL or is_too_large:
                raise SessionError(
                    f"The session's server refuses this client: {reason}", code="refused"
                ) from exc
            return str(reason)
        finally:
            call.cancel()
            outgoing.put(None)
        return None if self._has_ended else "the server closed the stream"

    def _sent(self, hello: pb.Hello, outgoing: "_Outgoing") -> Iterator[bytes]:
        """Yield the Hello, and the frames of what is put into `outgoing`, until that is None."""
        yield pb.Frame(hello=hello).SerializeToString()
        while (part := outgoing.get()) is not None:
            for frame in part:
                yield frame
                self._bytes_sent += len(frame)
                self._contact_at = time.monotonic()

    def _converse(self, call: Any, outgoing: "_Outgoing", is_idle: threading.Event) -> None:
        """Answer what comes over one stream."""
        assembler = Assembler(MAX_INSTRUCTION_BYTES, self._spool)
        while (payload := self._next_payload(call, assembler, is_idle)) is not None:
            if self._is_leaving:  # it came while this client said that it leaves
                continue
            outgoing.put(frames(self._reply(payload)))
            del payload  # the model that came, until the next one is here
            self._contact_at = time.monotonic()
            if self._is_over():
                self._is_leaving = True
                outgoing.put([END])

    def _next_payload(self, call: Any, assembler: Assembler, is_idle: threading.Event) -> Payload | None:
        """Return the next message; None when the stream ended, with or without an End."""

        def leave() -> None:
            is_idle.set()
            call.cancel()

        patience = threading.Timer(self._idle_s, leave)
        patience.daemon = True
        patience.start()
        try:
            for received in call:
                self._contact_at = time.monotonic()
                self._bytes_received += len(received)
                frame = parsed(received)
                if isinstance(frame, pb.Frame) and frame.HasField("end"):
                    self._has_ended = True
                    return None
                try:
                    payload = assembler.add(frame)
                except OSError as exc:
                    raise _disk_full(exc) from exc
                if payload is not None:
                    return payload
        finally:
            patience.cancel()
        return None

    def _reply(self, payload: Payload) -> Payload:
        if self._last is not None and self._last.exchange == payload.exchange:
            return self._last
        started = time.monotonic()
        try:
            message = told_message(payload, self._node_id, self._spool)
        except OSError as exc:
            raise _disk_full(exc) from exc
        content = self._answer(message)
        self._instructions += 1
        self._seconds_computing += time.monotonic() - started
        told = with_values(content, {ACCOUNT: to_plain(self.account)})
        self._last = answer_payload(payload, message.content, told)
        return self._last


def _disk_full(error: OSError) -> SessionError:
    return SessionError(
        f"This site cannot keep the model that arrives: {error}. Make room in its state-dir.",
        code="disk-full",
    )
