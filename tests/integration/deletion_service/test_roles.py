"""Every identity and role against every call: what may be done is answered, the rest refused and recorded."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import grpc
import pytest

from server.ledger import SITE, Ledger, Refusal, RequestFilter
from server.ledger.records import LastRetry
from server.ledger.request_store import Requests
from server.service.calls import CALLS, Role
from server.service.client import DeletionClient
from server.service.grpc_server import RunningServer, serve
from server.service.limits import Limits
from server.service.statuses import AccessDenied
from strategies.tls_files import TlsFiles
from tests import ledgers
from tests.certificates import Authority
from tests.deletion_service import SERVICE, LiveLoop, answer, submit
from tests.integration.deletion_service.conftest import As
from tests.raising import raises
from unlearning.errors import IllegalMove, InvalidRequest, RequestNotFound, UnknownClient
from unlearning.requests import Granularity, Status, Target

CLIENT_4 = Target(Granularity.CLIENT, "4")
FOURS_SAMPLE = Target(Granularity.SAMPLE, "4", frozenset({"a"}))

# Identities without a role: name in `Authority.certify`, units, common names where not one.
NO_ROLE: Mapping[str, tuple[tuple[str, ...], tuple[str, ...] | None]] = {
    "no-unit": ((), None),
    "another-unit": (("admin",), None),
    "capital-unit": (("Operator",), None),
    "two-units": (("operator", "client"), None),
    "no-name": (("operator",), ()),
    "two-names": (("operator",), ("ada", "bob")),
    "blank-name": (("operator",), (" ada",)),
}


@pytest.fixture(scope="session")
def identities(authority: Authority, identities: dict[str, TlsFiles]) -> dict[str, TlsFiles]:
    """Also a client that is not of the federation, and one certificate for each way of having no role."""
    without = {name: authority.certify(name, *units, names=names) for name, (units, names) in NO_ROLE.items()}
    return {**identities, **without, "stranger client": authority.certify("99", "client")}


@pytest.fixture(scope="module")
def matrix(
    tmp_path_factory: pytest.TempPathFactory, identities: dict[str, TlsFiles]
) -> Iterator[tuple[RunningServer, Ledger]]:
    """One service for all pairs of caller and call, with so much room that nobody reaches a limit."""
    directory = tmp_path_factory.mktemp("service")
    ledger = Ledger.open(f"sqlite:///{directory / 'ledger.db'}")
    limits = Limits(calls_per_s=10_000.0)
    running = serve(ledger, directory, "127.0.0.1:0", identities["server"], limits=limits)
    yield running, ledger
    running.stop(0)
    ledger.close()


Call = Callable[[str, str], tuple[grpc.StatusCode, str, list[Refusal]]]


@pytest.fixture
def call(matrix: tuple[RunningServer, Ledger], identities: dict[str, TlsFiles]) -> Call:
    """Sends an empty message to any call as somebody; gives status, message and what was recorded."""
    service, ledger = matrix

    def send(who: str, name: str) -> tuple[grpc.StatusCode, str, list[Refusal]]:
        before = max((item.sequence for item in ledger.refusals()), default=0)
        with grpc.secure_channel(service.address, identities[who].channel_credentials()) as channel:
            status, message = answer(channel, name, b"")
        return status, message, ledger.refusals(after=before)

    return send


# The table


def test_every_call_of_the_protocol_has_a_rule() -> None:
    """A new call without a rule fails here, and is refused to everybody meanwhile."""
    assert set(CALLS) == set(SERVICE.methods_by_name)


# Who may call what, written down a second time and by role, as docs/reference-roles.md has it.
DECISIONS = {
    *("AcceptRequest", "ExtendRequest", "HoldRequest", "ReleaseRequest", "RefuseRequest"),
    *("AmendRequest", "RedactRequest"),
}
REFUSED = {
    "operator": DECISIONS,
    "officer": {"RetryRequest"},
    "auditor": {
        "SubmitRequest",
        "SubmitSamples",
        "CancelRequest",
        "RetryRequest",
        "RecheckRequest",
        *DECISIONS,
    },
    "client": {"ListClients", "ListRefusals", "VerifyLedger", "RetryRequest", "RecheckRequest", *DECISIONS},
}


@pytest.mark.parametrize("name", sorted(SERVICE.methods_by_name))
@pytest.mark.parametrize("role", list(Role))
def test_a_role_is_refused_exactly_what_is_not_its_own(call: Call, role: Role, name: str) -> None:
    """PERMISSION_DENIED and a record where the role may not; anything else gets as far as the service."""
    status, _, recorded = call(role, name)
    if name in REFUSED[role]:
        assert status is grpc.StatusCode.PERMISSION_DENIED
        assert [(item.role, item.call) for item in recorded] == [(role, name)]
    else:  # an empty message is no request and names none
        assert status in (
            grpc.StatusCode.OK,
            grpc.StatusCode.INVALID_ARGUMENT,
            grpc.StatusCode.NOT_FOUND,
        )


@pytest.mark.parametrize(
    ("who", "name"),
    [
        *((who, "GetRequest") for who in sorted(NO_ROLE)),
        *(("no-unit", name) for name in sorted({*SERVICE.methods_by_name} - {"GetRequest"})),
    ],
)
def test_a_certificate_without_a_role_opens_nothing(call: Call, who: str, name: str) -> None:
    """UNAUTHENTICATED, what to do, and a record under the name that the certificate has."""
    status, message, [refusal] = call(who, name)
    assert status is grpc.StatusCode.UNAUTHENTICATED
    assert "Ask the federation's operator for a certificate" in message
    assert (refusal.call, refusal.role) == (name, "")
    assert refusal.caller == ("" if NO_ROLE[who][1] is not None else who)


# Operators and officers


def test_an_operator_files_cancels_and_retries(as_: As, loop: LiveLoop) -> None:
    """Any client, a class, cancel and retry."""
    operator = as_("operator")
    submit(operator, CLIENT_4)
    assert (
        operator.change("cancel", submit(operator, Target(Granularity.CLASS, class_label=1)).id).status
        == "cancelled"
    )
    failed = submit(operator)
    loop.move(failed.id, Status.FAILED, retryable=True)
    assert operator.change("retry", failed.id).status is Status.SCHEDULED
    assert [item.submitted_by for item in operator.list_requests()] == ["ada"] * 3


def test_one_certificate_may_have_two_roles(as_: As, loop: LiveLoop, ledger: Ledger) -> None:
    """Operator and officer in one person: she retries and holds; what she files is filed as operator."""
    both = as_("both")
    request = submit(both)
    assert (request.submitted_by, request.submitted_role) == ("bea", "operator")
    assert both.change("hold", request.id, reason="a court keeps the data").is_held
    both.change("release", request.id)
    loop.move(request.id, Status.FAILED, retryable=True)
    assert both.change("retry", request.id).status is Status.SCHEDULED


def test_only_an_officer_files_a_request_that_is_held(as_: As, ledger: Ledger) -> None:
    """A hold is a decision; another caller's request with one is refused whole."""
    with raises(AccessDenied, "hold"):
        submit(as_("operator"), hold_reason="a court keeps the data")
    assert ledger.requests.select() == []
    filed = submit(as_("officer"), hold_reason="a court keeps the data")
    assert (filed.is_held, filed.hold_reason) == (True, "a court keeps the data")


@pytest.mark.parametrize("who", ["officer", "auditor"])
def test_an_officer_and_an_auditor_read_everything(as_: As, loop: LiveLoop, tmp_path: Path, who: str) -> None:
    """Requests of all, their story, reports, clients, refusals and the state of the ledger."""
    request = submit(as_("operator"))
    loop.complete(request.id, tmp_path / "reports", {"report.json": b"{}"})
    officer = as_(who)
    assert [item.id for item in officer.list_requests()] == [officer.get(request.id).id]
    assert len(list(officer.watch(request.id))) == 8
    assert officer.report(request.id).json == b"{}"
    assert len(officer.clients().clients) == 2
    assert officer.refusals() == []
    check = officer.verify_ledger()
    assert (check.first_broken, check.head_sequence, len(check.head_hash)) == (None, 7, 64)


# Clients


def test_a_client_files_follows_and_cancels_its_own(as_: As, loop: LiveLoop) -> None:
    """The whole way of a request about itself."""
    client = as_("client")
    request = submit(client, submitted_by="somebody else")
    assert request.submitted_by == "3"
    assert client.get(request.id) == request
    assert client.list_requests() == client.list_requests(client_id="3") == [request]
    loop.move(request.id, Status.SCHEDULED)
    assert client.change("cancel", request.id).status is Status.CANCELLED
    assert len(list(client.watch(request.id))) == 5


@pytest.mark.parametrize(
    "target", [CLIENT_4, FOURS_SAMPLE, Target(Granularity.CLASS, class_label=1)], ids=str
)
def test_a_client_files_nothing_about_others(as_: As, ledger: Ledger, target: Target) -> None:
    """Neither another client, nor its samples, nor a class, which concerns everybody."""
    with raises(AccessDenied, "data-of-others"):
        submit(as_("client"), target)
    assert ledger.requests.select() == []
    assert [item.detail["error"] for item in ledger.refusals()] == ["AccessDenied"]


@pytest.mark.parametrize(
    "act",
    [
        lambda client, request_id: client.get(request_id),
        lambda client, request_id: list(client.watch(request_id)),
        lambda client, request_id: client.change("cancel", request_id),
        lambda client, request_id: client.report(request_id),
        lambda client, request_id: client.events(request_id),
    ],
    ids=["get", "watch", "cancel", "report", "events"],
)
@pytest.mark.parametrize("target", [CLIENT_4, Target(Granularity.CLASS, class_label=1)], ids=str)
def test_requests_of_others_do_not_exist_for_a_client(
    as_: As, ledger: Ledger, act: Any, target: Target
) -> None:
    """The answer is the one for an unknown id; the record says what it was."""
    other = submit(as_("operator"), target)
    client = as_("client")
    with pytest.raises(RequestNotFound) as hidden:
        act(client, other.id)
    with pytest.raises(RequestNotFound) as missing:
        act(client, "r-000099")
    assert str(hidden.value).replace(other.id, "r-000099") == str(missing.value)
    with pytest.raises(RequestNotFound) as in_another_form:
        act(client, "r-1")
    assert str(in_another_form.value).replace("r-1", "r-000099") == str(missing.value)
    assert ledger.requests.get(other.id).status is Status.RECEIVED
    first, second, third = ledger.refusals()
    assert "not about itself" in first.reason
    assert "not about itself" not in second.reason
    assert "not about itself" in third.reason


def test_nothing_is_read_of_a_request_that_a_client_may_not_see(
    as_: As, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request with a million ids would take longer to read than an unknown one to miss."""
    other = submit(as_("operator"), FOURS_SAMPLE)
    read: list[str] = []
    get = Requests.get
    monkeypatch.setattr(
        Requests, "get", lambda self, request_id: read.append(request_id) or get(self, request_id)
    )
    with pytest.raises(RequestNotFound):
        as_("client").get(other.id)
    assert read == []


def test_a_client_lists_its_own_requests_only(as_: As) -> None:
    """Asking for all gives its own; asking for another's is refused, and so is their number."""
    submit(as_("operator"), CLIENT_4)
    client = as_("client")
    assert client.list_requests() == []
    assert client.totals([RequestFilter(), RequestFilter(client_id="3")]) == (0, 0)
    with raises(AccessDenied, "requests-of-others"):
        client.list_requests(client_id="4")
    with raises(AccessDenied, "requests-of-others"):
        client.totals([RequestFilter(), RequestFilter(client_id="4")])


def test_a_client_does_not_cancel_what_the_operator_ordered(as_: As, ledger: Ledger) -> None:
    """It sees the request about itself, but an order to forget a poisoner stands."""
    ordered = submit(as_("operator"))
    client = as_("client")
    assert client.get(ordered.id).status is Status.RECEIVED
    with raises(AccessDenied, "filed-by-another"):
        client.change("cancel", ordered.id)
    assert ledger.requests.get(ordered.id).status is Status.RECEIVED


def test_a_client_does_not_cancel_what_an_operator_of_its_name_filed(
    as_: As, ledger: Ledger, loop: LiveLoop
) -> None:
    """Two certificates with one common name are two callers; a request without a recorded role is neither's."""
    ordered = _filed(ledger, "3", "operator")
    with raises(AccessDenied, "filed-by-another"):
        as_("client").change("cancel", ordered)
    loop.move(ordered, Status.FAILED)
    older = _filed(ledger, "3", None)
    with raises(AccessDenied, "filed-by-another"):
        as_("client").change("cancel", older)


def test_a_client_cancels_what_its_site_filed(as_: As, ledger: Ledger) -> None:
    """The ServerApp files in a role of its own, which no certificate can have."""
    by_name_only = _filed(ledger, "site of client 3", "operator")
    with pytest.raises(AccessDenied):
        as_("client").change("cancel", by_name_only)
    as_("operator").change("cancel", by_name_only)
    assert as_("client").change("cancel", _filed(ledger, "site of client 3", SITE)).status is Status.CANCELLED


def _filed(ledger: Ledger, submitted_by: str, role: str | None) -> str:
    return ledgers.submit(
        ledger,
        method="puf-special",
        key=f"{submitted_by}/{role}",
        submitted_by=submitted_by,
        submitted_role=role,
    ).id


def test_a_certificate_of_an_unknown_client_learns_no_names(as_: As) -> None:
    """The list of clients, which helps an operator, is not shown."""
    with raises(UnknownClient, "certificate-of-no-client") as caught:
        submit(as_("stranger client"), Target(Granularity.CLIENT, "99"))
    assert "Known" not in str(caught.value)


def test_a_client_that_watches_sees_figures_but_no_names(as_: As, loop: LiveLoop) -> None:
    """Rounds carry who took part and whose requests were served; a client gets neither."""
    client = as_("client")
    request = submit(client)
    loop.round(1, "unlearning", request.id, "r-000077", loss=0.5, participants=["4"], failed={"4": "away"})
    loop.move(request.id, Status.FAILED)
    [record] = [item for item in client.watch(request.id) if hasattr(item, "metrics")]
    assert (record.request_ids, record.metrics) == ((request.id,), {"loss": 0.5})
    assert client.rounds() == [record]


def test_a_client_does_not_read_what_happened_to_others(as_: As) -> None:
    """The events of all requests are for operators and officers; a client names its own."""
    own, other = submit(as_("client")), submit(as_("operator"), CLIENT_4)
    with raises(InvalidRequest, "events-of-all"):
        as_("client").events()
    assert [item.request_id for item in as_("client").events(own.id)[0]] == [own.id]
    assert {own.id, other.id} <= {item.request_id for item in as_("officer").events()[0]}


# Without certificates


def test_on_loopback_without_tls_the_caller_is_operator_and_officer(
    client: DeletionClient, loop: LiveLoop, ledger: Ledger
) -> None:
    """For the demo on one machine; refusals there are recorded too."""
    submit(client, Target(Granularity.CLASS, class_label=1))
    assert client.change("hold", "r-000001", reason="a court keeps the data").is_held
    with pytest.raises(IllegalMove):
        client.change("retry", "r-000001")
    assert [(item.caller, item.role) for item in client.refusals()] == [("local", "operator")]


def test_a_name_with_control_characters_is_refused(client: DeletionClient, loop: LiveLoop) -> None:
    """A declared name ends up in terminals."""
    with raises(InvalidRequest, "caller-name"):
        submit(client, submitted_by="a\x1b[2J")


def test_a_client_stays_within_the_safe_ranges(as_: As, ledger: Ledger) -> None:
    """A step of 100 destroys everybody's model: refused to a client, recorded, and an operator's to choose."""
    with pytest.raises(InvalidRequest):
        submit(as_("client"), parameters={"unlearning_rate": 100})
    assert [refusal.caller for refusal in ledger.refusals()] == ["3"]
    assert submit(as_("operator"), parameters={"unlearning_rate": 100}).parameters["unlearning_rate"] == 100


@pytest.mark.parametrize("points", [-1.0, 101.0, float("nan"), float("inf")])
def test_an_accepted_loss_is_a_number_of_points(as_: As, loop: LiveLoop, points: float) -> None:
    """From 0 to 100; anything else is refused before the retry."""
    request = submit(as_("operator"))
    loop.move(request.id, Status.FAILED, retryable=True)
    with raises(InvalidRequest, "accepted-loss"):
        as_("operator").change("retry", request.id, accept_score_loss=points)


def test_who_accepts_a_loss_is_in_the_ledger_by_the_certificate(
    as_: As, loop: LiveLoop, ledger: Ledger
) -> None:
    """A client cannot accept it; an operator's name is not what it calls itself."""
    request = submit(as_("operator"))
    loop.move(request.id, Status.FAILED, retryable=True)
    with pytest.raises(AccessDenied):
        as_("client").change("retry", request.id, accept_score_loss=30)
    as_("operator").change("retry", request.id, by="somebody else", accept_score_loss=30)
    assert ledger.requests.last_retry(request.id) == LastRetry(accepted_loss=30.0, accepted_by="ada")
