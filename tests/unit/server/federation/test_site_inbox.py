"""Requests filed at a site: bounded an answer and a day, refused in one row, and never lost."""

from datetime import UTC, date, datetime, timedelta

import pytest
import sqlalchemy as sa

from client.memory import DirectoryMemory, requests_to_send
from server.federation.site_inbox import MAX_A_DAY, SiteRequests
from server.ledger import APPROVAL, ClientRecord
from server.ledger.decisions import Instead
from tests.ledgers import live_at
from tests.programs import run_program
from unlearning.errors import InvalidRequest
from unlearning.gdpr import Ground
from unlearning.requests import Granularity, Status, Target
from unlearning.runtime.json_codec import to_plain
from unlearning.untrusted import SITE_REQUEST_BYTES, SITE_REQUESTS

NOW = datetime(2026, 1, 1, 8, tzinfo=UTC)
MYSELF = to_plain(Target(Granularity.CLIENT, "2"))


@pytest.fixture
def ledger(sqlite_ledger):
    """A ledger that knows client 2."""
    token = sqlite_ledger.acquire_fence("test", now=NOW)
    live_at(sqlite_ledger, token, NOW).register_clients([ClientRecord("2")])
    return sqlite_ledger


def sent(*keys: str, **other):
    """What a client sends that filed a request under each key."""
    filed = {"target": MYSELF, "method": "puf-special", "parameters": {}, **other}
    return {"site-requests": [{"key": key, **filed} for key in keys]}


def test_of_ten_thousand_requests_twenty_are_looked_at_in_few_transactions(ledger):
    """Those are taken, though all are about one client; the others wait for later answers."""
    writes = []
    engine = ledger.database._engine
    sa.event.listen(engine, "commit", lambda connection: writes.append(connection))
    requests = SiteRequests()
    requests.take(ledger, "2", sent(*(f"k{number}" for number in range(10_000))), now=NOW)
    assert len(requests.answers["2"]) == SITE_REQUESTS
    assert len(ledger.requests.select()) == SITE_REQUESTS
    assert ledger.refusals() == []
    assert len(writes) < 10 * SITE_REQUESTS


def test_a_day_has_a_limit_and_the_next_one_goes_on_where_it_ended(ledger):
    """What was not looked at is not refused: it has no answer, so the site sends it again."""
    requests = SiteRequests()
    left = [f"k{number}" for number in range(MAX_A_DAY + 30)]
    for _ in range(20):
        requests.take(ledger, "2", sent(*left), now=NOW)
        left = [key for key in left if key not in requests.answers["2"]]
    assert len(left) == 30
    requests.take(ledger, "2", sent(*left), now=NOW + timedelta(days=1))
    assert len(requests.answers["2"]) == SITE_REQUESTS


def test_an_answer_is_told_until_the_client_has_taken_note(ledger):
    """Then it is forgotten here, so that a client cannot fill the server's memory."""
    requests = SiteRequests()
    requests.take(ledger, "2", sent("a", "b"), now=NOW)
    assert set(requests.answers["2"]) == {"a", "b"}
    requests.take(ledger, "2", sent("b"), now=NOW)
    assert set(requests.answers["2"]) == {"b"}
    requests.take(ledger, "2", {}, now=NOW)
    assert requests.answers == {}


@pytest.mark.parametrize(
    "other",
    [
        {"target": {"granularity": "sample", "client_id": "2", "sample_ids": [7]}},
        {"target": {"granularity": "sample", "client_id": "2", "sample_ids": [[]]}},
        {"target": {"granularity": ["client"]}},
        {"target": {"granularity": "class", "class_label": 3}},
        {"target": 7},
        {"method": {"a": 1}},
        {"method": "\x1b[2J\nall is well"},
        {"parameters": [1]},
        {"parameters": {"unlearning_rate": 10**18}},
        {"parameters": {"unlearning_rate": {"a": []}}},
        {"particulars": 7},
        {"particulars": {"received_on": "yesterday"}},
        {"particulars": {"received_on": "9999-12-31"}},
        {"particulars": {"ground": "z"}},
        {"particulars": {"reference": "<b>"}},
        {"particulars": {"note": "x" * 2001}},
    ],
)
def test_whatever_is_filed_is_answered_in_one_printable_line(ledger, other):
    """And the answer goes back to the client alone."""
    requests = SiteRequests()
    assert requests.take(ledger, "2", sent("a", **other), now=NOW) == ""
    assert requests.answers["2"]["a"].startswith("refused: ")
    assert requests.answers["2"]["a"].isprintable()


def test_what_a_site_says_beside_its_request_stands_in_the_ledger(ledger, tmp_path):
    """Filed by the command, carried by an answer, and not kept at the site where nobody could erase it."""
    given = ("--received-on", "2025-12-20", "--ground", "b", "--reference", "DSR-17", "--note", "by letter")
    (tmp_path / "site").mkdir()
    memory, state = DirectoryMemory(tmp_path / "site"), str(tmp_path / "site")
    assert run_program("flower-unlearn-site", "request", "--state-dir", state, *given)[0] == 0
    [one] = requests_to_send(memory)
    requests = SiteRequests()
    requests.take(ledger, "2", {"site-requests": [one]}, now=NOW)
    [found] = ledger.requests.select()
    assert (found.received_on, found.due_on) == (date(2025, 12, 20), date(2026, 1, 20))
    assert (found.ground, found.reference, found.note) == (Ground.B, "DSR-17", "by letter")
    memory.confirm(requests.answers["2"])
    assert not any(b"DSR-17" in path.read_bytes() for path in (tmp_path / "site").rglob("*.json"))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("--received-on", "9999-12-31"), "to today, got 9999-12-31"),
        (("--due-on", "yesterday"), "a day is written YYYY-MM-DD"),
        (("--ground", "z"), "a letter of Art. 17(1)"),
        (("--note", "<b>"), "must be plain text"),
    ],
)
def test_what_cannot_be_is_refused_at_the_site(tmp_path, given, message):
    """Nothing is put into the outbox."""
    status, said = run_program("flower-unlearn-site", "request", "--state-dir", str(tmp_path), *given)
    assert (status, message in said) == (2, True), said
    assert DirectoryMemory(tmp_path).outbox() == []


@pytest.mark.parametrize(
    "filed", ["text", 7, [7], [{"key": 7}], [{"key": "a\nb"}], [{"key": "x" * 65}], [], {}]
)
def test_requests_without_a_key_are_said_to_be_malformed(ledger, filed):
    """Nobody could be answered."""
    assert "malformed" in SiteRequests().take(ledger, "2", {"site-requests": filed}, now=NOW)


def test_a_site_sends_its_oldest_requests_first_and_all_in_the_end(tmp_path):
    """As many as the server looks at, so that an honest site never meets the limit."""
    memory = DirectoryMemory(tmp_path)
    keys = [
        memory.file_request(Target(Granularity.CLIENT, "2"), "puf-special", {})
        for _ in range(SITE_REQUESTS + 5)
    ]
    first = [filed["key"] for filed in requests_to_send(memory)]
    assert first == keys[:SITE_REQUESTS]
    memory.confirm(dict.fromkeys(first, "accepted"))
    assert [filed["key"] for filed in requests_to_send(memory)] == keys[SITE_REQUESTS:]


def test_a_request_too_large_to_travel_is_refused_where_it_is_filed(tmp_path, monkeypatch):
    """Nothing is in the outbox then that would never leave it."""
    memory = DirectoryMemory(tmp_path)
    assert SITE_REQUEST_BYTES > 10**7
    monkeypatch.setattr("client.memory.SITE_REQUEST_BYTES", 900)
    with pytest.raises(InvalidRequest):
        memory.file_request(Target(Granularity.CLIENT, "2"), "puf-special", {"note": "x" * 1000})
    assert memory.outbox() == []


def test_a_site_is_told_how_its_request_goes_on(ledger, tmp_path):
    """Accepted, then its end with the reason; what the site wrote down follows, and nothing is written twice."""
    memory = DirectoryMemory(tmp_path / "site")
    key = memory.file_request(Target(Granularity.CLIENT, "2"), "puf-special", {})
    requests = SiteRequests()
    requests.take(ledger, "2", sent(key), now=NOW)
    requests.follow(ledger, ledger.requests.select())
    memory.confirm(requests.told()["2"])
    assert [one["answer"] for one in memory.answered_requests()] == [
        "accepted as r-000001, which is received"
    ]
    ledger.decisions.cancel("r-000001", by="ada", now=NOW)
    requests.take(ledger, "2", {}, now=NOW)  # it has taken note that it was accepted
    requests.follow(ledger, [])
    memory.confirm(requests.told()["2"])
    [answered] = memory.answered_requests()
    assert answered["answer"].startswith("r-000001 is cancelled: ")


def test_a_site_is_told_that_its_request_waits_and_of_the_one_that_takes_its_place(ledger):
    """Under the key of its own filing, also when the first one had failed and a new process is told."""
    token = ledger.acquire_fence("again", now=NOW)
    loop = live_at(ledger, token, NOW)
    loop.set_facts({APPROVAL: 1})
    requests = SiteRequests()
    requests.take(ledger, "2", sent("k"), now=NOW)
    requests.follow(ledger, ledger.requests.select())
    assert requests.progress["2"] == {"k": "r-000001 waits until the federation's officer has decided"}
    ledger.decisions.accept("r-000001", by="olga", now=NOW)
    loop.move("r-000001", Status.FAILED, reason="No head.")
    instead = Instead(method="natural", parameters={}, approvals_needed=0)
    for told in (requests, SiteRequests()):
        told.follow(ledger, [])
        assert told.progress["2"] == {"k": "r-000001 is failed: No head."}
    ledger.decisions.retry("r-000001", by="ada", now=NOW, instead=instead)
    for told in (requests, SiteRequests()):
        told.follow(ledger, ledger.requests.select())
        assert told.progress["2"] == {"k": "accepted as r-000002, which is received"}


def test_a_client_whose_id_has_a_slash_is_told_too(ledger):
    """Its id is the target's, whatever the key in the ledger looks like."""
    token = ledger.acquire_fence("again", now=NOW)
    live_at(ledger, token, NOW).register_clients([ClientRecord("ward/2")])
    requests = SiteRequests()
    requests.take(ledger, "ward/2", sent("k"), now=NOW)
    requests.follow(ledger, ledger.requests.select())
    assert requests.progress == {"ward/2": {"k": "accepted as r-000001, which is received"}}


def test_a_new_server_process_tells_it_too(ledger):
    """It reads from the ledger what was filed before it began."""
    SiteRequests().take(ledger, "2", sent("k"), now=NOW)
    ledger.decisions.cancel("r-000001", by="ada", now=NOW)
    requests = SiteRequests()
    requests.follow(ledger, [])
    assert requests.told()["2"]["k"].startswith("r-000001 is cancelled")


@pytest.mark.parametrize(
    "command", [("request",), ("status",), ("ids",), ("layers", "--output", "x"), ("noise", "show")]
)
def test_what_is_no_clients_state_directory_is_refused(tmp_path, command):
    """A request that is filed in another place would never travel, and tombstones there say nothing."""
    (tmp_path / "var" / "state").mkdir(parents=True)
    (tmp_path / "file").touch()
    before = sorted(tmp_path.rglob("*"))
    for place in ("nowhere", "file", "var"):
        given = ("--state-dir", str(tmp_path / place))
        status, said = run_program("flower-unlearn-site", *command, *given)
        assert (status, "state directory" in " ".join(said.split())) == (2, True), said
    assert sorted(tmp_path.rglob("*")) == before


def test_ids_of_others_are_refused_at_the_site(tmp_path):
    """Before anything travels; where nothing was loaded yet it is said that nothing was checked."""
    site, file = tmp_path / "site", tmp_path / "ids"
    site.mkdir()
    file.write_text("a\nx\n")
    command = ("flower-unlearn-site", "request", "--state-dir", str(site), "--samples", str(file))
    assert run_program("flower-unlearn-site", "ids", "--state-dir", str(site))[0] == 1
    status, said = run_program(*command)
    assert status == 0
    assert "Not checked" in said
    DirectoryMemory(site).note_samples(["a", "b"])
    assert run_program("flower-unlearn-site", "ids", "--state-dir", str(site)) == (0, "a\nb\n")
    status, said = run_program(*command)
    assert status == 2
    assert "1 of the ids are not among this site's 2 samples: x." in " ".join(said.split())
    assert len(DirectoryMemory(site).outbox()) == 1
    DirectoryMemory(site).note_samples(["a", "b"], removed=["x"])
    assert run_program(*command)[0] == 0  # the model may have learnt of it
    listed = run_program("flower-unlearn-site", "ids", "--state-dir", str(site), "--removed")
    assert listed == (0, "x\n")
    status, said = run_program("flower-unlearn-site", "status", "--state-dir", str(site))
    assert "removed:\t1 sample(s) that this site no longer has" in said
