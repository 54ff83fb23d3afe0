"""Deadlines, grounds, holds and refusals on the console's pages."""

import csv
import io
import json
import re
from datetime import timedelta

import pytest
from starlette.datastructures import FormData

from server.console.actions import ACTIONS, FIELDS, call_of
from server.ledger import APPROVAL
from server.service.calls import CALLS, VERBS
from tests.certificates import Authority
from tests.deletion_service import FORGETTING, submit
from tests.integration.console.conftest import Browser, Desk, errors
from tests.ledgers import NOW, live_at
from unlearning.gdpr import Ground, Particulars, one_month_after, today
from unlearning.requests import Outcome, Status


def test_the_list_says_how_many_days_are_left_and_what_is_overdue(desk: Desk, browser: Browser) -> None:
    """Counted from the day on which the person's request came in; filtered by it too."""
    operator = desk.calling()
    late = submit(operator, particulars=Particulars(received_on=today() - timedelta(days=40)))
    desk.loop.move(late.id, Status.FAILED)
    soon = submit(operator, particulars=Particulars(due_on=today() + timedelta(days=3)))
    page = browser.page("/requests")
    assert f"{(today() - late.due_on).days} days overdue" in page
    assert ">3 days<" in page
    assert late.id in browser.page("/requests?state=overdue")
    assert soon.id not in browser.page("/requests?state=overdue")
    assert soon.id in browser.page("/requests?state=due+soon")


def test_what_belongs_to_the_register_is_filed_with_the_request(desk: Desk, browser: Browser) -> None:
    """Day of receipt, ground, reference and note reach the ledger; the summary shows them before."""
    draft = browser.follow(browser.post("/file", what="client", client="3"))
    received = today() - timedelta(days=5)
    given = {
        "received_on": str(received),
        "ground": "b",
        "reference": "DSB-17",
        "note": "by letter\r\nof Monday",
    }
    summary = browser.follow(browser.post(draft, method="puf-special", **given))
    text = browser.page(summary)
    assert all(word in text for word in (str(received), "consent was withdrawn", "DSB-17", "of Monday"))
    filed = browser.follow(browser.post(summary))
    (request,) = desk.ledger.requests.select()
    found = (request.received_on, request.ground, request.reference, request.note)
    assert found == (received, Ground.B, "DSB-17", "by letter\nof Monday")
    assert "DSB-17" in browser.page(filed)
    assert request.id in browser.page("/requests?q=dsb-17")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("received_on", "0000-01-01"),
        ("received_on", "2017-01-01"),
        ("received_on", "9999-12-31"),
        ("received_on", "yesterday"),
        ("due_on", "9999-12-31"),
        ("ground", "z"),
        ("reference", "x" * 300),
        ("reference", "a\x00b"),
        ("note", "x" * 3000),
        ("note", "<b>"),
    ],
)
def test_what_is_wrong_with_it_is_said_at_its_field(
    desk: Desk, browser: Browser, field: str, value: str
) -> None:
    """Nothing is filed, and nothing goes on to the summary."""
    draft = browser.follow(browser.post("/file", what="client", client="3"))
    answer = browser.post(draft, method="puf-special", **{field: value})
    assert answer.status_code == 422
    assert list(errors(answer)) == [field]
    assert desk.ledger.requests.select() == []


def test_every_action_is_a_verb_of_the_service_and_its_fields_are_that_verbs_values() -> None:
    """Each verb has its form, its call and a reader for each of its values."""
    assert ACTIONS.keys() == VERBS.keys()
    for name, action in ACTIONS.items():
        assert call_of(name) in CALLS
        form = FormData(dict.fromkeys(VERBS[name].values, "1") | {"parameters": "a=1"})
        assert {key for field in action.fields for key in FIELDS[field](form)} == VERBS[name].values.keys()


def test_an_operator_extends_holds_refuses_and_erases(desk: Desk, browser: Browser) -> None:
    """Each with its reason, which the page shows; what the state does not allow is a sentence at its form."""
    request = submit(desk.calling(), particulars=Particulars(reference="DSB-17"))
    page = f"/requests/{request.id}"
    assert "from 1 to 60" in errors(browser.post(f"{page}/extend", days="many", reason="r"))["extend"]
    assert errors(browser.post(f"{page}/extend", days="61", reason="r"))["extend"]
    browser.follow(browser.post(f"{page}/extend", days="30", reason="many sites are asked"))
    assert errors(browser.post(f"{page}/extend", days="1", reason="again"))["extend"]
    browser.follow(browser.post(f"{page}/hold", reason="a court wants it kept"))
    text = browser.page(page)
    assert "extended by 30 days" in text
    assert "Held: a court wants it kept" in text
    browser.follow(browser.post(f"{page}/release", reason=""))
    browser.follow(browser.post(f"{page}/refuse", reason="the claim is unfounded", confirmed="yes"))
    assert "the claim is unfounded" in browser.page(page)
    assert desk.ledger.requests.get(request.id).status is Status.REFUSED
    rows = list(csv.DictReader(io.StringIO(browser.get("/register.csv").content.decode("utf-8-sig"))))
    assert (rows[0]["reference"], rows[0]["refusal_reason"]) == ("DSB-17", "the claim is unfounded")
    (activity,) = json.loads(browser.get("/register.jsonld").content)["activity"]
    assert activity["status"] == "dpv:RequestRejected"
    assert activity["notice"] == {"@type": "RightNonFulfilmentNotice", "reason": "the claim is unfounded"}
    browser.follow(
        browser.post(f"{page}/amend", ground="b", reference="DSB-18", note="by letter\r\nof Monday")
    )
    assert "DSB-18" in browser.page(page)
    browser.follow(browser.post(f"{page}/redact", confirmed="yes"))
    gone = browser.page(page) + browser.get("/register.csv").text
    assert "DSB-1" not in gone
    assert "a court wants" not in gone
    assert "erased" in gone


def test_ground_reference_and_note_are_changed_later(desk: Desk, browser: Browser) -> None:
    """The form has what stands there; what cannot be is a sentence at it, and what was typed is still there."""
    request = submit(desk.calling(), particulars=Particulars(ground=Ground.A, reference="DSB-17", note="n"))
    page = f"/requests/{request.id}"
    form = browser.page(page)
    assert 'id="reference" name="reference" value="DSB-17"' in form
    assert '<option value="a" selected>' in form
    given = {"ground": "c", "reference": "DSB-18", "note": "by letter\r\nof Monday"}
    browser.follow(browser.post(f"{page}/amend", **given))
    found = desk.ledger.requests.get(request.id)
    assert (found.ground, found.reference, found.note) == (Ground.C, "DSB-18", "by letter\nof Monday")
    assert "amended" in browser.page(page)
    assert "reference, note, ground from a to c" in browser.page(page)
    refused = browser.post(f"{page}/amend", ground="c", reference="DSB-19", note="x" * 2001)
    assert refused.status_code == 409
    assert "2,000 characters, got 2,001" in errors(refused)["amend"]
    assert 'value="DSB-19"' in refused.text
    assert errors(browser.post(f"{page}/amend", **{**given, "note": ""}))["amend"].startswith(
        "A note is changed"
    )
    assert desk.ledger.requests.get(request.id) == found


def test_texts_are_erased_as_long_as_there_are_some(desk: Desk, browser: Browser) -> None:
    """Also such that came after others were erased."""
    request = submit(desk.calling(), particulars=Particulars(reference="DSB-17"))
    page = f"/requests/{request.id}"
    for _ in range(2):
        assert f"{page}/redact" in browser.page(page)
        browser.follow(browser.post(f"{page}/redact", confirmed="yes"))
        assert f"{page}/redact" not in browser.page(page)
        browser.follow(browser.post(f"{page}/amend", reference="DSB-18"))
    assert desk.ledger.events.verify() == ""


def test_what_cannot_be_undone_is_confirmed_with_what_it_means(desk: Desk, browser: Browser) -> None:
    """The first press shows what it does and to which request; only the second does it, with what was typed before."""
    request = submit(desk.calling(), particulars=Particulars(reference="DSB-17"))
    page = f"/requests/{request.id}"
    for action, means in {
        "cancel": "cannot be taken",
        "refuse": "Art. 12(4)",
        "redact": "brought back",
    }.items():
        asked = browser.post(f"{page}/{action}", reason="the claim is unfounded")
        assert asked.status_code == 200
        assert means in asked.text
        assert f"{page}/{action}" in asked.text
        assert 'name="reason" value="the claim is unfounded"' in asked.text
    assert desk.ledger.requests.get(request.id) == request
    assert {name for name, action in ACTIONS.items() if action.means} == {"cancel", "refuse", "redact"}


def test_an_extension_is_offered_in_months_with_its_new_date(desk: Desk, browser: Browser) -> None:
    """One month to the same day of the next; two, as far as the law's limit in days allows."""
    request = submit(desk.calling(), particulars=Particulars(received_on=today() - timedelta(days=3)))
    offered = re.findall(
        r'<option value="(\d+)">by (\d) months?, to ([^<]+)</option>', browser.page(f"/requests/{request.id}")
    )
    later = one_month_after(request.due_on)
    assert offered[0] == (str((later - request.due_on).days), "1", f"{later:%-d %B %Y}")
    last = request.due_on + timedelta(days=int(offered[1][0]))
    assert offered[1][1:] == ("2", f"{last:%-d %B %Y}")
    browser.follow(
        browser.post(f"/requests/{request.id}/extend", days=offered[1][0], reason="many sites are asked")
    )
    assert desk.ledger.requests.get(request.id).due_on == last


def test_several_requests_are_held_at_once_after_one_confirmation(desk: Desk, browser: Browser) -> None:
    """Those that cannot be are named with the reason; the others are held."""
    operator = desk.calling()
    one, two, gone = (submit(operator, idempotency_key=f"k{number}") for number in range(3))
    desk.ledger.decisions.cancel(gone.id, by="ada", now=NOW)
    chosen = [one.id, two.id, gone.id]
    assert f'value="{one.id}"' in browser.page("/requests")
    asked = browser.post("/bulk/hold", chosen=chosen)
    assert "3 requests" in asked.text
    assert not desk.ledger.requests.get(one.id).is_held
    done = browser.post("/bulk/hold", chosen=chosen, reason="a court wants them kept", confirmed="yes")
    assert done.status_code == 409
    assert f'<p class="error">{gone.id}: ' in done.text
    assert [item.id for item in desk.ledger.requests.select() if item.is_held] == [one.id, two.id]
    assert browser.post("/bulk/hold").status_code == 422
    assert browser.post("/bulk/redact", chosen=one.id).status_code == 400


def test_an_officer_accepts_several_that_await_a_decision(desk: Desk, browser: Browser) -> None:
    """They are first on the work list; one confirmation says what it begins, and both are accepted."""
    live_at(desk.ledger, desk.loop._token).set_facts({APPROVAL: 1})
    operator = desk.calling()
    chosen = [submit(operator, idempotency_key=key).id for key in "ab"]
    assert "Awaiting a decision (2)" in browser.page("/requests")
    asked = browser.post("/bulk/accept", chosen=chosen)
    assert "cannot be taken back" in asked.text
    browser.follow(browser.post("/bulk/accept", chosen=chosen, confirmed="yes"))
    assert [desk.ledger.requests.get(item).status for item in chosen] == [Status.ACCEPTED] * 2
    assert "Awaiting a decision (0)" in browser.page("/requests")


def test_a_request_is_held_as_it_is_filed(desk: Desk, browser: Browser) -> None:
    """The summary says so before; the ledger holds it from its first moment."""
    draft = browser.follow(browser.post("/file", what="client", client="3"))
    summary = browser.follow(browser.post(draft, method="puf-special", hold_reason="a court wants it kept"))
    assert "a court wants it kept" in browser.page(summary)
    browser.follow(browser.post(summary))
    (request,) = desk.ledger.requests.select()
    assert (request.is_held, request.hold_reason) == (True, "a court wants it kept")


@pytest.mark.parametrize(
    ("role", "shown"),
    [
        ("operator", {"cancel"}),
        ("officer", {"accept", "amend", "cancel", "extend", "hold", "redact", "refuse"}),
        ("auditor", set()),
    ],
)
def test_each_role_sees_what_it_may_do(guarded: Desk, people: Authority, role: str, shown: set[str]) -> None:
    """The officer decides, the operator cancels (and retries what failed), the auditor reads."""
    live_at(guarded.ledger, guarded.loop._token).set_facts({APPROVAL: 1})
    request = submit(guarded.calling(people.certify("ada", "operator")), particulars=Particulars(note="n"))
    browser = guarded.browser(people.certify("olga", role))
    page = browser.page(f"/requests/{request.id}")
    assert set(re.findall(rf'action="/requests/{request.id}/(\w+)"', page)) == shown
    assert ("/bulk/accept" in browser.page("/requests")) == ("accept" in shown)


def test_colour_and_words_of_a_completed_request_are_those_of_the_weaker_fact(
    desk: Desk, browser: Browser
) -> None:
    """What was not shown is no green tick, and stands on the work list; what was is found by its outcome."""
    operator = desk.calling()
    unshown, shown = (submit(operator, idempotency_key=key).id for key in "ab")
    for item, outcome in ((unshown, Outcome.NOT_SHOWN), (shown, Outcome.INDISTINGUISHABLE)):
        desk.loop.move(item, *FORGETTING[:-1])
        desk.loop.move(item, Status.COMPLETED, outcome=outcome)
    page = browser.page("/requests")
    assert re.findall(r'<span class="state (\w+)">carried out, ([^<]+)<', page) == [
        ("unshown", "not shown"),
        ("completed", "indistinguishable"),
    ]
    assert "Nothing shown (1)" in page
    assert re.findall(r'href="/requests/(r-\d+)"', browser.page("/requests?state=indistinguishable")) == [
        shown
    ]
