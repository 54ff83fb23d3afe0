"""What a caller may try so that others get no answer: half a call, a long list, many streams, a trickle of bytes."""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from server.api import deletion_pb2 as pb
from server.api.client import DeletionClient
from server.api.errors import AccessDenied
from server.api.limits import Limits
from server.api.server import RunningServer, serve
from server.api.tls import TlsFiles
from server.ledger import Ledger, LimitExceeded
from server.operations.metrics_http import MAX_CONNECTIONS, MetricsServer, serve_metrics
from tests.certificates import Authority
from tests.deletion_service import LiveLoop, submit
from unlearning.requests import Granularity, Target

SERVICE = "/flower_unlearning.deletion.v1.DeletionService"
# A caller of this machine who is not answered by then is not answered.
ANSWERED_S = 10.0


@pytest.fixture(scope="module")
def identities(tmp_path_factory: pytest.TempPathFactory) -> dict[str, TlsFiles]:
    """An operator, client 3, an officer, somebody without a role, and the service."""
    authority = Authority(tmp_path_factory.mktemp("tls"))
    return {
        "operator": authority.certify("ada", "operator"),
        "officer": authority.certify("olga", "officer"),
        "client": authority.certify("3", "client"),
        "nobody": authority.certify("eve"),
        "server": authority.certify("server"),
    }


@pytest.fixture
def start(
    ledger: Ledger, loop: LiveLoop, tmp_path: Path, identities: dict[str, TlsFiles]
) -> Iterator[Callable[..., RunningServer]]:
    """Starts a service with these limits."""
    with ExitStack() as running:

        def begin(**limits: Any) -> RunningServer:
            started = serve(
                ledger, tmp_path / "reports", "127.0.0.1:0", identities["server"], limits=Limits(**limits)
            )
            running.callback(started.stop, 0)
            return started

        yield begin


@contextmanager
def half_open(address: str, tls: TlsFiles, call: str, count: int = 1) -> Iterator[list[Any]]:
    """Calls that have begun and never send their message."""
    never = threading.Event()

    def silence() -> Iterator[bytes]:
        never.wait()
        yield from ()

    with grpc.secure_channel(address, tls.channel_credentials()) as channel:
        grpc.channel_ready_future(channel).result(timeout=ANSWERED_S)
        call_once: Any = channel.stream_unary(f"{SERVICE}/{call}")
        calls = [call_once.future(silence(), timeout=60) for _ in range(count)]
        try:
            yield calls
        finally:
            for one in calls:
                one.cancel()
            never.set()


def refusal(call: Any) -> tuple[grpc.StatusCode, str]:
    """How a call without a message ended."""
    error = call.exception(timeout=ANSWERED_S)
    return error.code(), error.details()


def first_done(calls: list[Any]) -> Any:
    """The call that ends first, of those that never send their message."""
    done = threading.Event()
    for call in calls:
        call.add_done_callback(lambda _: done.set())
    assert done.wait(ANSWERED_S)
    return next(call for call in calls if call.done())


# Half a call


def test_calls_without_their_message_keep_nobody_else_waiting(
    start: Callable[..., RunningServer], identities: dict[str, TlsFiles]
) -> None:
    """Forty of them by a client, and an operator and an officer are answered."""
    address = start().address
    with half_open(address, identities["client"], "GetRequest", 40):
        for who in ("operator", "officer"):
            with DeletionClient(address, identities[who], timeout_s=ANSWERED_S) as other:
                assert other.methods()


def test_a_call_without_its_message_ends(
    start: Callable[..., RunningServer], identities: dict[str, TlsFiles], ledger: Ledger
) -> None:
    """The service waits for a message no longer than it says, and writes the refusal down."""
    with half_open(start(body_timeout_s=0.1).address, identities["client"], "GetRequest") as [call]:
        status, message = refusal(call)
    assert status is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "The message of GetRequest did not come within 0.1 s" in message
    assert [item.caller for item in ledger.refusals()] == ["3"]


@pytest.mark.parametrize(
    ("who", "status"),
    [("nobody", grpc.StatusCode.UNAUTHENTICATED), ("officer", grpc.StatusCode.PERMISSION_DENIED)],
)
@pytest.mark.parametrize("call", ["SubmitRequest", "SubmitSamples", "CancelRequest"])
def test_who_may_not_call_is_refused_before_its_message(
    start: Callable[..., RunningServer],
    identities: dict[str, TlsFiles],
    who: str,
    status: grpc.StatusCode,
    call: str,
) -> None:
    """Nothing is read of what a caller without a role, or of another role, would send."""
    with half_open(start().address, identities[who], call) as [refused]:
        assert refusal(refused)[0] is status


def test_who_calls_too_often_is_refused_before_its_message(
    start: Callable[..., RunningServer], identities: dict[str, TlsFiles]
) -> None:
    """The rate is counted by the calls that begin."""
    address = start(calls_per_s=0.01).address
    with half_open(address, identities["client"], "GetRequest", 2) as calls:
        assert "Too many calls" in refusal(first_done(calls))[1]


def test_a_callers_unanswered_calls_are_limited(
    start: Callable[..., RunningServer], identities: dict[str, TlsFiles]
) -> None:
    """The second one of a client is refused while the first is open; an operator's is not."""
    address = start(max_calls_per_caller=1).address
    with half_open(address, identities["client"], "GetRequest", 2) as calls:
        assert "'3' is calling 1 times already" in refusal(first_done(calls))[1]
        with DeletionClient(address, identities["operator"], timeout_s=ANSWERED_S) as operator:
            assert operator.methods()


def test_watchers_leave_the_operators_their_places(
    start: Callable[..., RunningServer], identities: dict[str, TlsFiles]
) -> None:
    """A client holds the one place that clients and officers have; an officer finds none, an operator does."""
    address = start(max_watchers=1).address
    with ExitStack() as open_ones:
        client, officer, operator = (
            open_ones.enter_context(DeletionClient(address, identities[who], timeout_s=ANSWERED_S))
            for who in ("client", "officer", "operator")
        )
        request = submit(client)
        watched = client.watch(request.id)
        next(watched)
        with pytest.raises(LimitExceeded, match="All 1 places for watching are taken"):
            next(officer.watch(request.id))
        assert next(operator.watch(request.id)) == request


# Long lists


def samples(count: int, client: str = "3") -> Target:
    return Target(Granularity.SAMPLE, client, frozenset(f"sample-{number:0>90}" for number in range(count)))


def test_a_list_that_is_too_long_for_one_message_goes_in_parts(
    start: Callable[..., RunningServer], identities: dict[str, TlsFiles], ledger: Ledger
) -> None:
    """Two megabytes of ids under a limit of one: filed once, and again with the same key."""
    address, target = start().address, samples(20_000)
    with DeletionClient(address, identities["client"]) as client:
        filed = submit(client, target, idempotency_key="k")
        assert submit(client, target, idempotency_key="k").id == filed.id
    assert ledger.get(filed.id).target.describe() == filed.target.describe() == "20,000 samples of client 3"


def test_a_list_is_refused_to_a_client_beyond_its_quota(
    start: Callable[..., RunningServer], identities: dict[str, TlsFiles], ledger: Ledger
) -> None:
    """Counted as the ids come, so it costs no more than the quota to read; an operator has none."""
    address = start(sample_ids_per_day=10_000).address
    with DeletionClient(address, identities["client"]) as client:  # noqa: SIM117  the refusal is the call's
        with pytest.raises(LimitExceeded, match="'3' may send 10,000 sample ids a day"):
            submit(client, samples(20_000))
    assert ledger.list_requests() == []
    with DeletionClient(address, identities["operator"]) as operator:
        assert submit(operator, samples(20_000)).is_open


def test_a_client_sends_one_list_at_a_time(
    start: Callable[..., RunningServer], identities: dict[str, TlsFiles]
) -> None:
    """A list that does not come keeps its own client from sending another, and nobody else."""
    address = start().address
    with half_open(address, identities["client"], "SubmitSamples", 2) as calls:
        assert "'3' is sending samples 1 times already" in refusal(first_done(calls))[1]
        with DeletionClient(address, identities["operator"]) as operator:
            assert submit(operator, samples(20_000)).is_open


def test_a_list_about_another_client_is_refused_at_its_first_part(
    start: Callable[..., RunningServer], identities: dict[str, TlsFiles]
) -> None:
    """Nobody waits for the rest."""
    with DeletionClient(start().address, identities["client"]) as client:  # noqa: SIM117  the refusal is the call's
        with pytest.raises(AccessDenied, match="only for its own data"):
            submit(client, samples(20_000, client="4"))


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([pb.SubmitSamplesRequest(more=pb.SampleIds(sample_ids=["a"]))], "first part"),
        (
            [
                pb.SubmitSamplesRequest(
                    request=pb.SubmitRequestRequest(target=pb.Target(granularity="client", client_id="3"))
                )
            ],
            "Only a list of samples",
        ),
        (
            [
                pb.SubmitSamplesRequest(
                    request=pb.SubmitRequestRequest(
                        method="puf-special",
                        target=pb.Target(granularity="sample", client_id="3", sample_ids=["a"]),
                    )
                ),
                pb.SubmitSamplesRequest(more=pb.SampleIds(sample_ids=["b", "a"])),
            ],
            "1 repetition(s)",
        ),
    ],
    ids=["no request", "no list", "an id twice"],
)
def test_parts_that_make_no_list_are_refused(
    service: RunningServer, loop: LiveLoop, parts: list[pb.SubmitSamplesRequest], message: str
) -> None:
    """Each as an invalid argument, like a list in one message."""
    with grpc.insecure_channel(service.address) as channel:
        send: Any = channel.stream_unary(
            f"{SERVICE}/SubmitSamples", pb.SubmitSamplesRequest.SerializeToString
        )
        with pytest.raises(grpc.RpcError) as caught:
            send(iter(parts), timeout=ANSWERED_S)
    refused: Any = caught.value
    assert refused.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert message in refused.details()


# A trickle of bytes


@pytest.fixture
def metrics(ledger: Ledger) -> Iterator[MetricsServer]:
    running = serve_metrics(ledger, "127.0.0.1:0")
    yield running
    running.stop()


@pytest.fixture
def trickling(metrics: MetricsServer) -> Iterator[list[socket.socket]]:
    """As many connections as there are places and some more, each with half a line of a request."""
    host, port = metrics.address.rsplit(":", 1)
    with ExitStack() as opened:
        connections = []
        for _ in range(MAX_CONNECTIONS + 20):
            connections.append(opened.enter_context(socket.create_connection((host, int(port)))))
            connections[-1].sendall(b"GET /heal")
        yield connections


def test_connections_that_trickle_take_no_threads(metrics: MetricsServer, ledger: Ledger) -> None:
    """Forty of them begin no thread, once they have been accepted."""
    host, port = metrics.address.rsplit(":", 1)
    _healthz(host, int(port))
    before = set(threading.enumerate())
    with ExitStack() as opened:
        for _ in range(40):
            opened.enter_context(socket.create_connection((host, int(port)))).sendall(b"GET /heal")
        _healthz(host, int(port))
        assert set(threading.enumerate()) <= before


def test_a_new_connection_takes_the_place_of_the_one_that_waited_longest(
    metrics: MetricsServer, trickling: list[socket.socket]
) -> None:
    """The health is told, and the first that trickled are closed."""
    host, port = metrics.address.rsplit(":", 1)
    assert _healthz(host, int(port)).startswith(b"HTTP/1.1 200 OK")
    trickling[0].settimeout(ANSWERED_S)
    with contextlib.suppress(ConnectionResetError):  # closed as well
        assert trickling[0].recv(1) == b""
    trickling[-1].sendall(b"thz HTTP/1.1\r\n\r\n")
    trickling[-1].settimeout(ANSWERED_S)
    assert trickling[-1].recv(100).startswith(b"HTTP/1.1 200 OK")


def _healthz(host: str, port: int) -> bytes:
    with socket.create_connection((host, port), timeout=ANSWERED_S) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: here\r\n\r\n")
        answer = b""
        while part := connection.recv(4096):
            answer += part
    return answer
