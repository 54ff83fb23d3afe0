"""What the deletion service refuses, over real gRPC, and how the refusal arrives."""

import logging
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import grpc
import pytest

from server.ledger import Ledger, LedgerUnavailable, LimitExceeded, RequestFilter
from server.ledger.request_store import Requests
from server.service import client as client_module
from server.service import deletion_pb2 as pb
from server.service.client import DeletionClient
from server.service.grpc_server import RunningServer
from server.service.statuses import STATUS_OF, AccessDenied, NotAuthenticated, ServiceUnavailable
from tests.deletion_service import ALL_OF_3, FORGETTING, SAMPLES_OF_3, LiveLoop, answer, submit
from tests.integration.deletion_service.conftest import Command
from unlearning import errors
from unlearning.errors import (
    ConflictingRequest,
    IllegalMove,
    InvalidRequest,
    RequestError,
    RequestNotFound,
    UnknownClient,
    UnknownMethod,
    UnsupportedRequest,
)
from unlearning.methods.puf import PufSpecial
from unlearning.methods.registry import METHODS
from unlearning.requests import DeletionRequest, Granularity, Target

# Refusals


def _key_of_another(client: DeletionClient, loop: LiveLoop) -> None:
    submit(client, idempotency_key="k")
    submit(client, Target(Granularity.CLIENT, "4"), idempotency_key="k")


def _cancel_completed(client: DeletionClient, loop: LiveLoop) -> None:
    request = submit(client)
    loop.move(request.id, *FORGETTING)
    client.change("cancel", request.id)


def _report_too_early(client: DeletionClient, loop: LiveLoop) -> None:
    client.report(submit(client).id)


@pytest.mark.parametrize(
    ("act", "error"),
    [
        (lambda c, _: submit(c, Target(Granularity.CLIENT, "9")), UnknownClient),
        (lambda c, _: submit(c, method="magic"), UnknownMethod),
        (lambda c, _: submit(c, parameters={"speed": 1}), InvalidRequest),
        (_key_of_another, ConflictingRequest),
        (_cancel_completed, IllegalMove),
        (lambda c, _: c.change("retry", submit(c).id), IllegalMove),
        (_report_too_early, IllegalMove),
        (lambda c, _: c.get("r-000099"), RequestNotFound),
        (lambda c, _: c.report("../secrets"), RequestNotFound),
        (lambda c, _: list(c.watch("r-000099")), RequestNotFound),
        (lambda c, _: c.list_requests(statuses=["done"]), InvalidRequest),
        (lambda c, _: c.totals([RequestFilter(text="x" * 201)]), InvalidRequest),
        (lambda c, _: c.totals([RequestFilter()] * 51), InvalidRequest),
    ],
)
def test_a_refusal_arrives_as_the_same_error_with_its_message(
    client: DeletionClient,
    ledger: Ledger,
    loop: LiveLoop,
    act: Callable[[DeletionClient, LiveLoop], object],
    error: type[RequestError],
) -> None:
    """The client raises what admission raised, with the sentence that the ledger keeps of it."""
    with pytest.raises(error) as caught:
        act(client, loop)
    assert type(caught.value) is error
    assert str(caught.value) == ledger.refusals()[-1].reason


def test_a_method_that_cannot_serve_the_granularity_is_refused(
    client: DeletionClient, loop: LiveLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The refusal names what the method can do. A method that forgets classes only stands in."""
    method = PufSpecial()
    method.info = replace(method.info, granularities=frozenset({Granularity.CLASS}))
    monkeypatch.setitem(METHODS, "puf-special", method)  # type: ignore[arg-type]  # a dict behind a Mapping
    with pytest.raises(UnsupportedRequest):
        submit(client)


@pytest.mark.parametrize(
    ("target", "parameters", "message"),
    [
        ({}, "", "Unknown granularity ''"),
        ({"granularity": "client"}, "", "must name a client"),
        (SAMPLES_OF_3, "", "at least one sample id"),
        ({**SAMPLES_OF_3, "sample_ids": ["1", "2", "1"]}, "", "1 repetition(s)"),
        ({**SAMPLES_OF_3, "sample_ids": [" 1"]}, "", "Malformed sample id"),
        ({**SAMPLES_OF_3, "sample_ids": ["a\nb"]}, "", "Malformed sample id"),
        ({**ALL_OF_3, "sample_ids": ["1"]}, "", "takes no sample ids"),
        ({"granularity": "class", "class_label": -1}, "", "class label of 0 or more"),
        (ALL_OF_3, "{", "The parameters are not JSON"),
        (ALL_OF_3, "[1]", "The parameters must be a JSON object, got list"),
        (ALL_OF_3, '"text"', "The parameters must be a JSON object, got str"),
    ],
)
def test_a_malformed_request_is_an_invalid_argument(
    service: RunningServer, loop: LiveLoop, target: dict[str, Any], parameters: str, message: str
) -> None:
    """Callers in any language get a status and a sentence."""
    asked = pb.SubmitRequestRequest(target=target, method="puf-special", parameters_json=parameters)
    with grpc.insecure_channel(service.address) as channel:
        status, details = answer(channel, "SubmitRequest", asked.SerializeToString())
    assert status is grpc.StatusCode.INVALID_ARGUMENT
    assert message in details


def test_every_refusal_has_a_status() -> None:
    """The table names each subclass of RequestError, so none can arrive as an internal error."""
    refusals = {
        error
        for error in vars(errors).values()
        if isinstance(error, type) and issubclass(error, RequestError)
    }
    of_the_service = {AccessDenied, NotAuthenticated, LimitExceeded, LedgerUnavailable, ServiceUnavailable}
    assert set(STATUS_OF) == refusals | of_the_service | {errors.VersionMismatch}


def test_an_unexpected_error_shows_the_caller_only_a_reference(
    client: DeletionClient,
    ledger: Ledger,
    loop: LiveLoop,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The log has the cause under the same reference."""

    def broken(self: Requests, request_id: str) -> DeletionRequest:
        raise ZeroDivisionError("secret detail")

    monkeypatch.setattr(Requests, "get", broken)
    with caplog.at_level(logging.ERROR), pytest.raises(ServiceUnavailable) as caught:
        client.get("r-000001")
    reference = re.search(r"under reference ([0-9a-f]{12})", str(caught.value))
    assert reference is not None
    assert "secret" not in str(caught.value)
    assert reference.group(1) in caplog.text
    assert "secret detail" in caplog.text


def test_a_very_long_refusal_still_arrives(client: DeletionClient, loop: LiveLoop) -> None:
    """A message longer than gRPC's headers is cut instead of being lost."""
    with pytest.raises(InvalidRequest):
        submit(client, parameters={f"päräméter-{number}": 1 for number in range(500)})


@pytest.mark.parametrize(
    ("version", "said", "side"),
    [(0, "a protocol version before 1", "caller"), (2, "protocol version 2", "deletion service")],
)
def test_a_tool_of_another_version_gets_one_sentence(
    command: Command, ledger: Ledger, monkeypatch: pytest.MonkeyPatch, version: int, said: str, side: str
) -> None:
    """Whatever it calls; the service writes the same sentence down."""
    sentence = (
        f"The caller has {said} and the deletion service has 1: upgrade flower-unlearning at the {side}."
    )
    monkeypatch.setattr(client_module, "own_version", lambda: version)
    for arguments in (["clients"], ["watch", "r-000001"], ["request", "--client", "3"]):
        result = command(*arguments)
        assert result.exit_code == 3
        assert result.stderr.strip() == sentence
    assert {refusal.reason for refusal in ledger.refusals()} == {sentence}
