"""Rounds over sessions whose client dies, with real processes: the others go on, and the client comes back."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from server.processes.deployment import WORKER, supernode
from tests.integration.live_federation import WAIT_S, LiveFederation, live_federation

LONGEST_ROUND_S = 120.0
"""A minute until Flower gives a process up, half a one for a stream that may come back; and a loaded machine's time."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveFederation]:
    """Three clients whose rounds go over sessions."""
    directory = tmp_path_factory.mktemp("session-failures")
    with live_federation(
        directory, num_clients=3, with_sessions=True, transport="session", round_interval_s=1.0
    ) as federation:
        yield federation


def test_a_session_whose_process_is_killed_comes_back(live: LiveFederation) -> None:
    """Flower gives the process up a minute later; then the site takes the next invitation. No round waits longer."""
    live.wait_for_rounds(1)
    killed = session_process(live, 0)
    before = live.rounds()[-1].round
    os.kill(killed, signal.SIGKILL)
    live.deployment.wait_until(
        lambda: any(
            record.round > before + 1 and record.metrics["participants"] == ["0", "1", "2"]
            for record in live.rounds()
        ),
        WAIT_S,
        "client 0 trains again",
    )
    assert session_process(live, 0) != killed
    after = [record for record in live.rounds() if record.round > before]
    assert all({"1", "2"} <= {*record.metrics["participants"]} for record in after)
    assert all(record.metrics["seconds"] < LONGEST_ROUND_S for record in after)


def session_process(live: LiveFederation, client: int) -> int:
    """The process that a client's session lives in: forked by the worker, with the SuperNode's streams."""
    log = live.deployment._group(supernode(client)).log_path
    (found,) = (
        member.pid
        for member in live.deployment._group(WORKER).members()
        if Path(f"/proc/{member.pid}/fd/1").resolve() == log.resolve()
    )
    return found
