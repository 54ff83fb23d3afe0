"""SIGKILL of a client's SuperNode with a deletion under way: the request is completed, exactly once.

The tests share one running federation and each leaves it running. A client that is lost in a round is
missing from its average, so the models are not compared with those of a run without kills.
"""

from collections.abc import Iterator, Mapping

import pytest

from benchmarks.deployment import supernode
from server.operations.flower_control import ConfigValue
from tests.federation import client
from tests.integration.deployments import restart
from tests.integration.live_federation import (
    TRAIN,
    UNLEARN,
    WHOAMI,
    LiveFederation,
    live_federation,
)
from unlearning.requests import Status

pytestmark = [pytest.mark.slow, pytest.mark.long]

LONG_MESSAGES: Mapping[str, ConfigValue] = {"local_epochs": 300, "round_timeout_s": 90.0}
"""Seconds of training a message, so that it can be killed in the middle; a killed one is waited for to the deadline."""


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveFederation]:
    """Three clients, so that two go on when one is lost."""
    directory = tmp_path_factory.mktemp("supernode-kills")
    with live_federation(directory, num_clients=3, with_sessions=False, **LONG_MESSAGES) as federation:
        yield federation


def test_a_deletion_goes_on_without_another_client_that_is_killed(live: LiveFederation) -> None:
    """Killed in the recovery round: the others' updates make the round, and the client comes back."""
    live.wait_for_message(1, TRAIN)
    request = live.file(live.samples(1, 0))
    live.wait_for_message(1, UNLEARN)
    live.wait_for_message(0, TRAIN)
    restart(live.deployment, supernode(0))
    live.wait_until_reached(request, Status.COMPLETED)
    (recovery,) = live.rounds_of(request, "recovery")
    assert recovery.metrics["participants"] == ["1", "2"]
    assert list(recovery.metrics["failed"]) == ["0"]
    assert len(live.rounds_of(request, "unlearning")) == 1
    assert len(live.completions(request)) == 1
    live.deployment.wait_until(
        lambda: live.rounds()[-1].metrics["participants"] == ["0", "1", "2"], 120, "client 0 trains again"
    )


def test_a_client_killed_while_it_unlearns_is_asked_again(live: LiveFederation) -> None:
    """The attempt fails, the others train, the client comes back, unlearns, and never trains again."""
    live.wait_for_message(2, TRAIN)
    request = live.file(client("2"))
    live.wait_for_message(2, UNLEARN)
    num_trained = live.num_messages(2, TRAIN)
    restart(live.deployment, supernode(2))
    live.wait_until_reached(request, Status.COMPLETED)
    done = live.ledger.requests.get(request.id)
    moves = [event.to_status for event in live.ledger.events.page(request.id) if event.to_status is not None]
    assert done.attempts == moves.count(Status.UNLEARNING) >= 2
    assert len(live.completions(request)) == 1
    (unlearning,) = live.rounds_of(request, "unlearning")
    assert unlearning.metrics["participants"] == ["2"]
    between = next(record for record in live.rounds() if record.round == unlearning.round - 1)
    assert (between.kind, between.metrics["participants"]) == ("training", ["0", "1"])
    restart(live.deployment, supernode(2))
    live.wait_for_message(2, WHOAMI)
    live.wait_for_rounds(1)
    assert live.num_messages(2, TRAIN) == num_trained
    assert live.training_rounds()[-1].metrics["participants"] == ["0", "1"]
