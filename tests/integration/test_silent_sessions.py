"""SIGKILL of a whole site that attends a session: recovery goes on within a minute (others: `test_silent_sites`)."""

import time
from collections.abc import Iterator

import pytest

from benchmarks.deployment import supernode
from tests.integration.live_federation import LiveFederation, live_federation
from tests.waiting import HANGS_S
from unlearning.requests import Status

pytestmark = [pytest.mark.slow, pytest.mark.long]

LONGEST_S = 60.0


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveFederation]:
    """Three clients that train for seconds; an answer could be waited for ten minutes."""
    settings = {"local_epochs": 300, "round_timeout_s": 600.0, "round_interval_s": 0.0}
    directory = tmp_path_factory.mktemp("silent-sessions")
    with live_federation(directory, num_clients=3, **settings) as federation:
        yield federation


def test_a_recovery_goes_on_without_another_site_that_was_killed(live: LiveFederation) -> None:
    """The deletion does not need it, and is completed."""
    live.wait_for_rounds(1)
    request = live.file(live.samples(1, 0))
    live.wait_until_reached(request, Status.RECOVERING)
    live.deployment.kill(supernode(0))
    since = time.monotonic()
    live.deployment.wait_until(lambda: bool(live.rounds_of(request, "recovery")), HANGS_S, "recovery goes on")
    took = time.monotonic() - since
    print(f"recovery over sessions: {took:.0f} s")
    assert took < LONGEST_S
    assert "0" not in live.rounds_of(request, "recovery")[0].metrics["participants"]
    live.wait_until_reached(request, Status.COMPLETED)
