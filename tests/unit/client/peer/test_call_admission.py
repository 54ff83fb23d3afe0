"""Calls over real gRPC and TLS: refused callers, the places of a member, and the end of silent calls."""

import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from client.peer import grpc_transport
from client.peer.gossip import Greeting
from client.peer.grpc_transport import CALLS_PER_PEER, PeerConnection, frames_of
from strategies.sessions import endpoint
from tests.certificates import Authority
from tests.peers import Receiver, listening, silent_calls, tls_of
from tests.waiting import WAIT_S

TIMEOUT_S = 2.0
HEADER = list(frames_of(Greeting("2"), "2"))[:1]
"""The first frame of a greeting."""


@pytest.fixture
def address(tmp_path: Path, authority: Authority, receiver: Receiver) -> Iterator[str]:
    """Where the peer 1 listens."""
    with listening(receiver, tls_of(authority, "1"), tmp_path, TIMEOUT_S) as address:
        yield address


def greet(address: str, authority: Authority, name: str) -> frozenset[str]:
    with PeerConnection(name, address, tls_of(authority, name), 5.0) as connection:
        return connection.send(Greeting(name))


def test_a_stranger_is_sent_away_before_it_has_said_anything(address: str, authority: Authority) -> None:
    """Its certificate is the authority's, its name is on no list, and it sends nothing."""
    with silent_calls(address, tls_of(authority, "x"), 1) as [call]:
        assert call.code() is grpc.StatusCode.PERMISSION_DENIED
        assert "no member" in call.details()


def test_a_members_silent_calls_take_its_own_places_only_and_are_ended(
    address: str, authority: Authority, receiver: Receiver
) -> None:
    """Calls beyond them are refused, another member is served meanwhile, and ended calls leave their places."""
    with silent_calls(address, tls_of(authority, "2"), CALLS_PER_PEER + 2, HEADER) as calls:
        greet(address, authority, "3")
        assert receiver.senders == ["3"]
        codes = Counter(call.code() for call in calls)
        assert codes == {grpc.StatusCode.RESOURCE_EXHAUSTED: 2, grpc.StatusCode.CANCELLED: CALLS_PER_PEER}
        greet(address, authority, "2")


def test_where_there_are_no_certificates_the_oldest_call_makes_room(
    tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On one machine all calls come from one address, and a member's is short."""
    monkeypatch.setattr(endpoint, "MAX_CLIENTS", 4)
    monkeypatch.setattr(grpc_transport, "MAX_CALLS", 4, raising=False)
    with (
        listening(receiver, None, tmp_path) as address,
        silent_calls(address, None, 8, HEADER) as calls,
        PeerConnection("3", address, None, 5.0) as connection,
    ):
        ended = threading.Semaphore(0)
        for call in calls:
            call.add_done_callback(lambda _: ended.release())
        assert all(ended.acquire(timeout=WAIT_S) for _ in range(4))
        connection.send(Greeting("3"))
    assert receiver.senders == ["3"]


@pytest.mark.slow  # five hundred threads of the callers
def test_hundreds_of_silent_calls_of_strangers_and_members_shut_no_member_out(
    address: str, authority: Authority, receiver: Receiver
) -> None:
    """As many as the server has threads, and more."""
    stranger, member, began = tls_of(authority, "x"), tls_of(authority, "2"), time.monotonic()
    with silent_calls(address, stranger, 510), silent_calls(address, member, 510) as calls:
        greet(address, authority, "3")
        assert receiver.senders == ["3"]
        refused = sum(call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED for call in calls)
    # A slow machine is still sending calls when the first ones are ended, whose places are free then.
    freed = int((time.monotonic() - began - TIMEOUT_S) / TIMEOUT_S)
    assert refused >= 510 - (2 + freed) * CALLS_PER_PEER
