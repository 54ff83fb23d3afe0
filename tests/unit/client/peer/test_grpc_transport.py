"""Payloads over real gRPC and TLS on loopback, and what is refused."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from client.peer import grpc_transport
from client.peer.gossip import GossipMessage, Greeting, Kind, ModelOffer, Payload
from client.peer.grpc_transport import PayloadRefused, PeerConnection, PeerServer
from strategies.tls_files import is_loopback
from tests.certificates import Authority
from tests.peers import Receiver, listening, reception, tls_of
from tests.raising import raises
from unlearning.errors import DeploymentError, SessionError, UpdateRefused, VersionMismatch
from unlearning.protocol import PROTOCOL


@pytest.fixture
def address(receiver: Receiver, authority: Authority, tmp_path: Path) -> Iterator[str]:
    """Where the peer "1" listens, with TLS."""
    with listening(receiver, tls_of(authority, "1"), tmp_path) as address:
        yield address


def test_payloads_arrive_as_they_were_sent(address: str, authority: Authority, receiver: Receiver) -> None:
    """A greeting, an item and a model of three chunks, over mutual TLS."""
    vector = np.random.default_rng(0).normal(size=300_000)
    sent: list[Payload] = [
        Greeting("2"),
        GossipMessage(kind=Kind.CORRECTION, origin="7", subject="7-a", values={"weight": 0.5}, vector=vector),
        ModelOffer(sender="2", round=4, vector=vector.astype(np.float32), applied=frozenset({"a", "b"})),
    ]
    with PeerConnection("2", address, tls_of(authority, "2"), 10.0) as connection:
        answers = [connection.send(payload) for payload in sent]
    assert answers[0] == {"x", "y"}
    (_, greeting), (_, item), (sender, offer) = receiver.got
    assert greeting == sent[0]
    assert isinstance(item, GossipMessage)
    assert isinstance(offer, ModelOffer)
    assert (item.id, dict(item.values), sender) == ("correction/7/7-a", {"weight": 0.5}, "2")
    np.testing.assert_array_equal(item.vector, vector)
    np.testing.assert_array_equal(offer.vector, vector.astype(np.float32))
    assert (offer.round, offer.applied) == (4, {"a", "b"})


def test_a_peer_cannot_send_in_another_peers_name(
    address: str, authority: Authority, receiver: Receiver
) -> None:
    """The certificate says peer 3, the payload peer 2."""
    with (
        PeerConnection("2", address, tls_of(authority, "3"), 10.0) as connection,
        raises(SessionError, "unauthenticated"),
    ):
        connection.send(Greeting("2"))
    assert receiver.got == []


def test_a_certificate_of_another_authority_is_not_let_in(
    address: str, authority: Authority, receiver: Receiver, tmp_path: Path
) -> None:
    """It trusts the right authority, and is signed by its own."""
    tls = replace(tls_of(Authority(tmp_path, "other"), "2"), ca=authority.file)
    with PeerConnection("2", address, tls, 10.0) as connection, pytest.raises(SessionError):
        connection.send(Greeting("2"))
    assert receiver.got == []


def test_what_the_receiver_refuses_is_not_sent_again(tmp_path: Path) -> None:
    """Its reason comes back as a refusal, not as a failure of the network."""

    def refuse(sender: str, payload: Payload) -> frozenset[str]:
        raise UpdateRefused("The model has 3 parameters.")

    with (
        listening(refuse, None, tmp_path) as address,
        PeerConnection("2", address, None, 10.0) as connection,
        pytest.raises(PayloadRefused, match="3 parameters"),  # the reason, as an operator reads it
    ):
        connection.send(Greeting("2"))


def test_a_peer_does_not_listen_to_other_machines_without_tls(tmp_path: Path) -> None:
    """Anybody could feed it models."""
    assert not is_loopback("0.0.0.0:0")
    with pytest.raises(DeploymentError):
        PeerServer("0.0.0.0:0", None, reception(tmp_path, Receiver()))


@pytest.mark.parametrize(("version", "side"), [(0, "sending"), (2, "receiving")])
def test_a_payload_of_another_version_is_refused_until_the_upgrade(
    address: str,
    authority: Authority,
    receiver: Receiver,
    monkeypatch: pytest.MonkeyPatch,
    version: int,
    side: str,
) -> None:
    """One sentence for the sender, which keeps the payload, and for the receiver's record."""
    stamped = grpc_transport.stamped
    with PeerConnection("2", address, tls_of(authority, "2"), 10.0) as connection:
        monkeypatch.setattr(grpc_transport, "stamped", lambda values: {**stamped(values), PROTOCOL: version})
        with pytest.raises(VersionMismatch, match=f"at the {side} peer"):  # what to upgrade
            connection.send(Greeting("2"))
        assert receiver.got == []
        monkeypatch.undo()
        connection.send(Greeting("2"))
    assert len(receiver.got) == 1
