"""Payloads between machines: each peer is a gRPC server, and a client of its neighbours.

Beyond one's own machine there is only mutual TLS, and a peer's certificate names it: its common name is the peer's id,
so nobody sends in another's name, and who is no member is sent away before anything is read. On loopback (tests,
trials) plain text is allowed, and everybody is believed. Whatever goes wrong with a payload is a refusal of that
payload, recorded, and the process lives.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import grpc

from client.peer import peer_pb2 as pb
from client.peer.call_admission import Call, CallAdmission, NotAdmitted, TooManyCalls, certified_name
from client.peer.gossip import GossipMessage, Greeting, ModelOffer, Payload, item_from, item_values
from client.peer.peer_pb2_grpc import (
    PeerServiceServicer,
    PeerServiceStub,
    add_PeerServiceServicer_to_server,
)
from client.peer.refusals import Refusals
from strategies.sessions import framing
from strategies.sessions.endpoint import Endpoint, open_channel
from strategies.sessions.framing import Assembler
from strategies.tls_files import TlsFiles
from unlearning.errors import DeploymentError, SessionError, VersionMismatch
from unlearning.parameters import Vector
from unlearning.protocol import PROTOCOL, check_protocol, stamped

MAX_TEXT_BYTES = 2**20
"""What a payload may be beside its array: the ids of some ten thousand corrections."""

Handling = Callable[[str, Payload], frozenset[str]]
"""Takes a payload from the peer of that name; the ids that it knows, for a greeting."""

_REFUSED = frozenset({grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.UNIMPLEMENTED})


class PayloadRefused(SessionError):
    """A payload that the neighbour will not take, now or later."""


class WrongName(SessionError):
    """A payload says that it is another's than the certificate's."""


def frames_of(payload: Payload, sender: str) -> Iterator[Any]:
    """Return the payload as it travels."""
    arrays: dict[str, Vector] = {}
    match payload:
        case Greeting():
            values: dict[str, Any] = {"payload": "greeting", "is_new": payload.is_new}
        case GossipMessage():
            values = {"payload": "item", "item": item_values(payload)}
            if payload.vector is not None:
                arrays["vector"] = payload.vector
        case ModelOffer():
            values = {"payload": "offer", "round": payload.round, "applied": sorted(payload.applied)}
            arrays["vector"] = payload.vector
    said = stamped({**values, "sender": sender})
    return framing.frames(framing.Payload(exchange=1, values=said, arrays=arrays))


def payload_of(received: framing.Payload) -> tuple[str, Payload]:
    """Return sender and payload.

    Raises:
        SessionError: it is malformed.
        VersionMismatch: the sender is of another version.
    """
    check_protocol(received.values.get(PROTOCOL), other="the sending peer", own="the receiving peer")
    values, vector = received.values, received.arrays.get("vector")
    try:
        sender, kind = str(values["sender"]), values["payload"]
        if kind == "greeting":
            return sender, Greeting(sender, is_new=bool(values["is_new"]))
        if kind == "item":
            return sender, item_from(values["item"], vector)
        if kind == "offer" and vector is not None:
            applied = frozenset(map(str, values["applied"]))
            return sender, ModelOffer(
                sender=sender, round=int(values["round"]), vector=vector, applied=applied
            )
    except (KeyError, TypeError, ValueError) as exc:
        raise SessionError(f"Malformed payload: {exc}.") from exc
    raise SessionError(f"There is no payload of the kind {str(kind)[:40]!r}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reception:
    """The handling of calls by a peer's server.

    handle: takes a payload. admits: whether the peer of a name is, or may become, a member; asked where there are
    certificates. refusals: where what is refused is recorded. max_numbers: in the largest vector that may come.
    """

    handle: Handling
    admits: Callable[[str], bool]
    refusals: Refusals
    max_numbers: int
    timeout_s: float

    @property
    def limit_bytes(self) -> int:
        """Of one payload."""
        return 8 * self.max_numbers + MAX_TEXT_BYTES


class PeerServer(PeerServiceServicer):
    """A server at `bind` that passes every payload on.

    Raises:
        DeploymentError: the address is taken, or open to other machines without TLS.
        ConfigurationError: a TLS file cannot be read.
    """

    def __init__(self, bind: str, tls: TlsFiles | None, reception: Reception) -> None:
        self._reception, self._is_certified = reception, tls is not None
        endpoint = Endpoint(address=bind, bind=bind, timeout_s=reception.timeout_s, tls=tls)
        try:
            self._server = endpoint.listen()
        except SessionError as exc:
            raise DeploymentError(
                f"Cannot listen at {bind}: the port is taken, or other machines can reach it and there is no "
                "tls section in the configuration. Choose another port, give certificates, or listen at 127.0.0.1."
            ) from exc
        self._admission = CallAdmission(reception.admits, call_s=reception.timeout_s)
        add_PeerServiceServicer_to_server(self, self._server)  # type: ignore[no-untyped-call]
        self._server.start()

    def Deliver(  # noqa: N802 (the name in peer.proto)
        self, request_iterator: Iterator[Any], context: grpc.ServicerContext
    ) -> pb.Receipt:
        """Take one payload."""
        name = certified_name(context) if self._is_certified else None
        try:
            with self._admission.call(name, context.cancel) as call:
                return pb.Receipt(known=sorted(self._take(request_iterator, call)))
        except grpc.RpcError:
            raise  # the caller has gone, or was cut off
        except Exception as exc:  # noqa: BLE001 - a foreign payload may cause any, and the process lives
            refused = exc
        unknown = "(no certificate)" if name is None else name
        context.abort(_code(refused), self._reception.refusals.add(unknown, refused))
        raise AssertionError("abort raises")

    def _take(self, frames: Iterator[Any], call: Call) -> frozenset[str]:
        """Read one payload and pass it on; return the ids that are known here, for a greeting."""
        assembler, received = Assembler(self._reception.limit_bytes), None
        for frame in frames:
            call.note_activity()
            if received is not None:
                raise SessionError("A call carries one payload, and more came.")
            received = assembler.add(frame)
        if received is None:
            raise SessionError("The call ended in the middle of a payload.")
        sender, payload = payload_of(received)
        if call.name is not None and call.name != sender:
            raise WrongName(
                f"The certificate is not that of peer {sender!r:.60}: its common name must be the peer's id."
            )
        return self._reception.handle(sender, payload)

    def stop(self) -> None:
        """Take no more payloads; those at hand are finished."""
        self._admission.close()
        self._server.stop(grace=2.0).wait()


class PeerConnection:
    """A connection to the peer at `address`.

    Raises:
        SessionError: the address is on another machine and there is no TLS.
        ConfigurationError: a TLS file cannot be read.
    """

    def __init__(self, name: str, address: str, tls: TlsFiles | None, timeout_s: float) -> None:
        self._name, self._timeout_s = name, timeout_s
        self._channel = open_channel(address, tls)
        self._stub: Any = PeerServiceStub(self._channel)  # type: ignore[no-untyped-call]  # generated

    def send(self, payload: Payload) -> frozenset[str]:
        """Deliver a payload; return, for a greeting, the ids that the other side has.

        Raises:
            PayloadRefused: the other side will not take it.
            VersionMismatch: the other side is of another version.
            SessionError: it did not arrive, or no confirmation came.
        """
        try:
            receipt = self._stub.Deliver(frames_of(payload, self._name), timeout=self._timeout_s)
        except grpc.RpcError as exc:
            code = exc.code() if isinstance(exc, grpc.Call) else None
            reason = str(exc.details() if isinstance(exc, grpc.Call) else exc)
            if code is grpc.StatusCode.FAILED_PRECONDITION:
                raise VersionMismatch(reason) from exc
            if code in _REFUSED:
                raise PayloadRefused(reason) from exc
            raise SessionError(reason) from exc
        return frozenset(receipt.known)

    def __enter__(self) -> "PeerConnection":
        return self

    def __exit__(self, *_error: object) -> None:
        self._channel.close()


def _code(error: Exception) -> grpc.StatusCode:
    """Return what the caller is told: whether to come again (the first four) or not."""
    match error:
        case NotAdmitted():
            return grpc.StatusCode.PERMISSION_DENIED
        case VersionMismatch():  # after its upgrade it is admitted
            return grpc.StatusCode.FAILED_PRECONDITION
        case TooManyCalls():
            return grpc.StatusCode.RESOURCE_EXHAUSTED
        case OSError() | MemoryError():  # this peer's own trouble
            return grpc.StatusCode.UNAVAILABLE
        case WrongName():
            return grpc.StatusCode.UNAUTHENTICATED
    return grpc.StatusCode.INVALID_ARGUMENT
