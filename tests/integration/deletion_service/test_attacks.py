"""What a caller may try so that others get no answer: half a call, a long list, many streams."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import pytest

from server.ledger import Ledger, LimitExceeded
from server.service import deletion_pb2 as pb
from server.service.grpc_server import RunningServer
from server.service.statuses import AccessDenied
from tests.deletion_service import (
    ALL_OF_3,
    ANSWERED_S,
    SAMPLES_OF_3,
    SERVICE,
    LiveLoop,
    submit,
)
from tests.integration.deletion_service.conftest import Guarded, Start
from tests.raising import raises
from unlearning.requests import Granularity, Target


@contextmanager
def half_open(service: Guarded, who: str, call: str, count: int = 1) -> Iterator[list[Any]]:
    """Calls that have begun and never send their message."""
    never = threading.Event()

    def silence() -> Iterator[bytes]:
        never.wait()
        yield from ()

    with grpc.secure_channel(service.address, service.identities[who].channel_credentials()) as channel:
        grpc.channel_ready_future(channel).result(timeout=ANSWERED_S)
        call_once: Any = channel.stream_unary(f"/{SERVICE.full_name}/{call}")
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


def test_calls_without_their_message_keep_nobody_else_waiting(start: Start) -> None:
    """Forty of them by a client, and an operator and an officer are answered."""
    service = start()
    with half_open(service, "client", "GetRequest", 40):
        for who in ("operator", "officer"):
            assert service.as_(who).methods()


def test_a_call_without_its_message_ends(start: Start, ledger: Ledger) -> None:
    """The service waits for a message no longer than it says, and writes the refusal down."""
    with half_open(start(body_timeout_s=0.1), "client", "GetRequest") as [call]:
        status, message = refusal(call)
    assert status is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "The message of GetRequest did not come within 0.1 s" in message
    assert [item.caller for item in ledger.refusals()] == ["3"]


@pytest.mark.parametrize(
    ("who", "status"),
    [("nobody", grpc.StatusCode.UNAUTHENTICATED), ("auditor", grpc.StatusCode.PERMISSION_DENIED)],
)
@pytest.mark.parametrize("call", ["SubmitRequest", "SubmitSamples", "CancelRequest"])
def test_who_may_not_call_is_refused_before_its_message(
    start: Start, who: str, status: grpc.StatusCode, call: str
) -> None:
    """Nothing is read of what a caller without a role, or of another role, would send."""
    with half_open(start(), who, call) as [refused]:
        assert refusal(refused)[0] is status


def test_who_calls_too_often_is_refused_before_its_message(start: Start) -> None:
    """The rate is counted by the calls that begin."""
    service = start(calls_per_s=0.01)
    with half_open(service, "client", "GetRequest", 2) as calls:
        assert "Too many calls" in refusal(first_done(calls))[1]


def test_a_callers_unanswered_calls_are_limited(start: Start) -> None:
    """The second one of a client is refused while the first is open; an operator's is not."""
    service = start(max_calls_per_caller=1)
    with half_open(service, "client", "GetRequest", 2) as calls:
        assert "'3' is calling 1 times already" in refusal(first_done(calls))[1]
        assert service.as_("operator").methods()


# Long lists


def samples(count: int, client: str = "3") -> Target:
    return Target(Granularity.SAMPLE, client, frozenset(f"sample-{number:0>90}" for number in range(count)))


def test_a_list_that_is_too_long_for_one_message_goes_in_parts(start: Start, ledger: Ledger) -> None:
    """Two megabytes of ids under a limit of one: filed once, and again with the same key."""
    client, target = start().as_("client"), samples(20_000)
    filed = submit(client, target, idempotency_key="k")
    assert submit(client, target, idempotency_key="k").id == filed.id
    assert (
        ledger.requests.get(filed.id).target.describe()
        == filed.target.describe()
        == "20,000 samples of client 3"
    )


def test_a_list_is_refused_to_a_client_beyond_its_quota(start: Start, ledger: Ledger) -> None:
    """Counted as the ids come, so it costs no more than the quota to read; an operator has none."""
    service = start(sample_ids_per_day=10_000)
    with raises(LimitExceeded, "sample-quota"):
        submit(service.as_("client"), samples(20_000))
    assert ledger.requests.select() == []
    assert submit(service.as_("operator"), samples(20_000)).is_open


def test_a_client_sends_one_list_at_a_time(start: Start) -> None:
    """A list that does not come keeps its own client from sending another, and nobody else."""
    service = start()
    with half_open(service, "client", "SubmitSamples", 2) as calls:
        assert "'3' is sending samples 1 times already" in refusal(first_done(calls))[1]
        assert submit(service.as_("operator"), samples(20_000)).is_open


def test_a_list_about_another_client_is_refused_at_its_first_part(start: Start) -> None:
    """Nobody waits for the rest."""
    with raises(AccessDenied, "data-of-others"):
        submit(start().as_("client"), samples(20_000, client="4"))


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([{"more": {"sample_ids": ["a"]}}], "first part"),
        ([{"request": {"target": ALL_OF_3}}], "Only a list of samples"),
        (
            [
                {"request": {"target": {**SAMPLES_OF_3, "sample_ids": ["a"]}}},
                {"more": {"sample_ids": ["b", "a"]}},
            ],
            "1 repetition(s)",
        ),
    ],
    ids=["no request", "no list", "an id twice"],
)
def test_parts_that_make_no_list_are_refused(
    service: RunningServer, loop: LiveLoop, parts: list[dict[str, Any]], message: str
) -> None:
    """Each as an invalid argument, like a list in one message."""
    with grpc.insecure_channel(service.address) as channel:
        send: Any = channel.stream_unary(
            f"/{SERVICE.full_name}/SubmitSamples", pb.SubmitSamplesRequest.SerializeToString
        )
        with pytest.raises(grpc.RpcError) as caught:
            send(iter([pb.SubmitSamplesRequest(**part) for part in parts]), timeout=ANSWERED_S)
    refused: Any = caught.value
    assert refused.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert message in refused.details()
