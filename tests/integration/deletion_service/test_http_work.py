"""The work on requests over HTTP: lists, plans, decisions, a sandbox; and what is said of a call that is refused."""

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from server.ledger import APPROVAL, Ledger
from server.service.calls import VERBS, Role
from server.service.deletion_service import utc_now
from server.service.tokens import last_uses, make_token
from server.state_directory.files import TOKEN_USES
from tests.deletion_service import FIRST, SECOND, LiveLoop, erasure, submit
from tests.integration.deletion_service.conftest import JSON, StartWeb, Web, own, problem
from unlearning.requests import Granularity, Status, Target


def token_of(tmp_path: Path, name: str, role: Role, **rights: Any) -> str:
    return make_token(tmp_path / "tokens.json", name, role, utc_now(), **rights)


def pointers(answer: Any) -> list[str]:
    return [one["pointer"] for one in answer.json()["errors"]]


# Lists


def test_a_list_goes_page_by_page(web: Web) -> None:
    """In order of arrival, each by the id that its reader knows; filtered by state and client."""
    tool = web.as_("operator")
    for name, client in ((FIRST, "3"), (SECOND, "4")):
        tool.post("/requests", json=erasure(name, client=client))
    submit(web.service.as_("operator"), Target(Granularity.CLIENT, "4"))
    tool.delete(f"/requests/{SECOND}")
    listed = tool.get("/requests").json()["requests"]
    assert [one["subject_request_id"] for one in listed] == [FIRST, SECOND, "r-000003"]
    assert own(tool.get(f"/requests/{FIRST}")) == listed[0]["extensions"]["flower-unlearning"]
    both = "statuses=received&statuses=cancelled"
    for query, found in (
        ("statuses=cancelled", 1),
        ("client_id=4", 2),
        (both, 3),
        ("since=2990-01-01T00:00:00Z", 0),
    ):
        assert tool.get(f"/requests?{query}").json()["total"] == found
    first = tool.get("/requests?limit=2").json()
    then = tool.get(f"/requests?limit=2&after={first['last']}").json()
    assert [(len(page["requests"]), page["total"]) for page in (first, then)] == [(2, 3), (1, 1)]


def test_a_client_sees_its_own_requests_only(web: Web) -> None:
    """Also where it requests the list of another client, which is refused."""
    tool, client = web.as_("operator"), web.as_("3")
    tool.post("/requests", json=erasure(client="4"))
    tool.post("/requests", json=erasure(SECOND, client="3"))
    [seen] = client.get("/requests").json()["requests"]
    assert seen["extensions"]["flower-unlearning"]["client_id"] == "3"
    assert client.get("/requests?client_id=4").status_code == 403


@pytest.mark.parametrize(
    "query",
    [
        *("statuses=gone", "status=failed", "client_id=3&client_id=4", "after=x", "first=yesterday"),
        *("since=0.5", "since=20261120", "first=86400", "last=0", "first=86400&first=2026-11-20"),
    ],
)
def test_a_query_that_cannot_be_is_refused(web: Web, query: str) -> None:
    """The parameter is named; one that is passed over, or read as seconds since 1970, would show another list."""
    answer = web.as_("operator").get(f"/requests?{query}")
    assert answer.status_code == 400
    assert query.partition("=")[0] in {one["parameter"] for one in answer.json()["errors"]}


@pytest.mark.parametrize("query", ["order=due", "descending=true", "offset=1", "limit=1"])
def test_a_whole_list_has_no_pages(web: Web, query: str) -> None:
    """A part of it, or another order, is refused and not passed over."""
    answer = web.as_("operator").get(f"/requests.csv?{query}")
    assert answer.status_code == 400
    assert [one["parameter"] for one in answer.json()["errors"]] == [query.partition("=")[0]]
    taken = web.fetch("/openapi.json").json()["paths"]["/requests.csv"]["get"]["parameters"]
    assert query.partition("=")[0] not in {one["name"] for one in taken}


@pytest.mark.parametrize(
    "query",
    [
        f"after={'9' * 30}",
        "offset=-1",
        f"limit={2**63}",
        "text=%00",
        "client_id=%00",
        "since=2026-01-01T00:00",
    ],
)
def test_a_list_that_the_ledger_cannot_make_is_refused(web: Web, query: str) -> None:
    """Before it is asked for, by the name of what is wrong."""
    answer = web.as_("operator").get(f"/requests?{query}")
    assert answer.status_code == 400
    assert query.partition("=")[0].replace("_", " ") in answer.json()["detail"]


# Plans and decisions


def test_a_plan_files_nothing(web: Web, loop: LiveLoop, ledger: Ledger) -> None:
    """The document that would be filed goes to another path; the answer has every method."""
    loop.announce()
    found = web.as_("3").post("/plan", json=erasure(FIRST, "a", "b"))
    assert found.status_code == 200, found.text
    assert found.json()["target"] == "2 samples of client 3"
    assert "puf-special" in [one["method"] for one in found.json()["methods"]]
    assert ledger.requests.select() == []


def test_every_verb_has_a_path(web: Web) -> None:
    """From the one table of calls, with its sentence and its values."""
    document = web.fetch("/openapi.json").json()
    for name, verb in VERBS.items():
        described = document["paths"][f"/requests/{{id}}/{name}"]["post"]
        assert (described["operationId"], described["summary"]) == (f"{name}Request", verb.help)
        body = document["components"]["schemas"][f"{name.capitalize()}Values"]
        assert set(body.get("properties", {})) == set(verb.values)


def test_people_decide_over_http(web: Web, ledger: Ledger) -> None:
    """The answer is the request as it is now, and the ledger names who decided."""
    officer = web.as_("officer")
    request_id = own(officer.post("/requests", json=erasure(submitted_time=utc_now().isoformat())))[
        "request_id"
    ]
    held = officer.post(f"/requests/{FIRST}/hold", json={"reason": "a lawsuit"})
    assert (own(held)["is_held"], own(held)["hold_reason"]) == (True, "a lawsuit")
    extended = officer.post(f"/requests/{FIRST}/extend", json={"days": 30, "reason": "many requests"})
    assert own(extended)["extended_days"] == 30
    assert not own(officer.post(f"/requests/{FIRST}/release"))["is_held"]
    refused = officer.post(f"/requests/{FIRST}/refuse", json={"reason": "a law says to keep it"})
    assert (own(refused)["status"], own(refused)["refusal_reason"]) == ("refused", "a law says to keep it")
    assert {event.actor for event in ledger.events.all() if event.request_id == request_id} == {"olaf"}
    assert web.as_("operator").post(f"/requests/{request_id}/retry", json={}).status_code == 409


def test_only_whose_role_decides_may_decide(web: Web) -> None:
    """As over gRPC: neither a client nor an operator holds a request."""
    for who, name in (("3", FIRST), ("operator", SECOND)):
        caller = web.as_(who)
        caller.post("/requests", json=erasure(name))
        assert caller.post(f"/requests/{name}/hold", json={"reason": "x"}).status_code == 403


def test_a_request_can_be_held_from_the_start(web: Web, ledger: Ledger) -> None:
    """It is filed and held in one: no round comes in between."""
    own_part = {"flower-unlearning": {"client_id": "3", "hold_reason": "a lawsuit"}}
    filed = web.as_("officer").post("/requests", json=erasure(FIRST, "a", extensions=own_part))
    assert (own(filed)["is_held"], own(filed)["hold_reason"]) == (True, "a lawsuit")
    assert ledger.requests.get("r-000001").is_held


@pytest.mark.parametrize(
    ("verb", "body", "pointer"),
    [
        ("hold", {}, "#/reason"),
        ("hold", {"reason": " "}, "#/reason"),
        ("hold", {"reason": "x", "dyas": 3}, "#/dyas"),
        ("extend", {"days": "30", "reason": "x"}, "#/days"),
        ("extend", {"days": 99, "reason": "x"}, "#/days"),
        ("retry", {"accept_score_loss": 101}, "#/accept_score_loss"),
        ("amend", {"ground": "z"}, "#/ground"),
    ],
)
def test_a_decision_that_cannot_be_is_refused_with_its_field(
    web: Web, ledger: Ledger, verb: str, body: dict[str, Any], pointer: str
) -> None:
    """Whether the document is malformed or the value cannot be; nothing changes."""
    caller = web.as_("operator" if verb == "retry" else "officer")
    caller.post("/requests", json=erasure())
    answer = caller.post(f"/requests/{FIRST}/{verb}", json=body)
    assert answer.status_code == 400, answer.text
    assert pointers(answer) == [pointer]
    assert [event.kind for event in ledger.events.all()].count("submitted") == 1
    assert ledger.requests.get("r-000001").status is Status.RECEIVED


# A whole client


@pytest.mark.parametrize("samples", [{"subject_identities": []}, {}])
def test_samples_that_are_missing_erase_no_client(web: Web, ledger: Ledger, samples: dict[str, Any]) -> None:
    """An empty list, or none, is a mistake of the tool and not the wish to forget a whole hospital."""
    asked = erasure(extensions={"flower-unlearning": {"client_id": "3"}})
    del asked["subject_identities"]
    answer = web.as_("operator").post("/requests", json=asked | samples)
    assert (answer.status_code, answer.json()["code"]) == (400, "no-identities")
    assert pointers(answer) == ["#/subject_identities"]
    assert ledger.requests.select() == []


def test_a_whole_client_with_samples_is_refused(web: Web) -> None:
    """One of the two is not meant."""
    own_part = {"flower-unlearning": {"client_id": "3", "scope": "client"}}
    answer = web.as_("operator").post("/requests", json=erasure(FIRST, "a", extensions=own_part))
    assert (answer.status_code, answer.json()["code"]) == (400, "scope")


@pytest.mark.parametrize("path", ["/requests", "/plan"])
def test_a_whole_client_needs_a_right_of_the_token(
    web: Web, tmp_path: Path, ledger: Ledger, loop: LiveLoop, path: str
) -> None:
    """Whatever its role is; samples may be filed without the right."""
    loop.announce()
    tool = web.with_token(token_of(tmp_path, "plain", Role.OPERATOR))
    answer = tool.post(path, json=erasure())
    assert (answer.status_code, answer.json()["code"]) == (403, "erase-clients")
    assert pointers(answer) == ["#/extensions/flower-unlearning/scope"]
    assert [item.caller for item in ledger.refusals()] == ["plain"]
    assert tool.post(path, json=erasure(FIRST, "a")).status_code in (200, 201)


# Problems


def test_a_refusal_is_a_problem_document(web: Web) -> None:
    """RFC 9457: a type that programs compare, a sentence for people, and the part that is wrong."""
    answer = web.as_("operator").post("/requests", json=erasure(client="99"))
    document = answer.json()
    assert answer.headers["content-type"] == "application/problem+json"
    assert document["type"] == "urn:flower-unlearning:problem:UnknownClient"
    assert (document["title"], document["status"], document["code"]) == (
        "Unknown client",
        404,
        "no-such-client",
    )
    assert pointers(answer) == ["#/extensions/flower-unlearning/client_id"]


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        (erasure(submitted_time="yesterday"), "#/submitted_time"),
        (erasure(submitted_time="2990-01-01"), "#/submitted_time"),
        (erasure(submitted_time="20261120"), "#/submitted_time"),
        (erasure(extensions={"flower-unlearning": {"due_on": "86400"}}), "due_on"),
        (erasure(extensions={"flower-unlearning": {"due_on": 86400}}), "due_on"),
        (erasure(FIRST, "a", "a"), "#/subject_identities"),
        (erasure(**{"x/y~z": 1}), "#/x~1y~0z"),
        (
            erasure(extensions={"flower-unlearning": {"method": "x", "scope": "client", "client_id": "3"}}),
            "method",
        ),
        (erasure(extensions={"flower-unlearning": {"metod": "x"}}), "metod"),
        (erasure(status_callback_urls=["https://a.example/"]), "#/status_callback_urls"),
    ],
)
def test_the_wrong_field_is_pointed_at(web: Web, body: dict[str, Any], pointer: str) -> None:
    """In the document as it was sent, also where the service calls the field otherwise."""
    [found] = pointers(web.as_("operator").post("/requests", json=body))
    assert found == (pointer if pointer[0] == "#" else f"#/extensions/flower-unlearning/{pointer}")


def test_a_name_that_comes_twice_is_refused(web: Web, ledger: Ledger) -> None:
    """Of two values under one name each reader could take another one."""
    body = json.dumps(erasure()).replace('"gdpr"', '"ccpa", "regulation": "gdpr"')
    answer = web.as_("operator").post("/requests", content=body, headers=JSON)
    assert (answer.status_code, answer.json()["code"]) == (400, "name-twice")
    assert ledger.requests.select() == []


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_what_is_said_to_be_no_json_is_refused(web: Web, kind: str) -> None:
    """With the type that is expected."""
    body = json.dumps(erasure())
    answer = web.as_("operator").post("/requests", content=body, headers={"Content-Type": kind})
    assert answer.status_code == 415
    assert "application/json" in problem(answer)


def test_a_caller_beyond_a_limit_is_told_when_to_come_back(start_web: StartWeb) -> None:
    """In whole seconds, at least one."""
    web = start_web(calls_per_s=0.01)
    client = web.as_("3")
    client.get(f"/requests/{FIRST}")
    assert 90 <= int(client.get(f"/requests/{FIRST}").headers["Retry-After"]) <= 100


# Tokens


def test_a_token_of_the_sandbox_changes_nothing(web: Web, tmp_path: Path, ledger: Ledger) -> None:
    """Its requests are checked, answered, listed and decided as others are, and none is in the ledger."""
    tool = web.with_token(token_of(tmp_path, "tool", Role.OFFICER, is_sandbox=True))
    before = ledger.events.head()
    assert tool.post("/requests", json=erasure(FIRST, "a")).status_code == 201
    assert tool.post("/requests", json=erasure(FIRST, "a")).status_code == 200
    assert own(tool.post(f"/requests/{FIRST}/hold", json={"reason": "x"}))["is_held"]
    assert tool.delete(f"/requests/{FIRST}").status_code == 202
    assert [one["request_status"] for one in tool.get("/requests").json()["requests"]] == ["cancelled"]
    assert web.as_("operator").get("/requests").json()["requests"] == []
    assert (ledger.requests.select(), ledger.events.head()) == ([], before)
    assert tool.post("/requests", json=erasure(SECOND, "a", client="99")).status_code == 404


def test_in_the_sandbox_people_decide_as_in_the_federation(web: Web, loop: LiveLoop, tmp_path: Path) -> None:
    """Its rule of approval is the federation's; a request there waits for a decision and is accepted by its officer."""
    loop.set_facts({APPROVAL: 1})
    filer = web.with_token(token_of(tmp_path, "filer", Role.OPERATOR, is_sandbox=True))
    officer = web.with_token(token_of(tmp_path, "judge", Role.OFFICER, is_sandbox=True))
    filed = own(filer.post("/requests", json=erasure(FIRST, "a")))
    assert (filed["status"], filed["approvals_needed"]) == ("awaiting-decision", 1)
    assert filer.post(f"/requests/{filed['request_id']}/accept", json={}).status_code == 403
    assert own(officer.post(f"/requests/{filed['request_id']}/accept", json={}))["status"] == "accepted"
    assert web.as_("operator").get("/requests").json()["requests"] == []


def test_the_sandbox_sees_no_request_of_the_federation(web: Web, tmp_path: Path) -> None:
    """By any id: it has a ledger of its own."""
    filed = own(web.as_("operator").post("/requests", json=erasure()))["request_id"]
    tool = web.with_token(token_of(tmp_path, "tool", Role.OPERATOR, is_sandbox=True))
    for name in (FIRST, filed):
        assert tool.get(f"/requests/{name}").status_code == 404
        assert tool.delete(f"/requests/{name}").status_code == 404


def test_the_service_notes_on_which_day_a_token_was_used(web: Web, tmp_path: Path) -> None:
    """In a file of its own; an unused token is not in it."""
    token_of(tmp_path, "unused", Role.CLIENT)
    assert web.as_("3").get(f"/requests/{FIRST}").status_code == 404
    assert list(last_uses(tmp_path / TOKEN_USES).values()) == [f"{utc_now():%Y-%m-%d}"]


def test_an_expired_token_opens_nothing(web: Web, tmp_path: Path) -> None:
    """The answer says when it expired."""
    made = utc_now() - timedelta(days=31)
    token = make_token(tmp_path / "tokens.json", "late", Role.OPERATOR, made, days=30)
    answer = web.with_token(token).get("/requests")
    assert answer.status_code == 401
    assert "expired at" in problem(answer)
