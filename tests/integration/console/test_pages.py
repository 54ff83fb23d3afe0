"""What the console's pages show and do, against a real deletion service."""

import asyncio
import csv
import html
import io
import json
import re
import tracemalloc
from datetime import timedelta

import grpc
import pytest
from starlette.requests import Request

from server.console import forms
from server.console.request_list import PAGE
from server.ledger import OWN_COMPARISONS
from server.ledger.records import LastRetry
from server.requests.comparisons import Comparison, Figures
from server.service.calls import REPORT_PRUNED
from tests.certificates import Authority
from tests.deletion_service import FORGETTING, NOW, submit
from tests.integration.console.conftest import Browser, Desk, errors
from unlearning.gdpr import Particulars, today
from unlearning.methods.registry import METHODS
from unlearning.requests import Granularity, Outcome, Status, Target
from unlearning.runtime.json_codec import to_plain

CLIENT_4 = Target(Granularity.CLIENT, "4")
MARKUP = '<img src=x onerror="alert(1)">'


# Requests


def test_a_filter_is_saved_by_a_name_shown_and_deleted(desk: Desk, browser: Browser) -> None:
    """In a private file, for the next console too; a list that is shown is the one that is saved."""
    submit(browser.console.service)
    shown = browser.page("/requests?q=puf&state=open&page=3")
    assert 'name="query" value="?q=puf&amp;state=open"' in shown
    where = browser.follow(
        browser.post("/filters/save", name=f" my  {MARKUP[:20]} ", query="?q=puf&state=open&x=1")
    )
    assert where == "/requests?q=puf&state=open"
    again = desk.browser()
    page = again.page(where)
    assert 'href="/requests?q=puf&amp;state=open" aria-current="page">my &lt;img' in page
    assert MARKUP[:20] not in page
    assert (desk.directory / "config" / "filters.json").stat().st_mode & 0o777 == 0o600
    for name in ("", "x" * 41):
        assert browser.post("/filters/save", name=name, query="?q=a").status_code == 422
    again.follow(again.post("/filters/delete", name=f"my {MARKUP[:20]}"))
    assert "my &lt;img" not in again.page("/requests")


def test_a_failed_request_is_tried_again_by_a_method_that_can_serve_it(desk: Desk, browser: Browser) -> None:
    """The form lists those that a plan admits, and the same again."""
    request = submit(browser.console.service)
    desk.loop.move(request.id, Status.FAILED, retryable=True)
    page = browser.page(f"/requests/{request.id}")
    listed = re.findall(
        r'<option value="([a-z-]*)"', page[page.index('id="method"') : page.index('id="parameters"')]
    )
    plan = browser.console.service.plan(request.target)
    assert listed == ["", *(item.method for item in plan.methods if not item.refusal)]
    assert {item.method for item in plan.methods if item.refusal} - set(listed)
    where = browser.follow(
        browser.post(f"/requests/{request.id}/retry", accept_score_loss="0", method="natural")
    )
    assert desk.ledger.requests.get(where.rpartition("/")[2]).method == "natural"


def test_the_list_shows_searches_and_filters(desk: Desk, browser: Browser) -> None:
    """By state, and by every word in reference, note, site, id, method, submitter or reason."""
    operator = desk.calling()
    written = Particulars(reference="DSB-17", note="by letter of Monday")
    three, four = submit(operator, particulars=written), submit(operator, CLIENT_4, submitted_by="berta")
    desk.loop.move(four.id, Status.FAILED, reason="the model lost 40 points", retryable=True)

    def shown(query: str) -> list[str]:
        return re.findall(r'<a href="/requests/(r-\d+)"', browser.page(f"/requests{query}"))

    assert shown("") == shown("?page=0") == [four.id, three.id]
    assert shown("?sort=id&dir=up") == [three.id, four.id]
    assert shown("?state=failed") == shown("?q=BERTA") == shown("?q=40 points") == [four.id]
    assert shown("?state=open") == [four.id, three.id]  # a failed one is not answered yet
    assert shown("?state=received") == [three.id]
    assert shown("?q=dsb-17") == shown("?q=letter+monday") == [three.id]
    assert shown("?q=nothing+like+it") == []
    assert "lakeside" in browser.page("/requests")
    assert len(shown("?state=nonsense&sort=nonsense&page=-7&dir=%00")) == 2


def test_what_changes_is_seen_at_the_next_look(desk: Desk) -> None:
    """New requests and new states."""
    browser, operator = desk.browser(), desk.calling()
    assert "No request has been filed yet" in browser.page("/requests")
    request = submit(operator)
    assert "received" in browser.page(f"/requests/{request.id}")
    desk.loop.move(request.id, Status.SCHEDULED)
    assert 'class="state scheduled' in browser.page("/requests")
    desk.loop.move(request.id, Status.FAILED)
    assert 'class="state failed' in browser.page("/requests")


def test_foreign_text_is_text(desk: Desk, browser: Browser) -> None:
    """Names and reasons with markup stay what they are, on every page that shows them."""
    operator = desk.calling()
    request = submit(operator, submitted_by=MARKUP)
    desk.loop.move(request.id, Status.FAILED, reason=MARKUP)
    desk.loop.round(1, "training", request.id, failed={MARKUP: MARKUP})
    for path in ("/requests", f"/requests/{request.id}", "/federation"):
        text = browser.page(path)
        assert "<img" not in text
        assert "&lt;img" in text
    assert "<img" not in browser.get(f"/requests?q={MARKUP}").text
    assert "<img" not in browser.get(f"/requests/{MARKUP}").text


def test_a_list_is_paged(desk: Desk, browser: Browser) -> None:
    """A page has fifty, in the order that is asked for; a page beyond the last one is the last."""
    operator = desk.calling()
    for number in range(PAGE + 2):
        operator.submit(CLIENT_4, method="puf-special", idempotency_key=f"k{number}")
    first, last = browser.page("/requests?sort=id"), browser.page("/requests?sort=id&page=99")
    assert first.count('<th scope="row">') == PAGE
    assert last.count('<th scope="row">') == 2
    assert "Page 2 of 2" in last
    assert "r-000001" in last


def test_the_work_list_begins_with_what_needs_a_person(desk: Desk, browser: Browser) -> None:
    """Each request once, under the first of its reasons; then the rest, the newest first."""
    operator = desk.calling()
    keys = iter("abcdef")

    def file(**given: object) -> str:
        return submit(operator, idempotency_key=next(keys), particulars=Particulars(**given)).id

    failed, late = file(), file(received_on=today() - timedelta(days=40))
    desk.loop.move(failed, Status.FAILED)
    desk.loop.move(late, Status.FAILED)
    waits, soon = file(), file(due_on=today() + timedelta(days=2))
    page = browser.page("/requests")
    heads = [
        page.index('rowgroup">' + head)
        for head in ("Overdue", "Due within seven days", "Failed", "The rest (1)")
    ]
    rows = [page.index(f'<a href="/requests/{item}"') for item in (late, soon, failed, waits)]
    assert sorted(heads + rows) == [place for pair in zip(heads, rows, strict=True) for place in pair]
    assert re.findall(r'<a href="/requests/(r-\d+)"', page) == [late, soon, failed, waits]
    assert "Failed (2)" in page


# One request


def test_a_requests_page_tells_its_story(desk: Desk) -> None:
    """Who did what, why an attempt ended, and the rounds that served it."""
    request = submit(desk.calling())
    desk.loop.move(request.id, Status.SCHEDULED, Status.UNLEARNING)
    desk.loop.round(7, "unlearning", request.id, participants=["3", "4"], failed={"9": "away"}, loss=0.5)
    desk.loop.move(request.id, Status.SCHEDULED, reason="client 9 went away")
    desk.loop.note(request.id, "waits for client 9")
    text = desk.browser().page(f"/requests/{request.id}")
    assert "unlearning → scheduled" in text
    assert text.count("client 9 went away") >= 2  # in the timeline and among the attempts
    assert "waits for client 9" in text
    assert '<th scope="row">Attempts</th><td>1</td>' in text
    assert "Round 7 (unlearning): 2 of 3 clients answered" in text


def test_the_pages_of_a_pruned_report_say_so(desk: Desk) -> None:
    """The request's, the report's and the certificate's."""
    request = submit(desk.calling())
    desk.loop.complete(request.id, desk.directory / "reports", {"certificate.json": b"{}"})
    desk.ledger.decisions.note_pruned(request.id, {}, by="retention", now=NOW)
    browser = desk.browser()
    assert REPORT_PRUNED in browser.page(f"/requests/{request.id}")
    for path in ("report", "report.json"):
        answer = browser.get(f"/requests/{request.id}/{path}")
        assert (answer.status_code, REPORT_PRUNED in answer.text) == (404, True)


def test_buttons_do_what_they_say(desk: Desk, browser: Browser) -> None:
    """Cancel a waiting request, retry a failed one with an accepted loss; the page then shows the new state."""
    operator = desk.calling()
    one, two = submit(operator), submit(operator, CLIENT_4)
    desk.loop.move(two.id, Status.FAILED, retryable=True)
    browser.follow(browser.post(f"/requests/{one.id}/cancel", confirmed="yes"))
    browser.follow(browser.post(f"/requests/{two.id}/retry", accept_score_loss="12.5"))
    assert desk.ledger.requests.get(one.id).status is Status.CANCELLED
    assert desk.ledger.requests.last_retry(two.id) == LastRetry(accepted_loss=12.5, accepted_by="ada")
    assert "/cancel" not in browser.page(f"/requests/{one.id}")
    assert "/retry" not in browser.page(f"/requests/{two.id}")


def test_a_button_that_came_too_late_says_so(desk: Desk, browser: Browser) -> None:
    """The service's own sentence beside the button, and nothing is done."""
    request = submit(desk.calling())
    desk.loop.move(request.id, Status.SCHEDULED, Status.UNLEARNING)
    answer = browser.post(f"/requests/{request.id}/cancel", confirmed="yes")
    assert answer.status_code == 409
    assert "only a request that has not begun" in errors(answer)["cancel"]
    assert errors(browser.post(f"/requests/{request.id}/retry", accept_score_loss="much"))["retry"]
    assert browser.post(f"/requests/{request.id}/explode").status_code == 400
    assert browser.post("/requests/r-000099/cancel", confirmed="yes").status_code == 404


# Filing


def test_a_request_is_filed_after_plan_and_summary(desk: Desk, browser: Browser) -> None:
    """Nothing is filed before the last step; a second click files nothing more."""
    draft = browser.follow(browser.post("/file", what="client", client="3"))
    plan = browser.page(draft)
    assert "PUF-Special" in plan
    assert "cannot, and why" in plan
    first, others = plan.split('<details id="other-methods"')
    assert re.findall(r'value="([\w-]+)" checked', plan) == re.findall(
        r'type="radio" name="method" value="([\w-]+)"', first
    )
    assert "Other methods" in others
    summary = browser.follow(browser.post(draft, method="puf-special", parameters="unlearning_rate=1.5"))
    text = browser.page(summary)
    assert "client 3" in text
    assert "unlearning_rate = 1.5" in text
    assert desk.ledger.requests.select() == []
    filed = browser.follow(browser.post(summary))
    assert browser.follow(browser.post(summary)) == filed
    (request,) = desk.ledger.requests.select()
    assert (filed, request.method, request.submitted_by) == (f"/requests/{request.id}", "puf-special", "ada")
    assert request.parameters["unlearning_rate"] == 1.5


def test_under_secure_aggregation_the_plan_offers_methods_of_sums_and_says_why_not_others(
    desk: Desk, browser: Browser
) -> None:
    """Each of the others is named with a reason and an alternative."""
    desk.loop.announce(secure_aggregation=True)
    plan = browser.page(browser.follow(browser.post("/file", what="client", client="3")))
    offered = set(re.findall(r'type="radio" name="method" value="([\w-]+)"', plan))
    assert {"puf-regular", "newton-cg", "not", "retrain", "natural"} <= offered
    assert all(METHODS[name].info.sums_suffice for name in offered)
    reasons = plan[plan.index("cannot, and why") :]
    for method in METHODS.values():
        if not method.info.sums_suffice:
            assert f"{method.info.title} needs single clients" in html.unescape(reasons)
    assert "Choose puf-regular" in reasons


def test_the_plan_shows_own_runs_with_spread_and_places(desk: Desk, browser: Browser) -> None:
    """Where the seeds tell nothing apart the page says so."""
    figures = Figures(distance=2.25, spread=0.5, bytes=10, seconds=1)
    own = Comparison(
        title="ward", page="", granularity=Granularity.CLIENT, num_parameters=650, num_seeds=5, made_on="2026-11-24",
        nothing=figures, retrain=figures, methods={"natural": figures, "puf-special": figures},
    )  # fmt: skip
    desk.loop.set_facts({OWN_COMPARISONS: [to_plain(own)]})
    plan = browser.page(browser.follow(browser.post("/file", what="client", client="3")))
    assert "No method is better than another here: your own runs of 2026-11-24, 5 seeds." in plan
    assert "2.2 ± 0.5 points off Retrain" in plan
    assert "place 1 to 2 of 2" in plan


@pytest.mark.parametrize("way", ["file", "pasted"])
def test_samples_are_filed_from_a_file_or_pasted(desk: Desk, browser: Browser, way: str) -> None:
    """One id a line; the page says their number, the service gets them all."""
    ids = "\n".join(f"sample {number}" for number in range(2500))
    files = {"samples": ("ids.txt", ids.encode(), "text/plain")} if way == "file" else None
    fields = {"ids": ids} if way == "pasted" else {}
    draft = browser.follow(browser.post("/file", what="sample", client="3", files=files, **fields))
    assert "2,500 samples of client 3" in browser.page(draft)
    browser.follow(browser.post(f"{draft}", method="puf-special"))
    browser.follow(browser.post(f"{draft}/summary"))
    (request,) = desk.ledger.requests.select()
    assert request.target.num_samples == 2500


BAD = {
    "no kind": ({"what": "planet"}, None, "what", "Choose what"),
    "no client": ({"what": "client"}, None, "client", "Say which client"),
    "an unknown client": ({"what": "client", "client": "99"}, None, "client", "99"),
    "markup": ({"what": "client", "client": MARKUP}, None, "client", "img src=x"),
    "a control character": ({"what": "client", "client": "a\x00b"}, None, "client", "Malformed"),
    "a class that is none": ({"what": "class", "class_label": "-1"}, None, "class_label", "whole number"),
    "no samples": ({"what": "sample", "client": "3"}, None, "samples", "Choose a file"),
    "repeated ids": ({"what": "sample", "client": "3", "ids": "a\na"}, None, "samples", "repeats"),
    "ids with markup": ({"what": "sample", "client": "3", "ids": f"a\n{MARKUP}"}, None, "samples", "markup"),
    "an id with a control character": (
        {"what": "sample", "client": "3", "ids": "a\x01b"},
        None,
        "samples",
        "Malformed",
    ),
    "a file that is no text": ({"what": "sample", "client": "3"}, b"\xff\xfe\x00", "samples", "UTF-8"),
    "both": ({"what": "sample", "client": "3", "ids": "b"}, b"a", "samples", "not both"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_a_sentence_beside_its_field(desk: Desk, case: str) -> None:
    """Nothing is filed, what was typed is still there, and the field says that it is invalid."""
    fields, content, field, words = BAD[case]
    files = None if content is None else {"samples": ("ids.txt", content)}
    answer = desk.browser().post("/file", files=files, **fields)
    assert answer.status_code == 422
    assert words in errors(answer)[field]
    if field != "what":
        assert f'aria-describedby="{field}-hint {field}-error" aria-invalid="true"' in answer.text
    assert desk.ledger.requests.select() == []


def test_a_file_that_is_too_long_is_a_sentence_too(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is read to its end and dropped, never held and never written to a disk."""
    monkeypatch.setattr(forms, "_MAX_BODY_BYTES", 100_000)
    files = {"samples": ("ids.txt", b"0123456789\n" * 20_000)}
    answer = browser.post("/file", what="sample", client="3", files=files)
    assert answer.status_code == 413
    assert "Split it" in errors(answer)["samples"]
    assert browser.client.post("/requests/r-000001/cancel", content=b"x" * 2**21).status_code == 413


def test_a_file_of_100_mebibytes_takes_no_memory() -> None:
    """Whether the browser says its length at first or not, it is not held beyond what the service takes."""
    chunk, num_chunks = bytes(2**20), 100
    head = b'--x\r\ncontent-disposition: form-data; name="samples"; filename="a"\r\n\r\n'

    async def read(*more: tuple[bytes, bytes]) -> int:
        chunks = iter([head, *[chunk] * num_chunks])

        async def receive() -> dict[str, object]:
            body = next(chunks, b"")
            return {"type": "http.request", "body": body, "more_body": bool(body)}

        kind = (b"content-type", b"multipart/form-data; boundary=x")
        tracemalloc.start()
        with pytest.raises(forms.BodyTooLong):
            await forms.read_form(Request({"type": "http", "headers": [kind, *more]}, receive))
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert next(chunks, None) is None  # read to its end, or the browser would show no sentence
        return peak

    assert asyncio.run(read((b"content-length", b"104857700"))) < 5 * 2**20
    assert asyncio.run(read()) < 2 * forms._MAX_BODY_BYTES


def test_the_method_is_refused_where_it_is_chosen(desk: Desk, browser: Browser) -> None:
    """No method, and parameters that are none."""
    draft = browser.follow(browser.post("/file", what="client", client="3"))
    assert errors(browser.post(draft, method="")) == {"method": "Choose a method."}
    assert "NAME=VALUE" in errors(browser.post(draft, method="puf-special", parameters="fast"))["parameters"]
    browser.post(draft, method="puf-special", parameters="unlearning_rate=-3")
    answer = browser.post(f"{draft}/summary")
    assert answer.status_code == 422
    assert "unlearning_rate" in errors(answer)["form"]
    assert desk.ledger.requests.select() == []


def test_a_draft_that_is_gone_says_that_nothing_was_filed(desk: Desk) -> None:
    """A restarted console knows nothing of the forms of the one before."""
    answer = desk.browser().get("/file/unknown")
    assert answer.status_code == 400
    assert "Nothing was filed by it" in answer.text


# Roles


def test_an_auditor_sees_no_button_and_is_refused_by_the_service(guarded: Desk, people: Authority) -> None:
    """Reads everything; what it posts all the same the service refuses, and the refusal is in the ledger."""
    operator, auditor = people.certify("ada", "operator"), people.certify("olga", "auditor")
    request = submit(guarded.calling(operator))
    browser = guarded.browser(auditor)
    page = browser.page(f"/requests/{request.id}")
    assert "<form" not in page
    assert 'href="/file"' not in browser.page("/requests")
    answer = browser.post(f"/requests/{request.id}/cancel")
    assert answer.status_code == 403
    assert "CancelRequest is for an operator" in errors(answer)["cancel"]
    draft = browser.follow(browser.post("/file", what="client", client="4"))
    browser.post(draft, method="puf-special")
    refused = browser.post(f"{draft}/summary")
    assert refused.status_code == 403
    assert "SubmitRequest is for" in errors(refused)["form"]
    assert [item.call for item in guarded.ledger.refusals()] == ["CancelRequest", "SubmitRequest"]
    assert "CancelRequest" in browser.page("/refusals")
    assert "olga" in browser.page("/access")


def test_the_federation_s_page_has_the_metrics_of_sets(desk: Desk, browser: Browser) -> None:
    """The newest as a figure, and a chart of each."""
    for number, value in ((1, 0.5), (2, 0.625)):
        desk.loop.round(number, "training", loss=0.5, test_metrics={f"roc_auc{MARKUP}": value})
    page = browser.page("/federation")
    assert 'on test data</span><span class="now">0.625</span>' in page
    assert 'aria-label="Roc auc' in page
    assert MARKUP not in page


def test_a_client_sees_and_files_its_own(guarded: Desk, people: Authority) -> None:
    """Others do not exist for it: not in the list, not by address, not in the register; no names in the rounds."""
    submit(guarded.calling(people.certify("ada", "operator")), CLIENT_4)
    guarded.loop.round(1, "training", loss=0.5, participants=["3", "4"], failed={"4": "away"})
    browser = guarded.browser(people.certify("3", "client"))
    assert "No request has been filed yet" in browser.page("/requests")
    assert browser.get("/requests/r-000001").status_code == 404
    assert "client 4" not in browser.page("/register")
    federation = browser.page("/federation")
    assert "Round 1 (training)" in federation
    assert "away" not in federation
    assert browser.get("/refusals").status_code == 403
    draft = browser.follow(browser.post("/file", what="client", client="4"))  # whatever it says: itself
    assert "forget client 3" in browser.page(draft)
    browser.post(draft, method="puf-special")
    filed = browser.follow(browser.post(f"{draft}/summary"))
    assert "Cancel this request" in browser.page(filed)
    browser.follow(browser.post(f"{filed}/cancel", confirmed="yes"))
    namesake = guarded.calling(people.certify("3", "operator"))
    others = submit(namesake, Target(Granularity.SAMPLE, "3", frozenset({"a"})))
    assert "Cancel this request" not in browser.page(f"/requests/{others.id}")


# Register


def test_the_register_is_exported_with_the_ledgers_head(desk: Desk, browser: Browser) -> None:
    """As CSV, where no cell is a formula, and as JSON-LD in the terms of the Data Privacy Vocabulary."""
    operator = desk.calling()
    one = submit(operator, submitted_by="=1+1")
    two = submit(operator, CLIENT_4)
    desk.loop.move(one.id, *FORGETTING, outcome=Outcome.REDUCED, result={"certificate_sha256": "ab" * 32})
    three = submit(operator, Target(Granularity.CLIENT, "3"))
    desk.loop.move(three.id, *FORGETTING)
    sequence, digest = desk.ledger.events.head()
    text = browser.get("/register.csv").content.decode("utf-8-sig")
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [row["id"] for row in rows] == [one.id, two.id, three.id]
    assert [row["outcome"] for row in rows] == ["reduced", "", "not-shown"]
    assert rows[0]["submitted_by"] == "'=1+1"
    assert {(row["ledger_event"], row["ledger_hash"]) for row in rows} == {(str(sequence), digest)}
    record = json.loads(browser.get("/register.jsonld").content)
    assert record["@type"] == "RightExerciseRecord"
    assert record["ledger"] == {"event": sequence, "hash": digest, "problem": ""}
    done, waiting, unshown = record["activity"]
    assert (done["status"], waiting["status"]) == ("dpv:RequestFulfilled", "dpv:RequestInitiated")
    assert (unshown["status"], unshown["outcome"]) == ("dpv:RequestAccepted", "not-shown")
    assert "notice" not in unshown
    assert done["notice"]["certificate_sha256"] == "ab" * 32


def test_the_register_of_a_period_has_that_period(desk: Desk, browser: Browser) -> None:
    """Both days included; what is no day is a sentence beside its field and no export."""
    request = submit(desk.calling())
    today = desk.ledger.requests.get(request.id).created_at.date()
    assert request.id in browser.page(f"/register?first={today}&last={today}")
    assert request.id not in browser.page("/register?last=2020-01-01")
    for day in ("0000-01-01", "2026-02-30", "yesterday", "2026-13-01"):
        answer = browser.get(f"/register?first={day}")
        assert answer.status_code == 422
        assert "YYYY-MM-DD" in errors(answer)["first"]
        assert browser.get(f"/register.csv?first={day}").status_code == 400
    assert "before the first" in errors(browser.get("/register?first=2026-02-02&last=2026-02-01"))["last"]


# The service goes and comes


def test_while_the_service_is_away_pages_say_so_and_go_on_by_themselves(desk: Desk, browser: Browser) -> None:
    """The list as it was known, with a sentence about it; the stamp changes when the service is back."""
    request = submit(desk.calling())
    before = browser.page("/requests")
    address = desk.service.address
    desk.service.stop(0)
    page = browser.page("/requests")
    assert "has not answered since" in page
    assert request.id in page
    away = browser.get(f"/requests/{request.id}")
    assert away.status_code == 503
    assert "refreshes itself" in away.text
    assert "data-stamp=" in away.text
    draft = browser.post("/file", what="client", client="4")
    assert draft.status_code == 503
    away_stamp = browser.page("/stamp")
    desk.service = desk.start(address)
    grpc.channel_ready_future(browser.console.service._channel).result(20)
    assert "has not answered" not in browser.page("/requests")
    assert browser.page("/stamp") != away_stamp
    assert before == browser.page("/requests")


def test_the_stamp_changes_with_what_pages_show(desk: Desk, browser: Browser) -> None:
    """It stays as long as nothing happens; a round and a request give another one."""

    def stamp() -> str:
        browser.console.mirror.now()
        return browser.page("/stamp")

    stamps = [stamp()]
    assert stamp() == stamps[0]
    desk.loop.round(1, "training", loss=0.5)
    stamps.append(stamp())
    submit(desk.calling())
    stamps.append(stamp())
    assert len(set(stamps)) == 3
