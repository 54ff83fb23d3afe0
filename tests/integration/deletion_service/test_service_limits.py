"""The service's limits over real gRPC: refused with what to do, recorded, and over again."""

import pytest

from server.ledger import Ledger, LimitExceeded
from tests.deletion_service import submit
from tests.integration.deletion_service.conftest import Start
from tests.raising import raises
from unlearning.requests import Granularity, Target


def test_too_many_calls_are_refused_and_recorded(start: Start, ledger: Ledger) -> None:
    """One call in a hundred seconds, and the second says when to try again."""
    client = start(calls_per_s=0.01).as_("client")
    client.methods()
    with raises(LimitExceeded, "too-many-calls"):
        client.methods()
    assert [(item.caller, item.call) for item in ledger.refusals()] == [("3", "ListMethods")]


def test_a_message_over_the_limit_is_refused_and_recorded(start: Start, ledger: Ledger) -> None:
    """The sender learns how large it may be; nothing is filed."""
    many = Target(Granularity.SAMPLE, "3", frozenset(f"{number:0>100}" for number in range(150)))
    client = start(max_message_mib=0.01).as_("client")
    with raises(LimitExceeded, "message-size"):
        submit(client, many)
    assert client.list_requests() == []
    assert ledger.refusals()[0].detail["status"] == "RESOURCE_EXHAUSTED"


def test_a_message_that_grpc_refuses_is_explained_too(start: Start) -> None:
    """Far over the limit the service does not even read it; the error is of the same kind."""
    many = Target(Granularity.SAMPLE, "3", frozenset(f"{number:0>100}" for number in range(1000)))
    with raises(LimitExceeded, ""):
        submit(start(max_message_mib=0.01).as_("client"), many)


def test_open_requests_of_one_caller_are_limited(start: Start) -> None:
    """Until one is over."""
    operator, other = start(max_open_requests=1).as_("operator"), Target(Granularity.CLIENT, "4")
    first = submit(operator)
    with pytest.raises(LimitExceeded):
        submit(operator, other)
    operator.change("cancel", first.id)
    assert submit(operator, other).is_open
