"""Parcels between machines: each peer is a gRPC server, and a client of its neighbours.

Beyond one's own machine there is only mutual TLS, and a peer's certificate names it: its common name is the peer's id,
so nobody sends in another's name. On loopback (tests, trials) plain text is allowed.
"""

from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

import grpc
from cryptography import x509
from cryptography.x509.oid import NameOID

from client.peer import peer_pb2 as pb
from client.peer.items import Greeting, Item, Offer, Parcel, item_from, item_values
from client.peer.peer_pb2_grpc import (
    PeerServiceServicer,
    PeerServiceStub,
    add_PeerServiceServicer_to_server,
)
from strategies.sessions import framing
from strategies.sessions.endpoint import Endpoint, Tls, open_channel
from strategies.sessions.framing import Assembler
from unlearning.errors import DeploymentError, FlowerUnlearningError, SessionError
from unlearning.parameters import Vector

MAX_PARCEL_BYTES = 2**33

Handling = Callable[[str, Parcel], frozenset[str]]
"""Takes a parcel from the peer of that name; the ids that it knows, for a greeting."""

_REFUSED = frozenset({grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.UNIMPLEMENTED})


class ParcelRefused(SessionError):
    """The neighbour will not take this parcel, now or later."""


def frames_of(parcel: Parcel, sender: str) -> Iterator[Any]:
    """The parcel as it travels."""
    arrays: dict[str, Vector] = {}
    match parcel:
        case Greeting():
            values: dict[str, Any] = {"parcel": "greeting", "is_new": parcel.is_new}
        case Item():
            values = {"parcel": "item", "item": item_values(parcel)}
            if parcel.vector is not None:
                arrays["vector"] = parcel.vector
        case Offer():
            values = {"parcel": "offer", "round": parcel.round, "applied": sorted(parcel.applied)}
            arrays["vector"] = parcel.vector
    return framing.frames(framing.Parcel(exchange=1, values={**values, "sender": sender}, arrays=arrays))


def parcel_of(received: framing.Parcel) -> tuple[str, Parcel]:
    """Sender and parcel.

    Raises:
        SessionError: it is malformed.
    """
    values, vector = received.values, received.arrays.get("vector")
    try:
        sender, kind = str(values["sender"]), values["parcel"]
        if kind == "greeting":
            return sender, Greeting(sender, is_new=bool(values["is_new"]))
        if kind == "item":
            return sender, item_from(values["item"], vector)
        if kind == "offer" and vector is not None:
            applied = frozenset(map(str, values["applied"]))
            return sender, Offer(sender=sender, round=int(values["round"]), vector=vector, applied=applied)
    except (KeyError, TypeError, ValueError) as exc:
        raise SessionError(f"Malformed parcel: {exc}.") from exc
    raise SessionError(f"There is no parcel of the kind {str(kind)[:40]!r}.")


class PeerServer(PeerServiceServicer):
    """Listens at `bind` and hands every parcel to `handle`.

    Raises:
        DeploymentError: the address is taken, or open to other machines without TLS.
        ConfigurationError: a TLS file cannot be read.
    """

    def __init__(self, bind: str, tls: Tls | None, handle: Handling, timeout_s: float) -> None:
        self._handle, self._is_certified = handle, tls is not None
        try:
            self._server = Endpoint(address=bind, bind=bind, timeout_s=timeout_s, tls=tls).listen()
        except SessionError as exc:
            raise DeploymentError(
                f"Cannot listen at {bind}: the port is taken, or other machines can reach it and there is no "
                "tls section in the configuration. Choose another port, give certificates, or listen at 127.0.0.1."
            ) from exc
        add_PeerServiceServicer_to_server(self, self._server)  # type: ignore[no-untyped-call]
        self._server.start()

    def Deliver(  # noqa: N802 (the name in peer.proto)
        self, request_iterator: Iterator[Any], context: grpc.ServicerContext
    ) -> pb.Receipt:
        """Take one parcel."""
        assembler, received = Assembler(MAX_PARCEL_BYTES), None
        try:
            for frame in request_iterator:
                received = assembler.add(frame)
            if received is None:
                raise SessionError("The call ended in the middle of a parcel.")
            sender, parcel = parcel_of(received)
            if self._is_certified and certified_name(context) != sender:
                context.abort(
                    grpc.StatusCode.UNAUTHENTICATED,
                    f"The certificate is not that of peer {sender[:40]!r}: its common name must be the peer's id.",
                )
            return pb.Receipt(known=sorted(self._handle(sender, parcel)))
        except FlowerUnlearningError as exc:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(exc))
            raise  # abort has raised already; the type checker does not know

    def stop(self) -> None:
        """Take no more parcels; those at hand are finished."""
        self._server.stop(grace=2.0).wait()


class PeerConnection:
    """A connection to the peer at `address`.

    Raises:
        SessionError: the address is on another machine and there is no TLS.
        ConfigurationError: a TLS file cannot be read.
    """

    def __init__(self, name: str, address: str, tls: Tls | None, timeout_s: float) -> None:
        self._name, self._timeout_s = name, timeout_s
        self._channel = open_channel(address, tls)
        self._stub: Any = PeerServiceStub(self._channel)  # type: ignore[no-untyped-call]  # generated

    def send(self, parcel: Parcel) -> frozenset[str]:
        """Deliver a parcel; for a greeting, the ids that the other side has.

        Raises:
            ParcelRefused: the other side will not take it.
            SessionError: it did not arrive, or no confirmation came.
        """
        try:
            receipt = self._stub.Deliver(frames_of(parcel, self._name), timeout=self._timeout_s)
        except grpc.RpcError as exc:
            code = exc.code() if isinstance(exc, grpc.Call) else None
            reason = str(exc.details() if isinstance(exc, grpc.Call) else exc)
            if code in _REFUSED:
                raise ParcelRefused(reason) from exc
            raise SessionError(reason) from exc
        return frozenset(receipt.known)

    def __enter__(self) -> "PeerConnection":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._channel.close()


def certified_name(context: grpc.ServicerContext) -> str:
    """The common name of the caller's certificate; empty where it has not exactly one."""
    (pem,) = context.auth_context().get("x509_pem_cert", [b""])
    try:
        subject = x509.load_pem_x509_certificate(bytes(pem)).subject
    except ValueError:
        return ""
    names = subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(names[0].value) if len(names) == 1 else ""
