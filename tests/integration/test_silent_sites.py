"""SIGKILL of a whole site, which stays away: work goes on within a minute, in a round, in unlearning and in recovery.

Over Flower messages, where nothing but a heartbeat that does not come says that a site is gone. Over sessions a broken
stream says it after half a minute (`test_session_processes`).
"""

import time
from collections.abc import Callable, Iterator

import pytest

from benchmarks.deployment import supernode
from server.ledger import WAITING
from tests.integration.live_federation import TRAIN, UNLEARN, LiveFederation, live_federation
from tests.waiting import HANGS_S
from unlearning.requests import Status

pytestmark = [pytest.mark.slow, pytest.mark.long]

LONGEST_S = 60.0


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveFederation]:
    """Three clients whose messages take seconds; an answer could be waited for ten minutes."""
    settings = {"local_epochs": 100, "round_timeout_s": 600.0, "round_interval_s": 0.0}
    directory = tmp_path_factory.mktemp("silent-sites")
    with live_federation(directory, num_clients=3, with_sessions=False, **settings) as federation:
        yield federation


def killed(live: LiveFederation, client: int, goes_on: Callable[[], bool]) -> float:
    """Kill a site; return how long it took until `goes_on`. The ledger says meanwhile for whom it is waited."""
    live.deployment.kill(supernode(client))
    since, said = time.monotonic(), []

    def is_so() -> bool:
        said.append(dict(live.ledger.facts().get(WAITING) or {}).get("text", ""))
        return goes_on()

    live.deployment.wait_until(is_so, HANGS_S, "work goes on")
    took = time.monotonic() - since
    assert any(text.startswith(f"Waiting for {client} since ") for text in said)
    return took


def back(live: LiveFederation, client: int) -> None:
    """Start the site again and wait until all three train."""
    live.deployment.start(supernode(client))
    live.deployment.wait_until(
        lambda: live.rounds()[-1].metrics["participants"] == ["0", "1", "2"], HANGS_S, "all train again"
    )


def test_a_round_goes_on_without_a_site_that_was_killed(live: LiveFederation) -> None:
    """It is missing in the round, which is committed with the others'."""
    live.wait_for_message(0, TRAIN)
    before = live.rounds()[-1].round
    took = killed(live, 0, lambda: live.rounds()[-1].round > before)
    print(f"a round: {took:.0f} s")
    assert took < LONGEST_S
    assert live.rounds()[-1].metrics["participants"] == ["1", "2"]
    assert list(live.rounds()[-1].metrics["failed"]) == ["0"]
    back(live, 0)


def test_a_deletion_whose_site_was_killed_lets_others_go_on(live: LiveFederation) -> None:
    """In unlearning: its attempt ends, the federation trains, and the request waits for its site."""
    request = live.file(live.samples(1, 0))
    live.wait_for_message(1, UNLEARN)
    took = killed(live, 1, lambda: live.ledger.requests.get(request.id).status is not Status.UNLEARNING)
    print(f"unlearning: {took:.0f} s")
    assert took < LONGEST_S
    before = live.rounds()[-1].round
    live.deployment.wait_until(lambda: live.rounds()[-1].round > before, HANGS_S, "the others train")
    back(live, 1)
    live.wait_until_reached(request, Status.COMPLETED)


def test_a_recovery_goes_on_without_another_site_that_was_killed(live: LiveFederation) -> None:
    """The deletion does not need it, and is completed."""
    request = live.file(live.samples(1, 10))
    live.wait_until_reached(request, Status.RECOVERING)
    live.wait_for_message(0, TRAIN)
    took = killed(live, 0, lambda: bool(live.rounds_of(request, "recovery")))
    print(f"recovery: {took:.0f} s")
    assert took < LONGEST_S
    live.wait_until_reached(request, Status.COMPLETED)
