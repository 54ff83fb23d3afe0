"""Rounds over sessions whose client dies, with real processes: the others go on, and the client comes back.

A client that hangs is in test_gate.py.
"""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from server.processes.deployment import WORKER
from tests.integration.live_federation import WAIT_S, LiveFederation, live_federation

LONGEST_ROUND_S = 120.0
"""A minute until Flower gives a process up, half a one for a stream that may come back; and a loaded machine's time."""

FAKE_GPU = Path(__file__).parent / "fake_gpu"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveFederation]:
    """Four clients whose rounds go over sessions, on machines with what passes for a GPU."""
    directory = tmp_path_factory.mktemp("session-failures")
    environment = {
        "PYTHONPATH": os.pathsep.join([str(FAKE_GPU), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "FAKE_GPU_LOG": str(directory / "began"),
    }
    with live_federation(
        directory, num_clients=4, environment=environment, round_interval_s=1.0
    ) as federation:
        yield federation


@pytest.mark.long
def test_a_session_begins_cuda_once_for_all_its_rounds(live: LiveFederation) -> None:
    """In the process that attends, and not in the worker that it was forked from, which could not hand it on."""
    live.wait_for_rounds(2)
    began = (live.deployment.layout.directory.parent / "began").read_text().split()
    attending = [str(live.session_process(client)) for client in range(4)]
    assert [began.count(pid) for pid in attending] == [1] * 4
    assert str(live.deployment.pid(WORKER)) not in began
    sites = {str(member.pid) for member in live.deployment._group(WORKER).members()}
    assert {*began} & sites == {*attending}  # beside them the server's process has asked, for its test set


def test_a_session_whose_process_is_killed_comes_back(live: LiveFederation) -> None:
    """Flower gives the process up a minute later; then the site takes the next invitation. No round waits longer.

    By SIGTERM (client 3) as by SIGKILL (client 0).
    """
    live.wait_for_rounds(1)
    killed = {client: live.session_process(client) for client in (0, 3)}
    before = live.rounds()[-1].round
    os.kill(killed[0], signal.SIGKILL)
    os.kill(killed[3], signal.SIGTERM)
    live.deployment.wait_until(
        lambda: any(
            record.round > before + 1 and record.metrics["participants"] == ["0", "1", "2", "3"]
            for record in live.rounds()
        ),
        WAIT_S,
        "clients 0 and 3 train again",
    )
    assert all(live.session_process(client) != pid for client, pid in killed.items())
    after = [record for record in live.rounds() if record.round > before]
    assert all({"1", "2"} <= {*record.metrics["participants"]} for record in after)
    assert all(record.metrics["seconds"] < LONGEST_ROUND_S for record in after)
