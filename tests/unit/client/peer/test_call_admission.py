"""Calls over real gRPC and TLS: who is sent away, how many places a member has, and what becomes of silent calls."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest

from client.peer.call_admission import CALLS_PER_PEER
from client.peer.grpc_transport import PeerConnection, PeerServer, frames_of
from client.peer.items import Greeting, Payload
from client.peer.peer_pb2_grpc import PeerServiceStub
from strategies.sessions.endpoint import Tls, open_channel
from tests.certificates import Authority
from tests.deletion_service import free_port
from tests.peers import reception, tls_of

TIMEOUT_S = 2.0


class SilentCaller:
    """Opens calls on which nothing is ever said."""

    def __init__(self, address: str, tls: Tls) -> None:
        self._channel = open_channel(address, tls)
        self._stub: Any = PeerServiceStub(self._channel)  # type: ignore[no-untyped-call]  # generated
        self._done = threading.Event()

    def call(self, *, said: int = 0) -> Any:
        """A call that says the first few frames of a greeting, then nothing."""

        def silence() -> Iterator[Any]:
            yield from list(frames_of(Greeting("2"), "2"))[:said]
            self._done.wait()

        return self._stub.Deliver.future(silence())

    def close(self) -> None:
        self._done.set()
        self._channel.close()


@pytest.fixture
def handled() -> list[str]:
    """Whose payloads were taken."""
    return []


@pytest.fixture
def address(tmp_path: Path, authority: Authority, handled: list[str]) -> Iterator[str]:
    """The peer 1, which has the members 2 and 3."""

    def handle(sender: str, payload: Payload) -> frozenset[str]:
        handled.append(sender)
        return frozenset()

    takes = reception(tmp_path, handle, admits="123".__contains__, timeout_s=TIMEOUT_S)
    address = f"127.0.0.1:{free_port()}"
    server = PeerServer(address, tls_of(authority, "1"), takes)
    yield address
    server.stop()


@pytest.fixture
def callers() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def silent(callers: ExitStack, address: str, tls: Tls) -> SilentCaller:
    made = SilentCaller(address, tls)
    callers.callback(made.close)
    return made


def greet(address: str, authority: Authority, name: str) -> frozenset[str]:
    with PeerConnection(name, address, tls_of(authority, name), 5.0) as connection:
        return connection.send(Greeting(name))


def test_a_stranger_is_sent_away_before_it_has_said_anything(
    address: str, authority: Authority, callers: ExitStack
) -> None:
    """Its certificate is the authority's, its name is on no list, and it sends nothing."""
    stranger = silent(callers, address, tls_of(authority, "x"))
    call = stranger.call()
    assert call.code() is grpc.StatusCode.PERMISSION_DENIED
    assert "no member" in call.details()


def test_a_members_silent_calls_take_its_own_places_only(
    address: str, authority: Authority, callers: ExitStack, handled: list[str]
) -> None:
    """What is beyond them is refused, and another member is served meanwhile."""
    caller = silent(callers, address, tls_of(authority, "2"))
    calls = [caller.call(said=1) for _ in range(CALLS_PER_PEER + 2)]
    greet(address, authority, "3")
    assert handled == ["3"]
    codes = [call.code() for call in calls]
    assert codes.count(grpc.StatusCode.RESOURCE_EXHAUSTED) == 2


def test_a_call_on_which_nothing_comes_is_ended(
    address: str, authority: Authority, callers: ExitStack
) -> None:
    """Its place is free again, for the same member too."""
    caller = silent(callers, address, tls_of(authority, "2"))
    calls = [caller.call(said=1) for _ in range(CALLS_PER_PEER)]
    assert {call.code() for call in calls} == {grpc.StatusCode.CANCELLED}
    greet(address, authority, "2")


@pytest.mark.slow  # five hundred threads of the callers
def test_hundreds_of_silent_calls_of_strangers_and_members_shut_nobody_out(
    address: str, authority: Authority, callers: ExitStack, handled: list[str]
) -> None:
    """As many as the server has threads, and more."""
    for name in ("x", "2"):
        caller = silent(callers, address, tls_of(authority, name))
        calls = [caller.call() for _ in range(510)]
    greet(address, authority, "3")
    assert handled == ["3"]
    assert (
        sum(call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED for call in calls) >= 510 - 2 * CALLS_PER_PEER
    )
