"""The gate on real processes: who may ask for a destructive deletion, what becomes of it, and how it is accepted.

And in the same federation, at last, a client whose process hangs; others of those are in test_session_processes.py.
"""

import json
import os
import signal
from collections.abc import Iterator

import pytest
from typer.testing import CliRunner

from client.memory import DirectoryMemory
from server.cli import app
from tests.integration.live_federation import WAIT_S, LiveFederation, live_federation
from unlearning.requests import Granularity, Status, Target

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SITE = 1


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveFederation]:
    """A federation of three that has trained; its gate allows five points, and a round waits for nobody for long."""
    directory = tmp_path_factory.mktemp("gate")
    with live_federation(directory, num_clients=3, max_score_loss=5.0, round_timeout_s=20.0) as one:
        one.wait_for_rounds(3)
        yield one


def score(live: LiveFederation) -> float:
    return float(live.training_rounds()[-1].metrics["test_score"])


def test_a_site_cannot_ask_for_what_destroys_the_model(live: LiveFederation) -> None:
    """Its request is refused in one sentence, which it finds at its own site, and the federation records it."""
    memory = DirectoryMemory(live.deployment.layout.client_dir(SITE) / "state")
    itself = Target(Granularity.CLIENT, str(SITE))
    key = memory.file_request(itself, "puf-special", {"unlearning_rate": 100.0})
    live.deployment.wait_until(lambda: bool(memory.answered_requests()), 300, "the site has an answer")
    (sent,) = memory.answered_requests()
    assert sent["key"] == key
    assert "Only an operator may ask puf-special for unlearning_rate = 100.0" in sent["answer"]
    assert [refusal.caller for refusal in live.ledger.refusals()] == [str(SITE)]
    assert live.ledger.requests.select() == []


def test_what_an_operator_chose_is_held_and_may_be_accepted(live: LiveFederation) -> None:
    """The model stays, rounds go on with everybody; then the operator accepts the loss by a command."""
    before = score(live)
    said = live.flower_unlearn("request", "--client", "2", "--parameter", "unlearning_rate=60")
    request = live.ledger.requests.get(said.split()[0])
    live.wait_until_reached(request, Status.FAILED)
    held = live.ledger.requests.get(request.id)
    assert held.retryable
    assert "points lost, max-score-loss allows 5" in held.reason
    live.wait_for_rounds(1)
    after = live.training_rounds()[-1]
    assert after.metrics["participants"] == ["0", "1", "2"]
    assert score(live) > before - 0.1

    live.flower_unlearn("retry", request.id, "--accept-score-loss", "100")
    live.wait_until_reached(request, Status.COMPLETED)
    report = json.loads(
        (live.deployment.layout.state_dir / "reports" / request.id / "report.json").read_text()
    )
    assert any(
        "accepts that the model loses up to 100 points" in event["reason"] for event in report["events"]
    )
    memory = DirectoryMemory(live.deployment.layout.client_dir(2) / "state")
    assert memory.tombstones().everything


def test_a_client_whose_process_hangs_is_named_with_what_to_do(live: LiveFederation) -> None:
    """It counts as online and holds its stream: two rounds without an answer, and log and `check` name it."""
    live.deployment.wait_until(
        lambda: "1" in live.rounds()[-1].metrics["participants"], WAIT_S, "client 1 has trained"
    )
    hanging = live.session_process(1)
    os.kill(hanging, signal.SIGSTOP)
    live.deployment.wait_until(
        # on a busy machine another may miss the short limit of a round too
        lambda: all("1" in record.metrics["silent"] for record in live.rounds()[-2:]),
        WAIT_S,
        "two rounds have passed without client 1",
    )
    sentence = "Client 1 is online and gave no answer in rounds "
    layout = live.deployment.layout
    options = ["--state-dir", str(layout.state_dir), "--config-dir", str(layout.directory)]
    ran = CliRunner().invoke(app, ["check", *options])
    for said in (ran.output, live.deployment.control.log(live.run_id)):
        assert "Restart its SuperNode (systemctl restart flower-supernode" in said[said.index(sentence) :]
    os.kill(hanging, signal.SIGCONT)
    live.deployment.wait_until(
        lambda: "1" in live.rounds()[-1].metrics["participants"], WAIT_S, "client 1 trains again"
    )
