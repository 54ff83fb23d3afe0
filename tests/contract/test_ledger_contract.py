"""SQLite and PostgreSQL keep the same ledger: the same answers, the same refusals, the same durability."""

import signal
import subprocess
import sys
from datetime import date, timedelta, timezone
from pathlib import Path

import pytest
import sqlalchemy as sa

from server.ledger import ClientRecord, Ledger, LimitExceeded, Quota, RoundRecord
from server.ledger.records import LastRetry
from tests.ledgers import CLIENT_4, LATER, NOW, advance, live_at, refusal, submit
from tests.raising import raises
from tests.waiting import HANGS_S
from unlearning.errors import ConflictingRequest, Fenced, IllegalMove, RequestNotFound
from unlearning.requests import (
    LEGAL_MOVES,
    UNBEGUN_STATUSES,
    DeletionRequest,
    Exclusions,
    Forget,
    Granularity,
    Status,
    Target,
)

ILLEGAL_MOVES = {
    source: [to for to in Status if to not in LEGAL_MOVES[source] and to is not source] for source in Status
}


# Submitting


def test_a_submitted_request_is_read_back_as_it_was_filed(ledger: Ledger) -> None:
    """Target, method, parameters, names, role and time survive the database; sample ids are read apart."""
    target = Target(Granularity.SAMPLE, "3", frozenset({"17", "é"}))
    filed = submit(ledger, target, submitted_role="client")
    assert ledger.requests.target_of(filed) == target
    assert filed == DeletionRequest(
        id="r-000001",
        idempotency_key="key",
        target=target.without_ids(),
        method="puf",
        parameters={"rate": 2.0},
        submitted_by="ada",
        status=Status.RECEIVED,
        created_at=NOW,
        updated_at=NOW,
        submitted_role="client",
        received_on=NOW.date(),
        due_on=date(2026, 4, 1),
    )
    assert ledger.requests.get("r-000001") == ledger.requests.find("key", "ada", "client") == filed
    assert ledger.requests.find("other", "ada", "client") is None


def test_a_time_in_another_zone_comes_back_as_the_same_instant_in_utc(ledger: Ledger) -> None:
    """Times are kept as UTC."""
    local = NOW.astimezone(timezone(timedelta(hours=5)))
    submit(ledger, now=local)
    read = ledger.requests.get("r-000001").created_at
    assert read == NOW
    assert read.utcoffset() == timedelta(0)


def test_the_same_request_with_the_same_key_is_one_request(ledger: Ledger) -> None:
    """Sending again returns the first request and records nothing."""
    first = submit(ledger)
    assert submit(ledger, now=LATER) == first
    assert len(ledger.requests.select()) == len(ledger.events.page()) == 1


def test_a_key_cannot_be_used_for_another_request(ledger: Ledger) -> None:
    """The same key with other content is refused, and the message names the first request."""
    submit(ledger)
    with raises(ConflictingRequest, "key-used", request="r-000001"):
        submit(ledger, parameters={"rate": 3.0})


def test_open_requests_for_one_target_are_all_accepted(ledger: Ledger) -> None:
    """A client, its samples and a class: each gets its number, its day and its deadline; none waits for another one."""
    client_3 = Target(Granularity.CLIENT, "3")
    targets = [client_3, Target(Granularity.SAMPLE, "3", frozenset({"1"})), client_3]
    filed = [submit(ledger, target, key=str(number)) for number, target in enumerate(targets)]
    assert [item.id for item in filed] == ["r-000001", "r-000002", "r-000003"]
    assert {item.due_on for item in filed} == {filed[0].due_on}
    ledger.decisions.hold(filed[0].id, by="ada", now=LATER, reason="a court keeps the data")
    assert [item.is_held for item in ledger.requests.select()] == [True, False, False]


def test_requests_can_be_listed_by_status_and_client(ledger: Ledger, token: int) -> None:
    """Both filters count, alone and together."""
    three = submit(ledger)
    four = submit(ledger, CLIENT_4, key="4")
    live_at(ledger, token, LATER).move(four.id, Status.SCHEDULED)
    assert [item.id for item in ledger.requests.select(statuses=[Status.SCHEDULED])] == [four.id]
    assert [item.id for item in ledger.requests.select(client_id="3")] == [three.id]
    assert ledger.requests.select(statuses=[Status.SCHEDULED], client_id="3") == []


@pytest.mark.parametrize("request_id", ["r-000009", "9", "r-x", "r-99999999999999", "", "r-1'--"])
def test_an_unknown_id_is_not_found(ledger: Ledger, request_id: str) -> None:
    """Ids that no request has are refused, well-formed or not."""
    with pytest.raises(RequestNotFound):
        ledger.requests.get(request_id)


# Moves


@pytest.mark.parametrize("source", [source for source, illegal in ILLEGAL_MOVES.items() if illegal])
def test_an_illegal_move_is_refused_by_code_and_database(
    ledger: Ledger, token: int, sql: sa.Engine, source: Status
) -> None:
    """Neither `move` nor an UPDATE past the ledger gets a request to where it may not go."""
    request = advance(ledger, submit(ledger).id, source, token)
    update = sa.text("UPDATE requests SET status = :to WHERE number = 1")
    for to in ILLEGAL_MOVES[source]:
        with raises(IllegalMove, "no-such-move"):
            live_at(ledger, token, LATER).move(request.id, to)
        with pytest.raises(sa.exc.IntegrityError), sql.begin() as connection:
            connection.execute(update, {"to": str(to)})
        assert ledger.requests.get(request.id).status is source


def test_moving_where_the_request_already_is_changes_nothing(ledger: Ledger, token: int) -> None:
    """A step repeated after a crash leaves no second event and no second attempt."""
    request = advance(ledger, submit(ledger).id, Status.RECOVERING, token)
    events = ledger.events.last_sequence()
    assert live_at(ledger, token, LATER).move(request.id, Status.RECOVERING) == request
    assert ledger.events.last_sequence() == events


@pytest.mark.parametrize("status", list(Status))
def test_the_target_is_excluded_from_verifying_on(ledger: Ledger, token: int, status: Status) -> None:
    """The move to verifying forgets for good; nothing before it does."""
    advance(ledger, submit(ledger).id, status, token)
    gone = status in (Status.VERIFYING, Status.COMPLETED, Status.REOPENED)
    assert ledger.exclusions().is_forgotten("3") is gone


def test_exclusions_add_up(ledger: Ledger, token: int) -> None:
    """Of several requests; what concerns a client is its own and every class, what concerns a class the classes."""
    targets = [
        Target(Granularity.SAMPLE, "3", frozenset({"a"})),
        Target(Granularity.CLASS, class_label=7),
        CLIENT_4,
    ]
    for number, target in enumerate(targets):
        advance(ledger, submit(ledger, target, key=str(number)).id, Status.COMPLETED, token)
    again = submit(ledger, Target(Granularity.SAMPLE, "3", frozenset({"b"})), key="again")
    advance(ledger, again.id, Status.COMPLETED, token)
    of_3, of_4 = Forget(sample_ids=frozenset({"a", "b"})), Forget(everything=True)
    assert ledger.exclusions() == Exclusions({"3": of_3, "4": of_4}, frozenset({7}))


def test_the_requests_that_forgot_a_target_answer_it(ledger: Ledger, token: int) -> None:
    """Those that forgot a part of it, once nothing of it is left; a client that is forgotten covers its samples."""

    def samples(*ids: str) -> Target:
        return Target(Granularity.SAMPLE, "3", frozenset(ids))

    class_7 = Target(Granularity.CLASS, class_label=7)
    for number, target in enumerate([samples("a"), class_7, samples("b", "c"), CLIENT_4]):
        advance(ledger, submit(ledger, target, key=str(number)).id, Status.COMPLETED, token)
    answers = [
        (samples("a"), ("r-000001",)),
        (samples("a", "c"), ("r-000001", "r-000003")),
        (samples("a", "d"), ()),
        (class_7, ("r-000002",)),
        (Target(Granularity.CLASS, class_label=8), ()),
        (Target(Granularity.CLIENT, "3"), ()),
        (CLIENT_4, ("r-000004",)),
        (Target(Granularity.SAMPLE, "4", frozenset({"a"})), ("r-000004",)),
    ]
    assert [ledger.answers(target) for target, _ in answers] == [expected for _, expected in answers]


def test_the_deletion_of_a_class_answers_for_the_samples_alone_that_are_of_it(
    ledger: Ledger, token: int
) -> None:
    """The others must be named by deletions that hold; one that was reopened does not."""

    def samples(*ids: str) -> Target:
        return Target(Granularity.SAMPLE, "3", frozenset(ids))

    class_7, class_8 = (Target(Granularity.CLASS, class_label=label) for label in (7, 8))
    for number, target in enumerate([class_7, class_8, samples("a")]):
        advance(ledger, submit(ledger, target, key=str(number)).id, Status.COMPLETED, token)
    advance(ledger, submit(ledger, samples("r"), key="r").id, Status.REOPENED, token)
    answers = [
        (samples("x"), {"x": 7}, ("r-000001",)),
        (samples("x", "y"), {"x": 7, "y": 8}, ("r-000001", "r-000002")),
        (samples("x", "a"), {"x": 7}, ("r-000001", "r-000003")),
        (samples("x", "r"), {"x": 7}, ()),
        (samples("x", "unknown"), {"x": 7}, ()),
        (samples("x"), {"x": 9}, ()),
    ]
    found = [ledger.answers(target, labels) for target, labels, _ in answers]
    assert found == [expected for _, _, expected in answers]


def test_an_attempt_counts_from_its_beginning(ledger: Ledger, token: int) -> None:
    """A request that is completed, or failed, at its second attempt has two; back in the queue the reason is kept."""
    scheduled = advance(ledger, submit(ledger).id, Status.SCHEDULED, token)
    assert scheduled.attempts == 0
    assert live_at(ledger, token, LATER).move(scheduled.id, Status.UNLEARNING).attempts == 1
    back = live_at(ledger, token, LATER).move(scheduled.id, Status.SCHEDULED, reason="client 3 went away")
    assert (back.attempts, back.reason) == (1, "client 3 went away")
    for status in (Status.UNLEARNING, Status.RECOVERING, Status.VERIFYING, Status.COMPLETED):
        assert live_at(ledger, token, LATER).move(scheduled.id, status).attempts == 2


def test_the_result_is_kept_and_nan_becomes_null(ledger: Ledger, token: int) -> None:
    """JSON knows no NaN; the rest of the result comes back as it was."""
    request = advance(ledger, submit(ledger).id, Status.VERIFYING, token)
    result = {"accuracy": 0.5, "loss": float("nan"), "hashes": ["a", "b"]}
    live_at(ledger, token, LATER).move(request.id, Status.COMPLETED, result=result)
    assert ledger.requests.get(request.id).result == {"accuracy": 0.5, "loss": None, "hashes": ["a", "b"]}


def test_an_old_token_changes_nothing(ledger: Ledger, token: int) -> None:
    """Every write of a live loop that was replaced is refused; only the newest token of this ledger counts."""
    request = submit(ledger)
    newer = ledger.acquire_fence("its successor", now=LATER)
    assert newer == token + 1
    events = ledger.events.page()
    writes = [
        lambda: live_at(ledger, token, LATER).move(request.id, Status.SCHEDULED),
        lambda: live_at(ledger, token, LATER).note(request.id, "waiting", detail={}),
        lambda: live_at(ledger, token, LATER).register_clients([ClientRecord("3")]),
        lambda: live_at(ledger, token).record_round(RoundRecord(round=1, kind="training", at=LATER)),
        lambda: live_at(ledger, token, LATER).set_facts({"num_classes": 10}),
        lambda: live_at(ledger, token).check_fence(),
    ]
    for write in writes:
        with pytest.raises(Fenced):
            write()
    assert (ledger.events.page(), ledger.clients(), ledger.rounds(), ledger.facts()) == (events, [], [], {})
    assert ledger.requests.get(request.id) == request
    live_at(ledger, newer).check_fence()
    with pytest.raises(Fenced):  # a token of another ledger may be larger
        live_at(ledger, newer + 1).check_fence()


# What people do to a request


@pytest.mark.parametrize("status", list(Status))
def test_only_a_request_that_has_not_begun_can_be_cancelled(
    ledger: Ledger, token: int, status: Status
) -> None:
    """One that has not begun is cancelled; cancelling twice is harmless; the rest is refused."""
    request = advance(ledger, submit(ledger).id, status, token)
    if status in UNBEGUN_STATUSES | {Status.CANCELLED}:
        assert ledger.decisions.cancel(request.id, by="ada", now=LATER).status is Status.CANCELLED
    else:
        with raises(IllegalMove, "begun"):
            ledger.decisions.cancel(request.id, by="ada", now=LATER)


def test_a_retryable_failure_is_scheduled_again(ledger: Ledger, token: int) -> None:
    """A retry clears the reason; its attempts go on being counted, and the retry says from where."""
    request = advance(ledger, submit(ledger).id, Status.UNLEARNING, token)
    live_at(ledger, token, LATER).move(request.id, Status.SCHEDULED)
    failed = live_at(ledger, token, LATER).move(request.id, Status.FAILED, reason="gave up", retryable=True)
    assert (failed.reason, failed.retryable, failed.attempts) == ("gave up", True, 1)
    again = ledger.decisions.retry(request.id, by="ada", now=LATER)
    assert (again.status, again.reason, again.retryable, again.attempts) == (Status.SCHEDULED, "", False, 1)
    assert ledger.requests.last_retry(request.id).attempts_before == 1


def test_the_last_retry_says_how_much_score_may_be_lost(ledger: Ledger, token: int) -> None:
    """A plain one takes the acceptance of the one before back."""
    request = advance(ledger, submit(ledger).id, Status.FAILED, token, retryable=True)
    ledger.decisions.retry(request.id, by="ada", now=LATER, accept_score_loss=100)
    assert ledger.requests.last_retry(request.id) == LastRetry(accepted_loss=100, accepted_by="ada")
    live_at(ledger, token, LATER).move(request.id, Status.FAILED, retryable=True)
    ledger.decisions.retry(request.id, by="bob", now=LATER)
    assert ledger.requests.last_retry(request.id) == LastRetry()


def test_a_failure_for_good_is_not_retried(ledger: Ledger, token: int) -> None:
    """Only a failure that another attempt can mend is tried again."""
    request = advance(ledger, submit(ledger).id, Status.FAILED, token, reason="No head.")
    with raises(IllegalMove, "not-retryable"):
        ledger.decisions.retry(request.id, by="ada", now=LATER)


def test_a_retry_waits_for_no_other_request_of_its_target(ledger: Ledger, token: int) -> None:
    """Both are in the queue."""
    failed = advance(ledger, submit(ledger).id, Status.FAILED, token, retryable=True)
    submit(ledger, key="other")
    assert ledger.decisions.retry(failed.id, by="ada", now=LATER).status is Status.SCHEDULED


# Events, clients, rounds


def test_events_tell_what_happened_in_order(ledger: Ledger, token: int) -> None:
    """Submission, moves and notes are there with who, when and why."""
    request = submit(ledger)
    live_at(ledger, token, LATER).move(request.id, Status.SCHEDULED, reason="fits", detail={"queue": 1})
    live_at(ledger, token, LATER).note(request.id, "waiting", detail={"text": "client 3"})
    submit(ledger, CLIENT_4, key="4")
    told = [
        (event.kind, event.from_status, event.to_status, event.actor, event.at)
        for event in ledger.events.page(request.id)
    ]
    assert told == [
        ("submitted", None, None, "ada", NOW),
        ("moved", Status.RECEIVED, Status.SCHEDULED, "loop", LATER),
        ("waiting", None, None, "loop", LATER),
    ]
    _, moved, noted = [event.detail for event in ledger.events.page(request.id)]
    assert (moved["queue"], moved["reason"], noted) == (1, "fits", {"text": "client 3"})
    assert [event.sequence for event in ledger.events.page()] == [1, 2, 3, 4, 5]  # the first is the fence's
    assert len(ledger.events.page(limit=2)) == 2
    assert ledger.events.last_sequence() == 5


def test_a_client_once_known_stays_known(ledger: Ledger, token: int) -> None:
    """Going offline keeps the client and when it was last seen; others are left alone."""
    live_at(ledger, token, NOW).register_clients([ClientRecord("3", "hospital-3", "abcd"), ClientRecord("4")])
    live_at(ledger, token, LATER).register_clients([ClientRecord("3", "hospital-3", "abcd", online=False)])
    assert ledger.clients() == [
        ClientRecord("3", "hospital-3", "abcd", online=False, last_seen=NOW),
        ClientRecord("4", online=True, last_seen=NOW),
    ]
    assert (ledger.has_client("3"), ledger.has_client("33")) == (True, False)


def test_rounds_are_read_back_in_order(ledger: Ledger, token: int) -> None:
    """A round keeps its kind, requests and metrics, and gets the next sequence number."""
    first = RoundRecord(round=7, kind="training", metrics={"loss": 0.25, "failed": {}}, at=NOW)
    second = RoundRecord(round=8, kind="unlearning", request_ids=("r-000001", "r-000002"), at=LATER)
    stored = [live_at(ledger, token).record_round(item) for item in (first, second)]
    assert [item.sequence for item in stored] == [1, 2]
    assert ledger.rounds() == stored
    assert ledger.rounds(after=1) == stored[1:]
    assert (stored[0].metrics, stored[1].request_ids) == (first.metrics, second.request_ids)


def test_the_newest_rounds_of_a_kind_and_those_since_a_filing(ledger: Ledger, token: int) -> None:
    """In order; so that a plan and a report need not read a history of years."""
    for number, kind in enumerate(("training", "training", "recovery", "training")):
        live_at(ledger, token).record_round(RoundRecord(round=number, kind=kind, at=NOW))
    assert [record.round for record in ledger.newest_rounds("training", 2)] == [1, 3]
    assert ledger.newest_at_filing(submit(ledger).id) == 4


@pytest.mark.parametrize("page_size", [1, 2, 3, 4])
def test_a_long_history_is_read_to_its_end(
    ledger: Ledger, token: int, monkeypatch: pytest.MonkeyPatch, page_size: int
) -> None:
    """All events and rounds after a number come once and in order, whether or not the last page is full."""
    monkeypatch.setattr("server.ledger.database._PAGE_SIZE", page_size)
    request = submit(ledger)
    for number in range(3):
        live_at(ledger, token).record_round(RoundRecord(round=number, kind="training", at=NOW))
        live_at(ledger, token, LATER).note(request.id, "waiting")
    other = submit(ledger, CLIENT_4, key="4")
    assert [record.sequence for record in ledger.all_rounds()] == [1, 2, 3]
    assert [record.sequence for record in ledger.all_rounds(after=1)] == [2, 3]
    # The first event is the fence's, and each round has one.
    assert [event.sequence for event in ledger.events.all()] == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert [event.sequence for event in ledger.events.all(request.id, after=2)] == [4, 6, 8]
    assert [event.sequence for event in ledger.events.all(other.id)] == [9]


# The database's own rules


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE events SET kind = 'forged'",
        "DELETE FROM events",
        "DELETE FROM exclusions",
        "UPDATE exclusions SET request_number = 2",
        "UPDATE legal_moves SET to_status = 'completed'",
        "DELETE FROM legal_moves",
        "INSERT INTO legal_moves VALUES ('completed', 'received')",
        "DELETE FROM requests",
        "UPDATE requests SET method = 'other'",
        "UPDATE requests SET target = '{}'",
        "UPDATE requests SET submitted_by = 'someone else'",
        "UPDATE requests SET submitted_role = 'operator'",
        "UPDATE refusals SET caller = 'x'",
        "DELETE FROM refusals",
        "INSERT INTO fence (id, token, holder) VALUES (2, 0, '')",
    ],
)
def test_the_past_cannot_be_rewritten(ledger: Ledger, token: int, sql: sa.Engine, statement: str) -> None:
    """Statements past the ledger's code cannot change or remove what was recorded."""
    advance(ledger, submit(ledger).id, Status.COMPLETED, token)
    ledger.record_refusals([refusal()])
    before = (ledger.requests.select(), ledger.events.page(), ledger.exclusions(), ledger.refusals())
    with pytest.raises(sa.exc.IntegrityError), sql.begin() as connection:
        connection.execute(sa.text(statement))
    assert (ledger.requests.select(), ledger.events.page(), ledger.exclusions(), ledger.refusals()) == before


def test_an_insert_past_the_ledger_obeys_the_rules(ledger: Ledger, sql: sa.Engine) -> None:
    """A request starts as received, also for raw SQL."""
    submit(ledger)
    columns = (
        "idempotency_key, target, method, parameters, submitted_by, status, reason, retryable, attempts, created_at, "
        "updated_at, result"
    )
    values = "'k2', '{}', 'puf', '{}', 'eve', 'completed', '', false, 0, '2026-01-01', '2026-01-01', '{}'"
    with pytest.raises(sa.exc.IntegrityError), sql.begin() as connection:
        connection.execute(sa.text(f"INSERT INTO requests ({columns}) VALUES ({values})"))
    assert len(ledger.requests.select()) == 1


# Several processes, and processes that die

FILE_MANY = """
import sys
from datetime import UTC, datetime
from server.ledger import Ledger, NewRequest
from unlearning.requests import Granularity, Target

ledger = Ledger.open(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
for number in range(15):
    for client in (f"{sys.argv[2]}-{number}", str(number)):
        new = NewRequest(
            target=Target(Granularity.CLIENT, client), method="puf", submitted_by="ada", idempotency_key=client
        )
        print(ledger.requests.submit(new, now=datetime.now(UTC)).id, flush=True)
"""


def started(url: str, *names: str) -> list["subprocess.Popen[str]"]:
    """Processes of these names that all begin to file at one moment, each for 15 clients of its own and 15 of all."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", FILE_MANY, url, name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        for name in names
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    return processes


@pytest.mark.slow
def test_of_two_processes_that_file_under_one_key_at_once_one_makes_the_request(url: str) -> None:
    """Both create the ledger at once and race for 15 keys: each makes one request; no event is lost, none forks off."""
    answers = "".join(process.communicate(timeout=HANGS_S)[0] for process in started(url, "a", "b")).split()
    assert (len(answers), len(set(answers))) == (60, 45)
    ledger = Ledger.open(url)
    clients = {str(item.target.client_id) for item in ledger.requests.select()}
    assert clients == {f"{name}{number}" for name in ("", "a-", "b-") for number in range(15)}
    assert (ledger.events.verify_chain(), ledger.events.head()[0], len(ledger.events.page())) == (
        None,
        45,
        45,
    )
    ledger.close()


def test_a_request_survives_kill_9_right_after_it_was_answered(url: str) -> None:
    """What `submit` has returned is in the ledger, although the process never closed it."""
    (process,) = started(url, "a")
    assert process.stdout is not None
    assert process.stdout.readline() == "r-000001\n"
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=HANGS_S)
    ledger = Ledger.open(url)
    assert ledger.requests.get("r-000001").target == Target(Granularity.CLIENT, "a-0")
    ledger.close()


def test_a_submitter_has_a_limited_number_of_open_requests(ledger: Ledger) -> None:
    """Requests that are over, those of others, and a repeated one do not count."""
    first = submit(ledger, max_open=2)
    ledger.decisions.cancel(submit(ledger, CLIENT_4, key="4", max_open=2).id, by="ada", now=LATER)
    second = submit(ledger, Target(Granularity.CLIENT, "5"), key="5", max_open=2)
    submit(ledger, Target(Granularity.CLIENT, "6"), key="6", max_open=1, submitted_by="bob")
    with raises(LimitExceeded, "open-requests"):
        submit(ledger, Target(Granularity.CLIENT, "7"), key="7", max_open=2)
    assert submit(ledger, max_open=2) == first
    assert second.is_open


def test_one_name_in_two_roles_is_two_submitters(ledger: Ledger) -> None:
    """An operator's open requests do not count against a client of the same name."""
    submit(ledger, submitted_role="operator", max_open=1)
    other = submit(ledger, CLIENT_4, key="k2", submitted_role="client", max_open=1)
    assert other.id == "r-000002"


# What one submitter may file in a day, and what is given back

SAMPLES = Target(Granularity.SAMPLE, "3", frozenset({"a", "b"}))


def test_a_submitter_files_so_many_requests_a_day(ledger: Ledger) -> None:
    """Cancelled ones count, another role is another submitter, and a day later there is room again."""
    quota = Quota(requests_per_day=1)
    ledger.decisions.cancel(submit(ledger, submitted_role="client", quota=quota).id, by="ada", now=NOW)
    with raises(LimitExceeded, "daily-quota"):
        submit(ledger, key="2", submitted_role="client", quota=quota, now=LATER)
    submit(ledger, CLIENT_4, key="3", submitted_role="site", quota=quota, now=LATER)
    submit(ledger, key="4", submitted_role="client", quota=quota, now=LATER + timedelta(days=1))


def test_a_submitter_names_so_many_samples_a_day(ledger: Ledger) -> None:
    """File and cancel does not give the quota back."""
    quota = Quota(samples_per_day=3)
    ledger.decisions.cancel(submit(ledger, SAMPLES, quota=quota).id, by="ada", now=NOW)
    with raises(LimitExceeded, "daily-quota"):
        submit(ledger, SAMPLES, key="2", quota=quota)


@pytest.mark.parametrize(
    ("status", "is_kept"),
    [
        (Status.CANCELLED, False),
        (Status.REPLACED, False),
        (Status.FAILED, True),
        (Status.COMPLETED, True),
    ],
)
def test_ids_that_nothing_needs_are_given_back(
    ledger: Ledger, token: int, sql: sa.Engine, status: Status, is_kept: bool
) -> None:
    """Ended without a deletion: only their number stays. A failed request can be tried in another way."""
    request = submit(ledger, SAMPLES)
    advance(ledger, request.id, status, token)
    with sql.connect() as connection:
        listed = connection.scalar(sa.text("SELECT sample_ids FROM request_samples"))
    assert (listed is not None) == is_kept
    assert ledger.requests.get(request.id).target.num_samples == 2


def test_a_reopened_request_keeps_its_ids_and_its_exclusion_whatever_becomes_of_it(
    ledger: Ledger, token: int
) -> None:
    """Refused or carried out again: without its ids the data would come back into training."""
    for key, end in (("1", Status.REFUSED), ("2", Status.COMPLETED)):
        target = Target(Granularity.SAMPLE, "3", frozenset({key}))
        request = advance(ledger, submit(ledger, target, key=key).id, Status.REOPENED, token)
        assert ledger.answers(target) == ()
        if end is Status.REFUSED:
            ledger.decisions.refuse(request.id, reason="others' own records", by="olga", now=LATER)
            continue
        ledger.decisions.retry(request.id, by="ada", now=LATER)
        for status in (Status.UNLEARNING, Status.RECOVERING, Status.VERIFYING, Status.COMPLETED):
            live_at(ledger, token, LATER).move(request.id, status)
        assert ledger.answers(target) == (request.id,)
    assert ledger.exclusions().of("3").sample_ids == {"1", "2"}
    assert ledger.events.verify() == ""


def test_requests_are_listed_without_ids(ledger: Ledger) -> None:
    """A list costs the same however many samples the requests name."""
    submit(ledger, SAMPLES)
    submit(ledger, CLIENT_4, key="2")
    first, _ = ledger.requests.select()
    assert (first.target.sample_ids, first.target.num_samples) == (frozenset(), 2)


def test_what_is_forgotten_is_counted_without_reading_ids(ledger: Ledger, token: int) -> None:
    """Whole clients, samples by client, and requests by state."""
    advance(ledger, submit(ledger, SAMPLES).id, Status.COMPLETED, token)
    advance(ledger, submit(ledger, CLIENT_4, key="2").id, Status.COMPLETED, token)
    submit(ledger, key="3")
    assert ledger.forgotten_clients() == {"4"}
    assert ledger.num_forgotten_samples() == {"3": 2}
    assert ledger.requests.status_counts() == {Status.COMPLETED: 2, Status.RECEIVED: 1}
    assert ledger.requests.oldest_open() == {Status.RECEIVED: NOW}
