"""The service's limits over real gRPC: refused with what to do, recorded, and over again."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from server.api.client import DeletionClient
from server.api.limits import Limits
from server.api.server import serve
from server.ledger import Ledger, LimitExceeded
from tests.certificates import Authority
from tests.deletion_service import LiveLoop, submit
from unlearning.requests import Granularity, Target


@contextmanager
def client_3(ledger: Ledger, directory: Path, limits: Limits) -> Iterator[DeletionClient]:
    """Client 3 at a service with these limits."""
    authority = Authority(directory)
    running = serve(ledger, directory, "127.0.0.1:0", authority.certify("server"), limits=limits)
    try:
        with DeletionClient(running.address, authority.certify("3", "client")) as client:
            yield client
    finally:
        running.stop(0)


def test_too_many_calls_are_refused_and_recorded(ledger: Ledger, tmp_path: Path) -> None:
    """One call in a hundred seconds, and the second says when to try again."""
    with client_3(ledger, tmp_path, Limits(calls_per_s=0.01)) as client:
        client.methods()
        with pytest.raises(LimitExceeded, match=r"Too many calls: '3' may make 0\.01 a second"):
            client.methods()
    assert [(item.caller, item.call) for item in ledger.refusals()] == [("3", "ListMethods")]


def test_a_message_over_the_limit_is_refused_and_recorded(
    ledger: Ledger, loop: LiveLoop, tmp_path: Path
) -> None:
    """The sender learns how large it may be; nothing is filed."""
    many = Target(Granularity.SAMPLE, "3", frozenset(f"{number:0>100}" for number in range(150)))
    with client_3(ledger, tmp_path, Limits(max_message_mib=0.01)) as client:
        with pytest.raises(LimitExceeded, match=r"at most 10,485 are allowed\. Split"):
            submit(client, many)
        assert client.list_requests() == []
    assert ledger.refusals()[0].detail["status"] == "RESOURCE_EXHAUSTED"


def test_a_message_that_grpc_refuses_is_explained_too(ledger: Ledger, tmp_path: Path) -> None:
    """Far over the limit the service does not even read it; the error is of the same kind."""
    many = Target(Granularity.SAMPLE, "3", frozenset(f"{number:0>100}" for number in range(1000)))
    with client_3(ledger, tmp_path, Limits(max_message_mib=0.01)) as client:  # noqa: SIM117  the refusal is the call's
        with pytest.raises(LimitExceeded, match="Send less at once"):
            submit(client, many)


def test_streams_of_one_caller_are_limited(ledger: Ledger, loop: LiveLoop, tmp_path: Path) -> None:
    """The second watch is refused while the first one is open; other calls are not."""
    with client_3(ledger, tmp_path, Limits(max_watchers_per_caller=1)) as client:
        request = submit(client)
        story = client.watch(request.id)
        next(story)
        with pytest.raises(LimitExceeded, match="'3' is watching 1 times already"):
            list(client.watch(request.id))
        assert client.get(request.id) == request
        client.cancel(request.id)
        list(story)
        assert len(list(client.watch(request.id))) == 4


def test_open_requests_of_one_caller_are_limited(ledger: Ledger, loop: LiveLoop, tmp_path: Path) -> None:
    """Until one is over."""
    running = serve(ledger, tmp_path, "127.0.0.1:0", limits=Limits(max_open_requests=1))
    with DeletionClient(running.address) as client:
        first = submit(client)
        other = Target(Granularity.CLIENT, "4")
        with pytest.raises(LimitExceeded, match="'ada' has 1 open requests; at most 1"):
            submit(client, other)
        client.cancel(first.id)
        assert submit(client, other).is_open
    running.stop(0)
