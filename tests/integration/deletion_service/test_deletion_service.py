"""The deletion service over real gRPC: its answers, and watching a request."""

from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from server.ledger import LEFT_OUT, Event, Ledger, RoundRecord
from server.service.client import DeletionClient
from server.service.grpc_server import RunningServer, serve
from tests.deletion_service import FORGETTING, NOW, LiveLoop, submit
from tests.ledgers import live_at
from unlearning.errors import RequestNotFound
from unlearning.methods.registry import METHODS
from unlearning.requests import DeletionRequest, Granularity, Status, Target

# Answers


def test_a_request_is_in_the_ledger_when_it_is_answered(
    client: DeletionClient, ledger: Ledger, loop: LiveLoop
) -> None:
    """The answer is the ledger's own record, over the wire and back."""
    target = Target(Granularity.SAMPLE, "3", frozenset({"17", "é"}))
    answer = submit(client, target, parameters={"unlearning_rate": 1.5}, idempotency_key="k")
    assert answer == ledger.requests.get(answer.id) == client.get(answer.id)
    assert (answer.target, answer.submitted_by) == (target.without_ids(), "ada")
    assert ledger.requests.target_of(answer) == target


def test_the_roster_says_what_was_forgotten(client: DeletionClient, loop: LiveLoop) -> None:
    """A forgotten client, and the number of forgotten samples of another."""
    loop.move(submit(client).id, *FORGETTING)
    two = Target(Granularity.SAMPLE, "4", frozenset({"a", "b"}))
    loop.move(submit(client, two).id, *FORGETTING)
    clients = client.clients().clients
    told = [(item.client.client_id, item.forgotten, item.num_forgotten_samples) for item in clients]
    assert told == [("3", True, 0), ("4", False, 2)]


def test_the_roster_says_who_is_left_out_of_rounds(client: DeletionClient, ledger: Ledger) -> None:
    """With what the live loop says of it; `clients` and `watch` show that."""
    token = ledger.acquire_fence("test", now=NOW)
    live_at(ledger, token, NOW).set_facts({LEFT_OUT: {"4": "It is left out of rounds until round 9."}})
    assert client.clients().waiting == "Client 4: It is left out of rounds until round 9."


def test_what_has_happened_since_is_listed(
    client: DeletionClient, ledger: Ledger, loop: LiveLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Events after a number, of one request or of all, with the newest number; a long story comes whole."""
    monkeypatch.setattr("server.service.client.LIST_PAGE", 10)
    monkeypatch.setattr("server.service.deletion_service._PAGE", 10)
    one, other = submit(client), submit(client, Target(Granularity.CLIENT, "4"))
    loop.move(one.id, Status.SCHEDULED)
    events, newest = client.events(one.id)
    assert events == ledger.events.page(one.id)
    assert newest == ledger.events.last_sequence()
    assert client.events(after=newest) == ([], newest)
    for number in range(21):
        loop.note(other.id, str(number))
    told = [item.detail.get("text") for item in client.events(after=newest)[0] if item.request_id]
    assert told == [str(number) for number in range(21)]


def test_the_newest_rounds_are_listed_in_order(client: DeletionClient, loop: LiveLoop) -> None:
    """So many at most, and only those after the last that is known."""
    for number in range(5):
        loop.round(number, "training", loss=0.5)
    assert [item.round for item in client.rounds(limit=2)] == [3, 4]
    known = client.rounds()[-2]
    assert [item.round for item in client.rounds(after=known.sequence)] == [4]


def test_every_method_is_described(client: DeletionClient) -> None:
    """Names and parameters come from the registry."""
    described = {method.name: method for method in client.methods()}
    assert set(described) == set(METHODS)
    assert described["puf-special"].parameters["unlearning_rate"]["default"] == 2.0


def test_a_cancelled_request_is_cancelled_in_the_ledger(
    client: DeletionClient, ledger: Ledger, loop: LiveLoop
) -> None:
    """Who cancelled is in the events."""
    request = submit(client)
    assert client.change("cancel", request.id, by="bob").status is Status.CANCELLED
    assert ledger.events.page(request.id)[-1].actor == "bob"


def test_a_request_whose_target_was_forgotten_meanwhile_can_be_retried(
    client: DeletionClient, loop: LiveLoop
) -> None:
    """The live loop answers it with the deletion that forgot it."""
    failed = submit(client)
    loop.move(failed.id, Status.FAILED, retryable=True)
    loop.move(submit(client).id, *FORGETTING)
    assert client.change("retry", failed.id).status is Status.SCHEDULED


def test_the_service_says_that_it_is_healthy(service: RunningServer) -> None:
    """The standard health service, for load balancers and supervisors."""
    with grpc.insecure_channel(service.address) as channel:
        answer = health_pb2_grpc.HealthStub(channel).Check(
            health_pb2.HealthCheckRequest(service="flower_unlearning.deletion.v1.DeletionService"), timeout=10
        )
    assert answer.status == health_pb2.HealthCheckResponse.SERVING


# Watching


def test_a_watch_of_a_finished_request_tells_its_story_and_ends(
    client: DeletionClient, loop: LiveLoop
) -> None:
    """Rounds and events in the order of their times, from filing to the end and no others."""
    loop.round(1, "training")
    request = submit(client)
    loop.move(request.id, Status.SCHEDULED)
    loop.round(2, "training")
    loop.note(request.id, "client 3")
    loop.move(request.id, Status.UNLEARNING)
    loop.round(3, "unlearning", request.id)
    loop.move(request.id, Status.RECOVERING, Status.VERIFYING, Status.COMPLETED)
    loop.round(4, "training")
    story = list(client.watch(request.id))
    assert [_word(item) for item in story] == [
        "completed",
        "submitted",
        "→ scheduled",
        "round 2",
        "waiting",
        "→ unlearning",
        "round 3",
        "→ recovering",
        "→ verifying",
        "→ completed",
        "completed",
    ]


def test_a_watch_shows_what_happens_while_it_watches_and_ends_with_the_request(
    client: DeletionClient, loop: LiveLoop
) -> None:
    """Each item arrives before the next thing is done."""
    request = submit(client)
    story = client.watch(request.id)
    assert [_word(next(story)) for _ in range(2)] == ["received", "submitted"]
    loop.round(1, "training")
    assert _word(next(story)) == "round 1"
    loop.move(request.id, Status.SCHEDULED)
    assert _word(next(story)) == "→ scheduled"
    client.change("cancel", request.id)
    assert [_word(item) for item in story] == ["→ cancelled", "cancelled"]


def test_a_watch_goes_on_when_the_service_comes_back(ledger: Ledger, loop: LiveLoop, tmp_path: Path) -> None:
    """Nothing is told twice and nothing is left out when the service restarts on the same port."""
    first = serve(ledger, tmp_path, "127.0.0.1:0")
    with DeletionClient(first.address) as client:
        request = submit(client)
        story = client.watch(request.id)
        assert [_word(next(story)) for _ in range(2)] == ["received", "submitted"]
        first.stop(0)
        loop.move(request.id, Status.SCHEDULED)
        second = serve(ledger, tmp_path, first.address)
        loop.move(request.id, Status.FAILED)
        rest = [_word(item) for item in story]
        second.stop(0)
    assert rest[-3:] == ["→ scheduled", "→ failed", "failed"]
    assert "submitted" not in rest


def _word(item: DeletionRequest | Event | RoundRecord) -> str:
    match item:
        case DeletionRequest():
            return str(item.status)
        case Event():
            return f"→ {item.to_status}" if item.to_status else item.kind
        case RoundRecord():
            return f"round {item.round}"


def test_what_is_filed_decided_and_refused_is_one_log_line_each(
    client: DeletionClient, loop: LiveLoop, caplog: pytest.LogCaptureFixture
) -> None:
    """With who, what and which request, for a log collector; sent again it is not filed again."""
    caplog.set_level("INFO", logger="server")
    for _ in range(2):
        submit(client, idempotency_key="k")
    client.change("hold", "r-000001", by="ada", reason="of Erika Müller")
    with pytest.raises(RequestNotFound):
        client.get("r-000009")
    lines = [vars(record) for record in caplog.records if hasattr(record, "event")]
    assert [line["event"] for line in lines] == ["filed", "hold", "refused"]
    assert [line["request"] for line in lines[:2]] == ["r-000001"] * 2
    assert (lines[1]["by"], lines[1]["status"], lines[2]["call"]) == ("ada", "received", "GetRequest")
    assert "Erika" not in caplog.text


def test_calls_are_counted_by_how_they_ended(
    client: DeletionClient, service: RunningServer, loop: LiveLoop
) -> None:
    """Also those that are refused; each has its time."""
    submit(client)
    client.get("r-000001")
    with pytest.raises(RequestNotFound):
        client.get("r-000009")
    samples = {
        (sample.name.removeprefix("flower_unlearning_"), *sample.labels.values()): sample.value
        for metric in service.core.checks.metrics.collect()
        for sample in metric.samples
    }
    calls = (("SubmitRequest", "OK"), ("GetRequest", "OK"), ("GetRequest", "NOT_FOUND"))
    assert [samples["calls_total", *one] for one in calls] == [1, 1, 1]
    assert samples["call_seconds_count", "GetRequest"] == 2
