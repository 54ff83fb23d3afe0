"""Second-order methods with real processes: live deletions, clients killed mid-solve.

Over mutual TLS, and the same bits as in one process: test_same_weights.py. In the gate test_session_deletions.py and
test_second_order.py lose clients in a solve, and test_session_processes.py kills the process of a session.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.deployment import supernode
from tests.federation import client
from tests.integration.deployments import restart
from tests.integration.live_federation import (
    UNLEARN,
    LiveFederation,
    live_federation,
)
from tests.waiting import HANGS_S
from unlearning.requests import DeletionRequest, Status

pytestmark = [pytest.mark.slow, pytest.mark.long]

SESSION = "train.session"
LONG_SOLVE = {"iterations": 25, "tolerance": 0.0, "trust_radius": 1e6, "damping": 1.0, "precondition": False}
"""Products of a CNN for some seconds; a client can be killed among them."""


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveFederation]:
    """Three clients with a small CNN; sessions carry only the methods of many exchanges.

    Between deletions hardly a round, which is not what is tested; a retry waits for one.
    """
    directory = tmp_path_factory.mktemp("sessions")
    with live_federation(
        directory, num_clients=3, model="cnn", max_examples=240, transport="messages", round_interval_s=20.0
    ) as federation:
        yield federation


def unlearning_of(state_dir: Path, request: DeletionRequest) -> dict[str, Any]:
    """What the report says of the unlearning."""
    text = (state_dir / "reports" / request.id / "report.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)["unlearning"]
    return found


def requested(
    live: LiveFederation, *, first_sample: int, method: str, **parameters: object
) -> DeletionRequest:
    """The deletion of five samples of client 1, from the command line."""
    ids = live.deployment.layout.directory / f"ids-{first_sample}.txt"
    ids.write_text("\n".join(sorted(live.samples(1, first_sample).sample_ids)))
    given = [text for name, value in parameters.items() for text in ("--parameter", f"{name}={value}")]
    said = live.flower_unlearn("request", "--client", "1", "--samples", str(ids), "--method", method, *given)
    return live.ledger.requests.get(said.split()[0])


def test_a_request_from_the_command_line_is_served_over_a_session(live: LiveFederation) -> None:
    """All exchanges, one message a client, and none of the messages that carry single exchanges."""
    request = requested(live, first_sample=0, method="newton-cg", iterations=4)
    live.wait_until_reached(request, Status.COMPLETED)
    unlearning = unlearning_of(live.deployment.layout.state_dir, request)
    assert unlearning["rounds"] > 2
    assert unlearning["participants"] == ["0", "1", "2"]
    for number in range(3):
        assert live.num_messages(number, SESSION) == 1
        assert live.num_messages(number, UNLEARN) == 0


def test_a_client_killed_mid_solve_is_named_and_the_others_finish(live: LiveFederation) -> None:
    """The request is completed, and the report says whose curvature is missing from when on."""
    request = live.service.submit(client("2"), method="newton-cg", parameters=LONG_SOLVE)
    live.deployment.wait_until(lambda: live.num_exchanges() >= 5, HANGS_S, "the solve is under way")
    live.deployment.kill(supernode(0))
    live.wait_until_reached(request, Status.COMPLETED)
    live.deployment.start(supernode(0))
    unlearning = unlearning_of(live.deployment.layout.state_dir, request)
    assert unlearning["findings"]["clients lost during the solve"].startswith("0;")
    assert unlearning["findings"]["clients whose curvature was used"] == ["1"]
    assert unlearning["attempts"] == 1
    assert len(live.completions(request)) == 1


def test_hf_kcu_is_asked_again_when_its_requester_is_killed_at_it(live: LiveFederation) -> None:
    """From the command line; the report is that of the attempt that ended, and no other client was asked.

    Beside the kills of SuperNodes in test_supernode_kills.py.
    """
    asked = {number: live.num_messages(number, UNLEARN) for number in range(2)}
    request = requested(live, first_sample=10, method="hf-kcu", iterations=25, lanczos_steps=0)
    live.deployment.wait_until(
        lambda: live.num_messages(1, UNLEARN) > asked[1], HANGS_S, "client 1 begins to solve"
    )
    restart(live.deployment, supernode(1))
    live.wait_until_reached(request, Status.COMPLETED)
    unlearning = unlearning_of(live.deployment.layout.state_dir, request)
    assert unlearning["attempts"] >= 2
    assert unlearning["participants"] == ["1"]
    assert len(unlearning["findings"]["client 1"]["residuals"]) == 26
    assert live.num_messages(0, UNLEARN) == asked[0]
    assert len(live.completions(request)) == 1
