"""SIGKILL of each process of the server with a deletion under way: nothing is lost, nothing is done twice.

The tests share one running federation and each leaves it running. What they end in is compared, to the
bit, with an in-process federation in which the same deletions come after the same numbers of rounds and
nothing is killed. Kills of SuperNodes are in test_supernode_kills.py.
"""

from collections.abc import Iterator
from itertools import pairwise

import pytest

from benchmarks.deployment import DELETION_SERVICE, SUPERLINK, supernode
from tests.federation import client
from tests.integration.deployments import kill_server_app, restart
from tests.integration.live_federation import (
    TRAIN,
    UNLEARN,
    WHOAMI,
    LiveFederation,
    hashes,
    live_federation,
)
from tests.waiting import HANGS_S
from unlearning.requests import DeletionRequest, Exclusions, Status

pytestmark = [pytest.mark.slow, pytest.mark.long]


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveFederation]:
    """Two clients; both train until a test lets one be forgotten.

    Over messages, which outlive the processes that are killed.
    """
    with live_federation(tmp_path_factory.mktemp("kills"), num_clients=2, with_sessions=False) as federation:
        yield federation


def check_done_once(live: LiveFederation, request: DeletionRequest) -> None:
    """The request is completed, by one unlearning round; everything asked so far is excluded."""
    assert live.ledger.requests.get(request.id).status is Status.COMPLETED
    assert len(live.completions(request)) == 1
    assert len(live.rounds_of(request, "unlearning")) == 1
    assert len(live.rounds_of(request, "recovery")) == 1
    targets = [live.ledger.requests.target_of(known) for known in live.ledger.requests.select()]
    assert live.ledger.exclusions() == Exclusions().including(targets)


def check_no_round_is_lost(live: LiveFederation) -> None:
    """No round is missing, and none was begun again under another number."""
    numbers = [record.round for record in live.ledger.rounds()]
    assert all(later - earlier in (0, 1) for earlier, later in pairwise(numbers)), numbers


def check_went_on_undisturbed(live: LiveFederation) -> None:
    """No round was lost, and all models are those of a run without kills."""
    check_no_round_is_lost(live)
    assert list(map(hashes, live.ledger.requests.select())) == list(map(hashes, live.replayed()))


def test_requests_survive_a_kill_of_the_deletion_service(live: LiveFederation) -> None:
    """Killed right after its answer: both requests are served, and asking again files nothing.

    In the gate test_deletion_service_access.py kills it among requests.
    """
    live.wait_for_message(0, TRAIN)
    first = live.file(live.samples(0, 0))
    second = live.file(live.samples(1, 0), key="asked again below")
    live.deployment.kill(DELETION_SERVICE)
    live.wait_until_reached(second, Status.UNLEARNING)
    live.deployment.start(DELETION_SERVICE)
    live.deployment.wait_until(
        live.deployment.deletion_service_answers, HANGS_S, "the deletion service is back"
    )
    assert live.file(live.samples(1, 0), key="asked again below").id == second.id
    for request in (first, second):
        live.wait_until_reached(request, Status.COMPLETED)
        check_done_once(live, request)
    check_went_on_undisturbed(live)


def test_a_request_survives_a_kill_of_the_superlink(live: LiveFederation) -> None:
    """Killed while the requester unlearns: its answer arrives at the SuperLink that comes back.

    In the gate test_local_deployment.py kills a SuperLink in mid-run, and no answer is lost.
    """
    live.wait_for_message(0, TRAIN)
    request = live.file(live.samples(1, 10))
    live.wait_for_message(1, UNLEARN)
    server_app = live.deployment.server_app_pid()
    restart(live.deployment, SUPERLINK)
    live.wait_until_reached(request, Status.COMPLETED)
    assert live.deployment.server_app_pid() == server_app
    check_done_once(live, request)
    check_went_on_undisturbed(live)


def test_deletions_survive_a_kill_of_the_server_app(live: LiveFederation) -> None:
    """One is under way and one was not yet seen: the next ServerApp serves both.

    The forgotten client never trains afterwards, its SuperNode restarted too.
    In the gate test_session_processes.py kills a ServerApp.
    """
    num_runs = len(live.deployment.control.runs())
    live.wait_for_message(1, TRAIN)
    under_way = live.file(client("1"))
    live.wait_for_message(1, UNLEARN)
    pending = live.file(live.samples(0, 10))
    kill_server_app(live.deployment)
    assert live.ledger.requests.get(under_way.id).status is Status.UNLEARNING
    assert live.ledger.requests.get(pending.id).status is Status.RECEIVED
    for request in (under_way, pending):
        live.wait_until_reached(request, Status.COMPLETED)
    check_done_once(live, under_way)
    check_done_once(live, pending)
    statuses = [run.status for run in live.deployment.control.runs()]
    assert statuses[:2] == ["running", "finished:failed"]
    assert len(statuses) == num_runs + 1
    check_no_round_is_lost(live)
    # What waits sits out of the others' rounds at once, so only what came before those is the same without it.
    (undisturbed,) = [known for known in live.replayed() if known.id == under_way.id]
    done = live.ledger.requests.get(under_way.id)
    for name in ("model_hash_before", "model_hash_unlearned"):
        assert done.result[name] == undisturbed.result[name]
    num_trained = live.num_messages(1, TRAIN)
    restart(live.deployment, supernode(1))
    live.wait_for_message(1, WHOAMI)
    live.wait_for_rounds(1)
    assert live.num_messages(1, TRAIN) == num_trained
    assert live.training_rounds()[-1].metrics["participants"] == ["0"]
