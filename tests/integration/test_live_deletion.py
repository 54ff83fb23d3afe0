"""Deletions on a live federation of real processes, asked for with the commands that people use.

All facts are about one history: client 2 is to be forgotten; later some samples of client 1 are, and in
the same round client 0 files at its own site; rounds go on before, between and after.
All of it goes over Flower messages, which are counted.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from client.memory import DirectoryMemory
from tests.integration.live_federation import TRAIN, LiveFederation, live_federation
from unlearning.requests import DeletionRequest, Status

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

NUM_SAMPLES = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """The federation after all of it, the three requests in order, and what the commands said.

    num_trained: how many training messages client 2 had got when it was forgotten.
    """

    live: LiveFederation
    client_2: DeletionRequest
    samples: DeletionRequest
    site: DeletionRequest
    answer: str
    site_answer: str
    num_trained: int


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Iterator[History]:
    """Live through it once."""
    directory = tmp_path_factory.mktemp("live-deletion")
    with live_federation(directory, num_clients=3, with_sessions=False) as live:
        live.wait_for_message(0, TRAIN)
        answer = live.flower_unlearn("request", "--client", "2")
        client_2 = live.ledger.requests.get(answer.split()[0])
        live.wait_until_reached(client_2, Status.COMPLETED)
        num_trained = live.num_messages(2, TRAIN)
        live.wait_for_rounds(1)

        site_answer = live.command("flower-unlearn-site", "request", "--state-dir", str(state_dir(live, 0)))
        ids = directory / "ids.txt"
        ids.write_text("\n".join(sorted(live.samples(1, 0, NUM_SAMPLES).sample_ids)))
        said = live.flower_unlearn("request", "--client", "1", "--samples", str(ids))
        samples = live.ledger.requests.get(said.split()[0])
        live.deployment.wait_until(
            lambda: len(live.ledger.requests.select()) == 3, 120, "the site's request arrives"
        )
        (site,) = live.ledger.requests.select(client_id="0")
        for request in (samples, site):
            live.wait_until_reached(request, Status.COMPLETED)
        live.wait_for_rounds(1)
        yield History(
            live=live,
            client_2=client_2,
            samples=samples,
            site=site,
            answer=answer,
            site_answer=site_answer,
            num_trained=num_trained,
        )


def state_dir(live: LiveFederation, number: int) -> Path:
    """The state directory at a client's own site."""
    return live.deployment.layout.client_dir(number) / "state"


def participants(live: LiveFederation, after: int, before: int) -> list[tuple[str, list[str]]]:
    """Kind and participants of the rounds with numbers between the two."""
    return [
        (record.kind, record.metrics["participants"])
        for record in live.rounds()
        if after < record.round < before
    ]


def test_the_others_train_on_while_a_client_is_forgotten(history: History) -> None:
    """All three before; the target alone unlearns; the other two recover and train on."""
    live = history.live
    (unlearning,) = live.rounds_of(history.client_2, "unlearning")
    # The request filed at a site may be served before the samples are, or with them.
    next_one = next(
        record for record in live.rounds() if record.kind == "unlearning" and record.round > unlearning.round
    )
    before = participants(live, 0, unlearning.round)
    after = participants(live, unlearning.round, next_one.round)
    assert before == [("training", ["0", "1", "2"])] * len(before)
    assert len(before) >= 1
    assert unlearning.metrics["participants"] == ["2"]
    assert after[0] == ("recovery", ["0", "1"])
    assert after[1:] == [("training", ["0", "1"])] * (len(after) - 1)
    assert len(after) >= 2


def test_a_forgotten_client_is_asked_no_more(history: History) -> None:
    """Its SuperNode is still connected, and has got no training message since."""
    assert history.num_trained >= 1
    assert history.live.num_messages(2, TRAIN) == history.num_trained
    online = {record.client_id for record in history.live.ledger.clients() if record.online}
    assert "2" in online


def test_a_forgotten_client_keeps_a_tombstone(history: History) -> None:
    """At its own site, so that no server can talk it into training again; the others have none of it."""
    buried = {number: DirectoryMemory(state_dir(history.live, number)).tombstones() for number in (1, 2)}
    assert buried[2].everything
    assert not buried[1].everything


def test_forgotten_samples_leave_the_training_and_their_client_stays(history: History) -> None:
    """It trains on what it retains, and remembers at its site what it may not."""
    live = history.live
    last = live.training_rounds()[-1].metrics
    assert last["participants"] == ["1"]
    assert last["num_examples"] == live.num_examples(1) - NUM_SAMPLES
    tombstones = DirectoryMemory(state_dir(live, 1)).tombstones()
    assert tombstones.sample_ids == live.ledger.requests.target_of(history.samples).sample_ids


def test_a_request_filed_at_a_site_is_completed_and_answered_there(history: History) -> None:
    """It travels with the next reply, and what became of it travels back, to a forgotten client too."""
    assert history.site.target.client_id == "0"
    assert history.site.submitted_by == "site of client 0"
    said = history.live.command(
        "flower-unlearn-site", "status", "--state-dir", str(state_dir(history.live, 0))
    )
    assert f"{history.site.id} is completed. Its report: flower-unlearn report" in said
    assert "waiting" not in said
    assert history.live.training_rounds()[-1].metrics["participants"] == ["1"]


def test_the_report_tells_of_the_deletion(history: History, tmp_path: Path) -> None:
    """`flower-unlearn report` fetches both files; their models are those of the ledger, and differ."""
    history.live.flower_unlearn("report", history.client_2.id, "--output", str(tmp_path))
    report = json.loads((tmp_path / f"report-{history.client_2.id}.json").read_text())
    assert report["request"]["client_id"] == "2"
    assert [item["stage"] for item in report["measurements"]] == ["before", "unlearned", "recovery"]
    done = history.live.ledger.requests.get(history.client_2.id)
    models = [report[f"model_hash_{when}"] for when in ("before", "after_unlearning", "after")]
    assert models == [done.result[f"model_hash_{when}"] for when in ("before", "unlearned", "after")]
    assert len(set(models)) == 3
    assert "<html" in (tmp_path / f"report-{history.client_2.id}.html").read_text()


def test_status_says_completed(history: History) -> None:
    """The command that filed it named the id; `status` knows the end."""
    assert history.answer.startswith("r-000001  received  forget client 2")
    assert "completed" in history.live.flower_unlearn("status", "r-000001")
    assert "next answer" in history.site_answer
