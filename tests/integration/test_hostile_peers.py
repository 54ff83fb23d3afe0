"""A ring of ten real processes with TLS, a stranger with a certificate, and a member that lies.

In the gate test_peer_hosts.py has ten on hosts of their own, and tests/unit/client/peer/ attacks one.
"""

from dataclasses import replace
from pathlib import Path

import grpc
import numpy as np
import pytest

from client.peer.gossip import GossipMessage, Greeting, Kind, ModelOffer, Payload
from client.peer.grpc_transport import PeerConnection
from client.peer.journal import Journal
from client.peer.peer_cli import read_status
from client.peer.signatures import Seals
from strategies.sessions import session_pb2 as pb
from strategies.sessions.endpoint import open_channel
from tests.integration.peer_processes import (
    NAMES,
    ROUNDS,
    PeerProcesses,
    forget_calmly,
    has_correction,
    is_done,
    make_peer_certificate,
    running_peers,
    some_samples,
)
from tests.peers import member_item, request_item, silent_calls
from unlearning.errors import SessionError

pytestmark = [pytest.mark.slow, pytest.mark.long]  # starts ten processes

LIAR, ATTACKED = "5", "4"


def refusal(peers: PeerProcesses, sender: str, payload: Payload) -> str:
    """Why the attacked peer does not take a payload; empty if it takes it."""
    address = peers.config(ATTACKED).bind
    with open_channel(address, peers.tls(sender)) as channel:
        grpc.channel_ready_future(channel).result(60)  # it may just have been started
    with PeerConnection(sender, address, peers.tls(sender), 20.0) as connection:
        try:
            connection.send(payload)
        except SessionError as exc:
            return str(exc)
    return ""


def announced(num_bytes: int) -> pb.Frame:
    """A header that announces one array of so many bytes."""
    array = pb.ArrayHeader(name="vector", dtype="<f8", shape=(num_bytes // 8,))
    return pb.Frame(header=pb.Header(exchange=1, json_bytes=2, arrays=[array]))


def long_correction(peers: PeerProcesses) -> tuple[GossipMessage, GossipMessage]:
    """The liar's own request, and the correction that it says belongs to it; signed by itself."""
    model = Journal(peers.directory / f"state-{LIAR}").model
    assert model is not None
    vector = np.zeros_like(model.vector)
    vector[0] = 25_000.0
    values = {"weight": 1.0, "deleted": 1}
    made = GossipMessage(
        kind=Kind.CORRECTION, origin=LIAR, subject=f"{LIAR}-key", values=values, vector=vector
    )
    seals = Seals(peers.tls(LIAR))
    return seals.seal(request_item(LIAR)), seals.seal(made)


def lies(peers: PeerProcesses) -> dict[str, tuple[Payload, str]]:
    """What the liar sends with its own certificate and key, by what it is, and what is said to that."""
    seals = Seals(peers.tls(LIAR))
    model = Journal(peers.directory / f"state-{LIAR}").model
    assert model is not None
    offer = ModelOffer(sender=LIAR, round=ROUNDS, vector=model.vector, applied=model.applied)
    return {
        "a stranger's item": (
            Seals(peers.tls("x")).seal(member_item("x")),
            "no member",
        ),
        "a correction that nobody asked for": (long_correction(peers)[1], "not known"),
        "in another's name": (
            seals.seal(replace(request_item("3"), subject="3-forged")),
            "in another's name",
        ),
        "without a seal": (request_item("3", "unsigned"), "without its origin's signature"),
        "a model of 1e30": (replace(offer, vector=np.full_like(model.vector, 1e30)), "times the own model's"),
    }


def test_ten_processes_forget_as_one_though_a_stranger_and_a_member_attack(tmp_path: Path) -> None:
    """All models are those of peers to which nothing happened, and every process starts again afterwards."""
    with running_peers(PeerProcesses(tmp_path, {"kind": "ring"})) as peers:
        make_peer_certificate(tmp_path / "certificates", "x", "127.0.0.1")
        calm = peers.in_one_process()
        target = some_samples(calm)
        peers.kill(LIAR)
        stranger = Seals(peers.tls("x"))
        for payload in (Greeting("x"), stranger.seal(member_item("x")), Greeting("3")):
            assert "no member" in refusal(peers, "x", payload)
        attacked, liar = peers.config(ATTACKED).bind, peers.tls(LIAR)
        with (
            silent_calls(attacked, peers.tls("x"), 510) as silent,
            silent_calls(attacked, liar, 4, [announced(2**33)]) as large,
        ):
            assert {call.code() for call in silent} <= {
                grpc.StatusCode.PERMISSION_DENIED,
                grpc.StatusCode.RESOURCE_EXHAUSTED,
            }
            assert {call.code() for call in large} == {grpc.StatusCode.INVALID_ARGUMENT}
            assert refusal(peers, "3", Greeting("3")) == ""
        for name, (payload, said) in lies(peers).items():
            assert (said or "nothing") in (refusal(peers, LIAR, payload) or "nothing"), name

        key = peers.file(target)
        peers.wait(has_correction, [name for name in NAMES if name != LIAR])
        peers.fork(LIAR)
        peers.wait(is_done, NAMES)
        forget_calmly(calm, target, key)
        peers.check_models(calm)
        assert {LIAR, "x"} <= read_status(peers.config(ATTACKED))["refused"].keys()
        peers.stop_all()
        for name in NAMES:
            peers.fork(name)
        assert refusal(peers, "3", Greeting("3")) == ""
        peers.check_models(calm)
        peers.kill(LIAR)  # or it would answer its own request first
        request, correction = long_correction(peers)
        assert refusal(peers, LIAR, request) == ""
        assert "would move every model by 2.5e+04" in refusal(peers, LIAR, correction)
