"""Payloads between machines: each peer is a gRPC server, and a client of its neighbours.

Beyond one's own machine there is only mutual TLS, and a peer's certificate names it: its common name is the peer's id,
so no peer sends in another's name, and a caller that is no member is sent away before anything is read. On loopback
(tests, trials) plain text is allowed, and every caller is believed. Whatever goes wrong with a payload is a refusal of
that payload, recorded, and the process lives.

A member has a few places for calls, so that no peer takes another's; where there are no certificates, or too many
members call at once, the oldest call makes room for a new one. A call that lasts too long is ended.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from logging import getLogger
from typing import Any

import grpc
from cryptography import x509

from client.peer import peer_pb2 as pb
from client.peer.gossip import GossipMessage, Greeting, ModelOffer, Payload
from client.peer.journal import Refusals
from client.peer.peer_pb2_grpc import (
    PeerServiceServicer,
    PeerServiceStub,
    add_PeerServiceServicer_to_server,
)
from client.peer.signatures import common_name
from strategies.sessions import framing
from strategies.sessions.endpoint import Endpoint, open_channel
from strategies.sessions.framing import Assembler
from strategies.sessions.session_pb2 import Frame as SessionFrame
from strategies.tls_files import TlsFiles
from strategies.waiting_places import WaitingPlaces
from unlearning.errors import DeploymentError, SessionError, VersionMismatch
from unlearning.parameters import Vector
from unlearning.protocol import PROTOCOL, check_protocol, stamped
from unlearning.runtime.json_codec import from_plain, to_plain

_log = getLogger(__name__)

MAX_TEXT_BYTES = 2**20
"""What a payload may be beside its array: the ids of some ten thousand corrections."""
CALLS_PER_PEER = 4
"""A link sends one payload after the other; the rest is for calls that the other side has abandoned."""
MAX_CALLS = 500
"""Of all peers together; each holds a thread."""

_STATUS = {
    "not-admitted": grpc.StatusCode.PERMISSION_DENIED,
    "too-many-calls": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "wrong-name": grpc.StatusCode.UNAUTHENTICATED,
}
"""By the code of the error: the caller may come again. Every other error is the payload's own."""
_REFUSED = frozenset({grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.UNIMPLEMENTED})

Handling = Callable[[str, Payload], frozenset[str]]
"""Takes a payload from the peer of that name; returns the ids that it knows, for a greeting."""


class PayloadRefused(SessionError):
    """A payload that the neighbour will not take, now or later."""


def frames_of(payload: Payload, sender: str) -> Iterator[Any]:
    """Return the payload as it travels."""
    arrays: dict[str, Vector] = {}
    match payload:
        case Greeting():
            values: dict[str, Any] = {"payload": "greeting", "is_new": payload.is_new}
        case GossipMessage():
            values = {"payload": "item", "item": to_plain(replace(payload, vector=None))}
            if payload.vector is not None:
                arrays["vector"] = payload.vector
        case ModelOffer():
            values = {"payload": "offer", "round": payload.round, "applied": sorted(payload.applied)}
            arrays["vector"] = payload.vector
    said = stamped({**values, "sender": sender})
    return map(
        SessionFrame.FromString, framing.frames(framing.Payload(exchange=1, values=said, arrays=arrays))
    )


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
            return sender, replace(from_plain(GossipMessage, values["item"]), vector=vector)
        if kind == "offer" and vector is not None:
            applied = frozenset(map(str, values["applied"]))
            return sender, ModelOffer(
                sender=sender, round=int(values["round"]), vector=vector, applied=applied
            )
    except (KeyError, TypeError, ValueError) as exc:
        raise SessionError(f"Malformed payload: {exc!s:.200}.") from exc
    raise SessionError(f"There is no payload of the kind {str(kind)[:40]!r}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reception:
    """The handling of calls by a peer's server.

    handle: takes a payload. admits: whether the peer of a name is, or may become, a member; asked where there are
    certificates. refusals: where refused payloads are recorded. max_numbers: in the largest vector that may come.
    timeout_s: of one call.
    """

    handle: Handling
    admits: Callable[[str], bool]
    refusals: Refusals
    max_numbers: int
    timeout_s: float


@dataclass(frozen=True, slots=True, eq=False)
class _Call:
    """A call. party: the name in the caller's certificate, empty where there are no certificates."""

    party: str
    close: Callable[[], object]


class PeerService(PeerServiceServicer):
    """The gRPC service that passes every payload on; `PeerServer` runs it at an address."""

    def __init__(self, reception: Reception, *, is_certified: bool) -> None:
        self._reception, self._is_certified = reception, is_certified
        self._places = WaitingPlaces(MAX_CALLS, per_party=CALLS_PER_PEER if is_certified else None)

    def Deliver(  # noqa: N802 (the name in peer.proto)
        self, request_iterator: Iterator[Any], context: grpc.ServicerContext
    ) -> pb.Receipt:
        """Take one payload."""
        call = _Call(_certified_name(context) if self._is_certified else "", context.cancel)
        try:
            self._admit(call)
            return pb.Receipt(known=sorted(self._take(request_iterator, call)))
        except grpc.RpcError:
            raise  # the caller has gone, or was cut off
        except (OSError, MemoryError) as exc:  # this peer's own trouble: the payload comes again
            _log.error("A payload cannot be taken now: %s", exc)
            status, reason = grpc.StatusCode.UNAVAILABLE, "This peer cannot take it now. Send it again."
        except Exception as exc:  # noqa: BLE001 - a foreign payload may cause any, and the process lives
            reason = self._reception.refusals.add(call.party or "(no certificate)", exc)
            status = _status(exc)
        finally:
            self._places.leave(call)
        context.abort(status, reason)
        raise AssertionError("abort raises")

    def _admit(self, call: _Call) -> None:
        """Give the call a place, before anything is read.

        Raises:
            SessionError: the caller is no member, or has too many calls open.
        """
        name = call.party
        if self._is_certified and not self._reception.admits(name):
            raise SessionError(
                f"Peer {name!r:.60} is no member of this federation. If it shall join, list it under `members`.",
                code="not-admitted",
            )
        if not self._places.enter(call, self._reception.timeout_s):
            raise SessionError(
                f"Peer {name!r:.60} has {CALLS_PER_PEER} calls open already.", code="too-many-calls"
            )

    def _take(self, frames: Iterator[Any], call: _Call) -> frozenset[str]:
        """Read one payload and pass it on; return the ids that are known here, for a greeting."""
        assembler, received = Assembler(8 * self._reception.max_numbers + MAX_TEXT_BYTES), None
        for frame in frames:
            if received is not None:
                raise SessionError("A call carries one payload, and more came.")
            received = assembler.add(frame)
        if received is None:
            raise SessionError("The call ended in the middle of a payload.")
        sender, payload = payload_of(received)
        if self._is_certified and call.party != sender:
            raise SessionError(
                f"The certificate is not that of peer {sender!r:.60}: its common name must be the peer's id.",
                code="wrong-name",
            )
        return self._reception.handle(sender, payload)


class PeerServer:
    """A server at `bind`.

    Raises:
        DeploymentError: the address is taken or none of this machine's, or open to other machines without TLS.
        ConfigurationError: a TLS file cannot be read.
    """

    def __init__(self, bind: str, tls: TlsFiles | None, reception: Reception) -> None:
        endpoint = Endpoint(address=bind, bind=bind, timeout_s=reception.timeout_s, tls=tls)
        try:
            self._server = endpoint.listen()
        except SessionError as exc:
            raise DeploymentError(
                f"Cannot listen at {bind}: the port is taken, the address is none of this machine's, or other machines "
                "can reach it and there is no tls section in the configuration. Choose another address, give "
                "certificates, or listen at 127.0.0.1."
            ) from exc
        service = PeerService(reception, is_certified=tls is not None)
        add_PeerServiceServicer_to_server(service, self._server)  # type: ignore[no-untyped-call]
        self._server.start()

    def stop(self) -> None:
        """Take no more payloads; those at hand are finished."""
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
            SessionError: it did not arrive, or no confirmation came; its code is the name of gRPC's status.
        """
        try:
            receipt = self._stub.Deliver(frames_of(payload, self._name), timeout=self._timeout_s)
        except grpc.RpcError as exc:
            code = exc.code() if isinstance(exc, grpc.Call) else grpc.StatusCode.UNKNOWN
            reason = str(exc.details() if isinstance(exc, grpc.Call) else exc)
            if code is grpc.StatusCode.FAILED_PRECONDITION:
                raise VersionMismatch(reason) from exc
            if code in _REFUSED:
                raise PayloadRefused(reason) from exc
            raise SessionError(reason, code=code.name.lower().replace("_", "-")) from exc
        return frozenset(receipt.known)

    def __enter__(self) -> "PeerConnection":
        return self

    def __exit__(self, *_error: object) -> None:
        self._channel.close()


def _certified_name(context: grpc.ServicerContext) -> str:
    """Return the common name of the caller's certificate; empty where it has not exactly one."""
    try:
        (pem,) = context.auth_context().get("x509_pem_cert", [b""])
        return common_name(x509.load_pem_x509_certificate(bytes(pem)))
    except ValueError:
        return ""


def _status(error: Exception) -> grpc.StatusCode:
    """Return what the caller is answered: INVALID_ARGUMENT is final; after any other it comes again."""
    match error:
        case VersionMismatch():  # after its upgrade it is admitted
            return grpc.StatusCode.FAILED_PRECONDITION
        case SessionError() if error.code in _STATUS:
            return _STATUS[error.code]
    return grpc.StatusCode.INVALID_ARGUMENT
