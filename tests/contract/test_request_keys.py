"""A request's key belongs to its submitter: two callers with equal keys never meet, over gRPC and HTTP."""

from collections.abc import Iterator
from datetime import date
from itertools import combinations
from pathlib import Path

import httpx
import pytest
import sqlalchemy as sa

from server.federation.site_inbox import SiteRequests
from server.ledger import SITE, ClientRecord, Ledger, NewRequest, schema
from server.service.access import Caller
from server.service.calls import Role
from server.service.deletion_service import utc_now
from server.service.grpc_server import Core, serve
from server.service.http_server import HttpOptions, HttpServer, serve_http
from server.service.tokens import make_token
from tests.deletion_service import ANSWERED_S, LiveLoop, erasure
from tests.ledgers import NOW, live_at, submit
from tests.raising import raises
from tests.waiting import WAIT_S
from unlearning.errors import ConflictingRequest
from unlearning.gdpr import Particulars
from unlearning.requests import DeletionRequest, Granularity, Status, Target
from unlearning.runtime.json_codec import to_plain

SUBMITTERS = [
    *(("operator", name) for name in ("3", "4", "tool")),
    *(("client", name) for name in ("3", "4", "site of client 3")),
    *((SITE, name) for name in ("3", "site of client 3", "site of client 4")),
    *((None, name) for name in ("3", "tool", "run configuration")),
]
TOOL, CLIENT = Caller("tool", Role.OPERATOR), Caller("3", Role.CLIENT)
KEY = "opendsr:shared"
"""What the HTTP API makes of the id `shared`; over gRPC anybody may choose it."""


def test_submitters_with_one_key_have_a_request_each(ledger: Ledger) -> None:
    """Whatever two they are, each finds its own and files it once; nothing tells it of the other's."""
    filed = {
        (role, name): submit(
            ledger, Target(Granularity.CLIENT, f"{number}"), submitted_by=name, submitted_role=role
        )
        for number, (role, name) in enumerate(SUBMITTERS)
    }
    for (role, name), request in filed.items():
        again = submit(ledger, request.target, submitted_by=name, submitted_role=role)
        assert again == ledger.requests.find("key", name, role) == request
    assert all(filed[one].id != filed[other].id for one, other in combinations(SUBMITTERS, 2))
    assert ledger.requests.find("key", "ada", "operator") is None


@pytest.mark.parametrize("role", ["NULL", "'client'"])
def test_the_database_itself_has_one_request_of_a_submitters_key(
    ledger: Ledger, owner: sa.Connection, role: str
) -> None:
    """Also past the ledger's code and its triggers, and where the ledger does not know the role."""
    filed = submit(ledger, submitted_role=None if role == "NULL" else "client")
    columns = ", ".join(column.name for column in schema.requests.c if column.name != "number")
    copy = f"INSERT INTO requests ({columns}) SELECT {columns} FROM requests"
    with pytest.raises(sa.exc.IntegrityError, match=r"(?i)unique"):
        owner.execute(sa.text(copy))
    owner.rollback()
    assert ledger.requests.select() == [filed]


@pytest.fixture
def loop(ledger: Ledger) -> LiveLoop:
    return LiveLoop(ledger)


@pytest.fixture
def core(ledger: Ledger, loop: LiveLoop, tmp_path: Path) -> Iterator[Core]:
    running = serve(ledger, tmp_path / "reports", "127.0.0.1:0")
    yield running.core
    running.stop(0)


@pytest.fixture
def tokens(tmp_path: Path) -> dict[Caller, str]:
    return {
        caller: make_token(
            tmp_path / "tokens.json",
            caller.name,
            caller.role or Role.CLIENT,
            utc_now(),
            may_erase_clients=True,
        )
        for caller in (TOOL, CLIENT, Caller("3", Role.OPERATOR))
    }


@pytest.fixture
def web(core: Core, tmp_path: Path, tokens: dict[Caller, str]) -> Iterator[HttpServer]:
    server = serve_http(core, HttpOptions(address="127.0.0.1:0", tokens=tmp_path / "tokens.json"), tmp_path)
    yield server
    server.stop(0)


def over_grpc(core: Core, caller: Caller, client: str) -> DeletionRequest:
    """What the call answers to this caller, who has shown a certificate."""
    new = NewRequest(
        target=Target(Granularity.CLIENT, client),
        method="",
        submitted_by="",
        idempotency_key=KEY,
        particulars=Particulars(received_on=date(2024, 2, 28)),
    )
    return core.service.submit(caller, new)


@pytest.mark.parametrize("transport", ["gRPC", "HTTP"])
@pytest.mark.parametrize("victim", [TOOL, Caller("3", Role.OPERATOR)], ids=["tool", "operator 3"])
def test_a_client_that_files_under_an_operators_id_does_not_meet_it(
    core: Core, web: HttpServer, tokens: dict[Caller, str], ledger: Ledger, transport: str, victim: Caller
) -> None:
    """Before or after it: the operator's request is its own, by its own id, and is not cancelled by the client."""
    with httpx.Client(base_url=web.url, timeout=ANSWERED_S, trust_env=False) as http:
        as_victim, as_client = ({"Authorization": f"Bearer {tokens[caller]}"} for caller in (victim, CLIENT))
        if transport == "gRPC":
            squatted = over_grpc(core, CLIENT, "3").id
        else:
            answer = http.post("/requests", json=erasure("shared", client="3"), headers=as_client)
            squatted = answer.json()["extensions"]["flower-unlearning"]["request_id"]
        assert http.get("/requests/shared", headers=as_victim).status_code == 404
        filed = http.post("/requests", json=erasure("shared", client="4"), headers=as_victim)
        assert filed.status_code == 201, filed.text
        request_id = filed.json()["extensions"]["flower-unlearning"]["request_id"]
        assert over_grpc(core, victim, "4").id == request_id != squatted  # one caller over both
        assert http.delete("/requests/shared", headers=as_client).status_code == 202
        assert http.get("/requests/shared", headers=as_victim).json()["request_status"] == "pending"
        assert [ledger.requests.get(one).status for one in (squatted, request_id)] == [
            Status.CANCELLED,
            Status.RECEIVED,
        ]
        # By this service's id the operator sees the client's request, which its own id does not name.
        seen = http.get(f"/requests/{squatted}", headers=as_victim).json()
        assert seen["subject_request_id"] == squatted


@pytest.mark.parametrize("status", [Status.CANCELLED, Status.FAILED, Status.REFUSED])
def test_a_key_of_what_ended_without_a_deletion_is_used_up(
    core: Core, web: HttpServer, tokens: dict[Caller, str], ledger: Ledger, loop: LiveLoop, status: Status
) -> None:
    """409 over both, with its status and what to do; never a receipt of what will not be carried out."""
    headers = {"Authorization": f"Bearer {tokens[TOOL]}"}
    loop.move(over_grpc(core, TOOL, "3").id, status)
    with raises(ConflictingRequest, "key-of-an-ended-request", request="r-000001"):
        over_grpc(core, TOOL, "3")
    answer = httpx.post(
        f"{web.url}/requests", json=erasure("shared"), headers=headers, trust_env=False, timeout=WAIT_S
    )
    assert answer.status_code == 409
    assert f"it is {status}" in answer.json()["detail"]
    assert len(ledger.requests.select()) == 1


@pytest.mark.parametrize("steps", [0, 1, 2, 5])
def test_what_goes_on_or_is_completed_is_answered_with_its_present_status(
    core: Core, loop: LiveLoop, web: HttpServer, tokens: dict[Caller, str], steps: int
) -> None:
    """A call that was lost on the wire is sent again, and gets a receipt of the same request as it is now."""
    way = [Status.SCHEDULED, Status.UNLEARNING, Status.RECOVERING, Status.VERIFYING, Status.COMPLETED]
    headers = {"Authorization": f"Bearer {tokens[TOOL]}"}
    filed = httpx.post(
        f"{web.url}/requests", json=erasure("shared"), headers=headers, trust_env=False, timeout=WAIT_S
    )
    assert filed.json()["request_status"] == "pending"
    loop.move("r-000001", *way[:steps])
    again = httpx.post(
        f"{web.url}/requests", json=erasure("shared"), headers=headers, trust_env=False, timeout=WAIT_S
    )
    assert again.status_code == 200
    own = again.json()["extensions"]["flower-unlearning"]
    assert (own["request_id"], own["status"]) == ("r-000001", ([Status.RECEIVED, *way])[steps])
    assert (
        again.json()["request_status"]
        == {0: "pending", 1: "pending", 2: "in_progress", 5: "completed"}[steps]
    )


def test_a_sites_request_that_travels_again_stays_accepted(ledger: Ledger) -> None:
    """It comes with each answer until the site has taken note, also after it was cancelled and a server restarted."""
    token = ledger.acquire_fence("loop", now=NOW)
    live_at(ledger, token, NOW).register_clients([ClientRecord("3")])
    filed = {"key": "k", "target": to_plain(Target(Granularity.CLIENT, "3")), "method": "puf-special"}
    for _ in range(2):
        requests = SiteRequests()
        requests.take(ledger, "3", {"site-requests": [filed]}, now=NOW)
        assert requests.answers["3"] == {"k": "accepted as r-000001"}
        ledger.decisions.cancel("r-000001", by="ada", now=NOW)
    assert ledger.refusals() == []
