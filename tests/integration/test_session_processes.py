"""Processes that are killed or end while rounds go over sessions, a client's and the server's: nothing is lost.

test_kills.py kills the server's over messages.
"""

import os
import signal
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from benchmarks.deployment import supernode
from tests.federation import client
from tests.integration.deployments import kill_server_app
from tests.integration.live_federation import LiveFederation, live_federation
from tests.programs import lives
from tests.waiting import HANGS_S
from unlearning.requests import Granularity, Status, Target
from unlearning.tasks import TaskSettings, load_site
from unlearning.tasks.task import Examples

LONGEST_ROUND_S = 120.0
"""A minute until Flower gives a process up, half a one for a stream that may come back; and a loaded machine's time."""

LONG_SOLVE = {"iterations": 100, "tolerance": 0.0, "trust_radius": 1e6, "precondition": False}
"""Products for some seconds; the server can be killed among them."""

FAKE_GPU = Path(__file__).parent / "fake_gpu"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def source() -> Examples:
    """The examples that all clients have, each from a file of its own site."""
    return load_site(TaskSettings(dataset="digits", num_clients=4), 0).train


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory, source: Examples) -> Iterator[LiveFederation]:
    """Four clients whose rounds go over sessions, on machines with what passes for a GPU."""
    directory = tmp_path_factory.mktemp("session-processes")
    own = directory / "own"
    own.mkdir()
    np.savez(own / "train.npz", inputs=source.inputs, targets=source.targets, ids=source.ids)
    environment = {
        "PYTHONPATH": os.pathsep.join([str(FAKE_GPU), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "FAKE_GPU_LOG": str(directory / "began"),
    }
    with live_federation(
        directory,
        num_clients=4,
        environment=environment,
        node_config={"data-dir": str(own)},
        dataset="npz",
        input_shape="x".join(map(str, source.inputs.shape[1:])),
        num_classes=10,
        data_dir=str(own),
        partition="iid",
    ) as federation:
        yield federation


@pytest.mark.long
def test_a_session_begins_cuda_once_for_all_its_rounds(live: LiveFederation) -> None:
    """In the process that attends, and in no other of the site."""
    live.wait_for_rounds(2)
    began = (live.deployment.layout.directory.parent / "began").read_text().split()
    attending = [str(live.session_process(client)) for client in range(4)]
    assert [began.count(pid) for pid in attending] == [1] * 4
    sites = {
        str(member.pid)
        for client in range(4)
        for member in live.deployment.group(supernode(client)).members()
    }
    assert {*began} & sites == {*attending}  # beside them the server's process has asked, for its test set


def test_the_process_that_held_what_is_forgotten_ends(live: LiveFederation, source: Examples) -> None:
    """Its pictures leave memory with it; another process of the client goes on with the others."""
    live.wait_for_rounds(2)
    before = live.session_process(0)
    request = live.file(Target(Granularity.SAMPLE, "0", frozenset(source.ids[:2].tolist())))
    live.wait_until_reached(request, Status.COMPLETED)
    live.deployment.wait_until(lambda: not lives(before), HANGS_S, "that process has ended")
    live.wait_for_rounds(1)
    live.deployment.wait_until(
        lambda: "0" in live.rounds()[-1].metrics["participants"], HANGS_S, "client 0 trains in a new one"
    )
    assert live.session_process(0) != before


@pytest.mark.long
def test_a_session_whose_process_is_killed_comes_back(live: LiveFederation) -> None:
    """Flower gives the process up a minute later; then the site takes the next invitation. No round waits longer.

    By SIGTERM (client 3) as by SIGKILL (client 0).

    In the gate the clients of tests/unit/strategies/test_sessions.py lose streams and processes.
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
        HANGS_S,
        "clients 0 and 3 train again",
    )
    assert all(live.session_process(client) != pid for client, pid in killed.items())
    after = [record for record in live.rounds() if record.round > before]
    assert all({"1", "2"} <= {*record.metrics["participants"]} for record in after)
    assert all(record.metrics["seconds"] < LONGEST_ROUND_S for record in after)


def test_deletions_survive_a_kill_of_the_server_app(live: LiveFederation, source: Examples) -> None:
    """One is under way and one was not yet seen: the next ServerApp carries out both, once; 3 trains no longer."""
    live.wait_for_rounds(1)
    under_way = live.service.submit(client("3"), method="newton-cg", parameters=LONG_SOLVE)
    live.deployment.wait_until(lambda: live.num_exchanges() >= 5, HANGS_S, "the solve is under way")
    pending = live.file(Target(Granularity.SAMPLE, "1", frozenset(source.ids[4:6].tolist())))
    kill_server_app(live.deployment)
    assert live.ledger.requests.get(under_way.id).status is Status.UNLEARNING
    assert live.ledger.requests.get(pending.id).status is Status.RECEIVED
    for request in (under_way, pending):
        live.wait_until_reached(request, Status.COMPLETED)
        assert len(live.completions(request)) == len(live.rounds_of(request, "unlearning")) == 1
    assert [run.status for run in live.deployment.control.runs()] == ["running", "finished:failed"]
    numbers = [record.round for record in live.ledger.rounds()]
    # Each exchange of the solve has a number; none is missing, and none was begun again under another.
    assert {later - earlier for earlier, later in pairwise(numbers)} == {1, 1 + LONG_SOLVE["iterations"]}
    live.wait_for_rounds(1)
    assert live.training_rounds()[-1].metrics["participants"] == ["0", "1", "2"]
