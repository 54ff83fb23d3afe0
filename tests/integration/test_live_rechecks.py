"""Rechecks on real processes over sessions: three methods are watched, and records that come back reopen a request."""

from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.deployment import supernode
from server.ledger.records import RECHECK
from tests.integration.live_federation import LiveFederation, running
from tests.returning import FORGOTTEN, NUM_CLIENTS, OTHER, SETTINGS, come_back, write_data
from tests.waiting import HANGS_S
from unlearning.requests import DeletionRequest, Granularity, Status, Target

pytestmark = [pytest.mark.slow, pytest.mark.long]

CHECKS = (2, 20, 100)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """Where each client's records are written."""
    return write_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory, place: Callable[[int], Path]):
    """A federation whose sites agree to rechecks, each with records of its own in its folder."""
    federation = LiveFederation(
        tmp_path_factory.mktemp("live"),
        node_config={"data-dir": "records", "answer-rechecks": True},
        **SETTINGS
        | {
            "data_dir": str(place(0).parent),
            "recheck_after_rounds": ", ".join(map(str, CHECKS)),
            "round_interval_s": 0.0,
        },
    )
    for number in range(NUM_CLIENTS):
        site = federation.deployment.layout.client_dir(number)
        site.mkdir(parents=True, exist_ok=True)
        (site / "records").symlink_to(place(number))
    with running(federation) as known:
        known.wait_for_rounds(10)
        yield known


def deletion(live: LiveFederation, target: Target, method: str) -> DeletionRequest:
    """A deletion that is completed."""
    request = live.service.submit(target, method=method)
    live.wait_until_reached(request, Status.COMPLETED)
    return request


def rechecks(live: LiveFederation, request: DeletionRequest) -> dict[int, dict]:
    """What was found after each number of rounds so far."""
    found = [event.detail.get(RECHECK) for event in live.ledger.events.all(request.id)]
    return {one["due"]: one for one in found if one is not None}


def test_three_deletions_are_watched_and_the_one_whose_records_come_back_is_reopened(
    live: LiveFederation, place: Callable[[int], Path]
) -> None:
    """Of the others each recheck is done up to the last one; a person sees the reopened one in the list."""
    gone = deletion(live, Target(Granularity.CLIENT, str(FORGOTTEN)), "retrain")
    live.deployment.wait_until(
        lambda: CHECKS[0] in rechecks(live, gone), HANGS_S, "the first recheck is done"
    )
    assert rechecks(live, gone)[CHECKS[0]]["now"] == "reduced"
    records = live.deployment.layout.client_dir(OTHER) / "records"
    records.unlink()
    records.symlink_to(come_back(place))
    live.deployment.kill(supernode(OTHER))
    live.deployment.start(supernode(OTHER))
    live.wait_for_rounds(30)
    if live.ledger.requests.get(gone.id).status is Status.COMPLETED:
        live.flower_unlearn("recheck", gone.id)
    live.wait_until_reached(gone, Status.REOPENED)
    assert gone.id in live.flower_unlearn("list")
    assert "reopened" in live.flower_unlearn("status", gone.id)
    samples = Target(Granularity.SAMPLE, "0", frozenset(map(str, range(30))))
    others = [deletion(live, samples, "puf-special"), deletion(live, Target(Granularity.CLIENT, "3"), "not")]
    for request in others:
        live.deployment.wait_until(
            lambda request=request: CHECKS[-1] in rechecks(live, request), HANGS_S, "the last recheck is done"
        )
        assert set(rechecks(live, request)) == set(CHECKS)
        print(request.method, {due: one["levels"]["now"] for due, one in rechecks(live, request).items()})
    print(gone.method, {due: one["levels"]["now"] for due, one in rechecks(live, gone).items()})
