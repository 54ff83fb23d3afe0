"""The deletion service over HTTP: the same admission, roles, limits and refusals as over gRPC."""

import base64
import csv
import io
import json
import ssl
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
import pytest

from server.ledger import Ledger
from server.service import call_checks, deletion_service
from server.service.calls import Role
from server.service.grpc_server import RunningServer
from server.service.http_server import HttpOptions, serve_http
from server.service.tokens import remove_tokens
from strategies.tls_files import TlsFiles
from tests.certificates import Authority
from tests.deletion_service import (
    FIRST,
    NOW,
    SECOND,
    LiveLoop,
    connect,
    erasure,
    received,
    submit,
)
from tests.integration.deletion_service.conftest import JSON, As, StartWeb, Web, own, problem
from tests.raising import refuses
from tests.waiting import WAIT_S
from unlearning.gdpr import Particulars
from unlearning.requests import Granularity, Status, Target

# A request's way


def test_a_request_is_filed_followed_and_cancelled(web: Web, ledger: Ledger) -> None:
    """By OpenDSR's names; the receipt has the request as it was sent, and the ledger who filed it in which role."""
    tool = web.as_("operator")
    body = json.dumps(erasure(FIRST, "a", "b")).encode()
    filed = tool.post("/requests", content=body, headers=JSON)
    assert filed.status_code == 201, filed.text
    assert base64.b64decode(filed.json()["encoded_request"]) == body
    assert (filed.json()["subject_request_id"], filed.json()["request_status"]) == (FIRST, "pending")
    request = ledger.requests.get(own(filed)["request_id"])
    assert (request.submitted_by, request.submitted_role, request.method) == (
        "tool",
        "operator",
        "retrain",
    )
    assert request.target.describe() == "2 samples of client 3"
    for name in (FIRST, request.id):
        assert tool.get(f"/requests/{name}").json()["request_status"] == "pending"
    assert tool.delete(f"/requests/{FIRST}").status_code == 202
    assert tool.get(f"/requests/{FIRST}").json()["request_status"] == "cancelled"
    assert ledger.requests.get(request.id).status is Status.CANCELLED


def test_a_replaced_request_is_followed_under_its_first_id(
    web: Web, loop: LiveLoop, as_: As, ledger: Ledger, tmp_path: Path
) -> None:
    """The submitter's own id, and the first one's, show state and report of the request that took its place."""
    tool = web.as_("operator")
    first = own(tool.post("/requests", json=erasure()))["request_id"]
    loop.move(first, Status.FAILED)
    second = as_("operator").change("retry", first, method="puf-regular").id
    for name in (FIRST, first):
        assert tool.get(f"/requests/{name}").json()["request_status"] == "pending"
    found = tool.get(f"/requests/{FIRST}").json()
    assert (found["subject_request_id"], found["extensions"]["flower-unlearning"]["request_id"]) == (
        FIRST,
        second,
    )
    assert ledger.requests.get(second).parameters["unlearning_rate"] > 0
    loop.complete(second, tmp_path / "reports", {"report.json": b'{"a": 1}', "report.html": b"<p>"})
    for name in (FIRST, first, second):
        assert tool.get(f"/requests/{name}/report").content == b'{"a": 1}'


def test_the_same_request_sent_again_is_the_same_request(web: Web, ledger: Ledger) -> None:
    """A tool that had no answer repeats itself: 200 and the same place; another content under the id is refused."""
    tool = web.as_("operator")
    first, again = (tool.post("/requests", json=erasure()) for _ in range(2))
    assert (first.status_code, again.status_code) == (201, 200)
    assert own(first)["request_id"] == own(again)["request_id"]
    assert first.headers["Location"] == again.headers["Location"] == f"/requests/{FIRST}"
    assert tool.get(first.headers["Location"]).status_code == 200
    assert len(ledger.requests.select()) == 1
    assert tool.post("/requests", json=erasure(client="4")).status_code == 409


def test_a_filtered_list_comes_whole_as_csv(web: Web, as_: As, monkeypatch: pytest.MonkeyPatch) -> None:
    """Page after page; a client gets its own, and nobody else's; formulas are harmless."""
    monkeypatch.setattr(deletion_service, "_PAGE", 2)
    for number in range(5):
        as_("operator").submit(
            Target(Granularity.CLIENT, "3" if number else "4"),
            particulars=Particulars(reference=f"=DSR-{number}"),
        )
    as_("operator").change("cancel", "r-000005")

    def rows(answer: httpx.Response) -> list[dict[str, str]]:
        assert (answer.status_code, answer.headers["content-type"]) == (200, "text/csv; charset=utf-8")
        return list(csv.DictReader(io.StringIO(answer.content.decode("utf-8-sig"))))

    found = rows(web.as_("auditor").get("/requests.csv?statuses=received&after=0"))
    assert [(row["id"], row["reference"]) for row in found] == [
        (f"r-00000{n}", f"'=DSR-{n - 1}") for n in range(1, 5)
    ]
    assert {row["client_id"] for row in rows(web.as_("3").get("/requests.csv"))} == {"3"}
    assert rows(web.as_("auditor").get("/requests.csv?statuses=failed")) == []
    assert web.as_("3").get("/requests.csv?client_id=4").status_code == 403


def test_report_and_certificate_are_the_files(web: Web, loop: LiveLoop, tmp_path: Path) -> None:
    """Byte for byte, also for an auditor; before the completion the answer says so."""
    tool, auditor = web.as_("operator"), web.as_("auditor")
    request_id = own(tool.post("/requests", json=erasure()))["request_id"]
    assert "its report comes with its completion" in problem(tool.get(f"/requests/{FIRST}/certificate"))
    contents = {"report.json": b'{"a": 1}', "report.html": b"<p>", "certificate.json": b'{"b":2}\n'}
    loop.complete(request_id, tmp_path / "reports", contents)
    for path, content in zip(("report", "report.html", "certificate"), contents.values(), strict=True):
        assert auditor.get(f"/requests/{request_id}/{path}").content == content
        assert tool.get(f"/requests/{FIRST}/{path}").content == content


def test_a_pruned_report_is_said_to_be_pruned_and_its_certificate_is_there(
    web: Web, ledger: Ledger, loop: LiveLoop, tmp_path: Path
) -> None:
    """Without the ledger's event a missing report is a missing file."""
    tool = web.as_("operator")
    request_id = own(tool.post("/requests", json=erasure()))["request_id"]
    loop.complete(request_id, tmp_path / "reports", {"certificate.json": b"{}"})
    assert "not in the service's state directory" in problem(tool.get(f"/requests/{FIRST}/report"))
    ledger.decisions.note_pruned(request_id, {}, by="retention", now=NOW)
    for path in ("report", "report.html"):
        answer = tool.get(f"/requests/{FIRST}/{path}")
        assert (answer.status_code, answer.json()["code"]) == (404, "report-pruned")
    assert tool.get(f"/requests/{FIRST}/certificate").content == b"{}"


# Who may what


@pytest.mark.parametrize("token", ["", "fu_wrong", "a" * 5000])
def test_without_a_token_nothing_is_let_in(web: Web, ledger: Ledger, token: str) -> None:
    """401, what to do, and a record; the token is in none of them."""
    answer = web.with_token(token or "x").post("/requests", json=erasure())
    assert answer.status_code == 401
    assert answer.headers["WWW-Authenticate"] == "Bearer"
    assert "Ask the federation's operator for a token with a role" in problem(answer)
    assert [(item.call, item.role) for item in ledger.refusals()] == [("SubmitRequest", "")]
    assert not token or token not in str(ledger.refusals())


def test_a_token_that_is_removed_opens_nothing_any_more(web: Web, tmp_path: Path) -> None:
    """At once, without a restart."""
    client = web.as_("3")
    assert client.post("/requests", json=erasure()).status_code == 201
    assert remove_tokens(tmp_path / "tokens.json", "3", Role.CLIENT) == 1
    assert client.get(f"/requests/{FIRST}").status_code == 401


def test_roles_are_those_of_grpc(web: Web, ledger: Ledger) -> None:
    """An auditor files nothing; a client files about itself, may leave its id out, and stays in the safe ranges."""
    auditor, client = web.as_("auditor"), web.as_("3")
    assert auditor.post("/requests", json=erasure()).status_code == 403
    assert "'olga' is auditor by its token" in problem(auditor.post("/requests", json=erasure()))
    assert client.post("/requests", json=erasure(client="4")).status_code == 403
    whole = {"flower-unlearning": {"scope": "client"}}
    beyond = {"method": "puf-special", "parameters": {"unlearning_rate": 100}, "scope": "client"}
    step = {"flower-unlearning": beyond}
    assert "Only an operator may ask" in problem(client.post("/requests", json=erasure(extensions=step)))
    assert client.post("/requests", json=erasure(extensions=whole)).status_code == 201
    assert [item.target.client_id for item in ledger.requests.select()] == ["3"]
    assert len(ledger.refusals()) == 4


def test_requests_of_others_do_not_exist_for_a_client(web: Web, ledger: Ledger) -> None:
    """By its filer's id, by this service's id, and unknown ones: word for word the same; the record says which."""
    other = own(web.as_("operator").post("/requests", json=erasure(client="4")))["request_id"]
    client = web.as_("3")
    assert client.get(f"/requests/{FIRST}").json() == client.get(f"/requests/{SECOND}").json()
    hidden, missing = (client.get(f"/requests/{name}").text for name in (other, "r-000099"))
    assert hidden.replace(other, "r-000099") == missing
    assert ["not about itself" in item.reason for item in ledger.refusals()] == [False, False, True, False]
    assert FIRST not in str(ledger.refusals())
    assert client.delete(f"/requests/{FIRST}").status_code == 404


def test_one_caller_has_one_rate_over_both_transports(start_web: StartWeb) -> None:
    """What client 3 called over gRPC counts over HTTP."""
    web = start_web(calls_per_s=0.01)
    web.service.as_("client").methods()
    answer = web.as_("3").get(f"/requests/{FIRST}")
    assert answer.status_code == 429
    assert "Too many calls: '3' may make 0.01 a second" in problem(answer)


# Bad input


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b"", "regulation: "),
        (b"{", "all of it: "),
        (b"[" * 100_000, "all of it: "),
        (b'{"a": "\\ud800"}', "all of it: "),
        (json.dumps(erasure(subject_request_type="access")).encode(), "subject_request_type"),
        (json.dumps(erasure(subject_request_id="r-000001")).encode(), "are this service's own"),
        (json.dumps(erasure(subject_request_id="a/b")).encode(), "subject_request_id"),
        (json.dumps(erasure(submitted_time="yesterday")).encode(), "submitted_time"),
        (json.dumps(erasure(submitted_time="2026-02-28T15:00:00")).encode(), "submitted_time"),
        (json.dumps(erasure(mistyped=1)).encode(), "mistyped"),
        (json.dumps(erasure(submitted_time="0001-01-01")).encode(), "received-on"),
        (json.dumps(erasure(submitted_time="2990-01-01T00:00:00Z")).encode(), "received-on"),
        (json.dumps(erasure(extensions={"flower-unlearning": {"metod": "x"}})).encode(), "metod"),
        (json.dumps(erasure(status_callback_urls=["https://a.example/"])).encode(), "makes no callbacks"),
        (json.dumps(erasure(FIRST, "a", "a")).encode(), "1 repetition(s)"),
        (json.dumps(erasure(client="")).encode(), "must name a client"),
    ],
)
def test_bad_input_is_refused_with_a_sentence(web: Web, ledger: Ledger, body: bytes, sentence: str) -> None:
    """Nothing is filed, the refusal is recorded, and no identity is repeated."""
    answer = web.as_("operator").post("/requests", content=body, headers=JSON)
    assert answer.status_code == 400
    assert sentence in problem(answer)
    assert ledger.requests.select() == []
    assert len(ledger.refusals()) == 1


def test_admission_is_that_of_grpc(web: Web, loop: LiveLoop) -> None:
    """An unknown client is not found."""
    assert web.as_("operator").post("/requests", json=erasure(client="99")).status_code == 404


@pytest.mark.parametrize(("path", "method"), [("/", "GET"), ("/requests", "PUT"), ("/requests/x", "PUT")])
def test_what_is_not_here_is_said(web: Web, path: str, method: str) -> None:
    """With where to look."""
    answer = httpx.request(method, web.url + path, trust_env=False, timeout=WAIT_S)
    assert answer.status_code in (404, 405)
    assert "/openapi.json" in problem(answer)


def test_the_description_has_the_requests_form(web: Web) -> None:
    """Without a token; routes and description come from one table."""
    document = web.fetch("/openapi.json").json()
    assert "ErasureRequest" in document["components"]["schemas"]
    assert "/requests/{id}/certificate" in document["paths"]
    assert web.fetch("/discovery").json()["api_version"] == "2.0"


def test_the_description_has_what_is_refused(web: Web) -> None:
    """Numbers below 0, and the key of callbacks where there are none."""
    paths = web.fetch("/openapi.json").json()["paths"]
    numbers = [
        one for one in paths["/requests"]["get"]["parameters"] if one["schema"].get("type") == "integer"
    ]
    assert {one["name"]: one["schema"]["minimum"] for one in numbers} == {"after": 0, "offset": 0, "limit": 0}
    assert web.fetch("/callback-key.pem").status_code == 404
    assert "404" in paths["/callback-key.pem"]["get"]["responses"]


# Limits


def _head(token: str, *lines: str, asked: str = "POST /requests") -> bytes:
    head = [f"{asked} HTTP/1.1", "Host: here", f"Authorization: Bearer {token}", *lines, "", ""]
    return "\r\n".join(head).encode()


@pytest.mark.parametrize("head", ["Content-Length: 20000", "Transfer-Encoding: chunked"])
def test_a_body_over_the_limit_is_refused(start_web: StartWeb, ledger: Ledger, head: str) -> None:
    """By what it says it is before any of it is read, or as soon as there is too much."""
    web = start_web(max_message_mib=0.01)
    with connect(web.address) as connection:
        connection.sendall(_head(web.tokens["3"], head))
        if "chunked" in head:
            connection.sendall(b"4e20\r\n" + b"x" * 20_000 + b"\r\n")
        assert received(connection).startswith(b"HTTP/1.1 413")
    assert [item.caller for item in ledger.refusals()] == ["3"]


def test_a_body_that_trickles_is_refused_and_recorded(start_web: StartWeb, ledger: Ledger) -> None:
    """It is waited for no longer than a message over gRPC."""
    web = start_web(body_timeout_s=0.1)
    with connect(web.address) as connection:
        connection.sendall(_head(web.tokens["3"], "Content-Length: 20"))
        assert received(connection).startswith(b"HTTP/1.1 408")
    assert "did not come within 0.1 s" in ledger.refusals()[0].reason


def test_bodies_that_do_not_come_keep_nobody_else_waiting(start_web: StartWeb) -> None:
    """A client holds its own places and no thread; an operator is answered."""
    web = start_web(max_calls_per_caller=2, calls_per_s=1000.0)
    with ExitStack() as opened:
        for _ in range(40):
            connection = opened.enter_context(connect(web.address))
            connection.sendall(_head(web.tokens["3"], "Content-Length: 20"))
        assert web.as_("operator").post("/requests", json=erasure()).status_code == 201
        assert "is calling 2 times already" in problem(web.as_("3").get(f"/requests/{FIRST}"))


def test_who_may_not_call_is_refused_before_the_body(web: Web) -> None:
    """Nothing is read of what an auditor, or somebody unknown, would file."""
    for token, status in ((web.tokens["auditor"], b"403"), ("unknown", b"401")):
        with connect(web.address) as connection:
            connection.sendall(_head(token, "Content-Length: 20"))
            assert received(connection).startswith(b"HTTP/1.1 " + status)


def test_unknown_tokens_hold_no_place_of_others(start_web: StartWeb, monkeypatch: pytest.MonkeyPatch) -> None:
    """They wait for their refusal, as all do who call too often, and an operator is answered meanwhile."""
    monkeypatch.setattr(call_checks, "PENALTY_S", 60.0)
    web = start_web(calls_per_s=0.01)
    with ExitStack() as opened:
        for _ in range(20):
            opened.enter_context(connect(web.address)).sendall(_head("unknown", "Content-Length: 20"))
        assert web.as_("operator").post("/requests", json=erasure()).status_code == 201


@pytest.mark.parametrize(
    "junk", [b"\x16\x03\x01" + bytes(300), b"GET\r\n\r\n", b"A" * 40_000, b"PRI * HTTP/2.0\r\n\r\n"]
)
def test_what_is_no_http_is_hung_up_on(web: Web, junk: bytes) -> None:
    """And the service goes on."""
    with connect(web.address) as connection:
        connection.sendall(junk)
        with suppress(ConnectionResetError):
            assert b"200" not in received(connection)
    assert web.as_("3").post("/requests", json=erasure()).status_code == 201


# Where


@pytest.mark.parametrize("address", ["0.0.0.0:0", "example.org:0"])
def test_beyond_loopback_there_is_tls(service: RunningServer, tmp_path: Path, address: str) -> None:
    """A token in plain text would be anybody's."""
    with refuses("http"):
        serve_http(service.core, HttpOptions(address=address, tokens=tmp_path / "tokens.json"), tmp_path)


def test_with_tls_the_calls_are_the_same(
    start_web: StartWeb, authority: Authority, identities: dict[str, TlsFiles]
) -> None:
    """The service shows the certificate that it has for gRPC; a caller needs none."""
    web = start_web(identities["server"])
    context = ssl.create_default_context(cafile=str(authority.file))
    with httpx.Client(verify=context, trust_env=False, timeout=WAIT_S) as client:
        answer = client.post(
            f"{web.url}/requests", json=erasure(), headers={"Authorization": f"Bearer {web.tokens['3']}"}
        )
    assert answer.status_code == 201


def test_a_port_is_not_shared(web: Web, tmp_path: Path) -> None:
    """A second service would take half of the calls."""
    options = HttpOptions(address=web.address, tokens=tmp_path / "tokens.json")
    with refuses("http"):
        serve_http(web.service.core, options, tmp_path)


def test_both_transports_show_one_ledger(web: Web) -> None:
    """What was filed over gRPC is seen over HTTP by this service's own id."""
    request = submit(web.service.as_("operator"), Target(Granularity.CLIENT, "4"))
    seen = web.as_("4").get(f"/requests/{request.id}")
    assert seen.json()["subject_request_id"] == request.id
