"""Rounds over sessions whose client dies, with real processes: the others go on, and the client comes back."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from server.cli import app
from server.processes.deployment import WORKER, supernode
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
    attending = [str(session_process(live, client)) for client in range(4)]
    assert [began.count(pid) for pid in attending] == [1] * 4
    assert str(live.deployment.pid(WORKER)) not in began
    sites = {str(member.pid) for member in live.deployment._group(WORKER).members()}
    assert {*began} & sites == {*attending}  # beside them the server's process has asked, for its test set


def test_a_session_whose_process_is_killed_comes_back(live: LiveFederation) -> None:
    """Flower gives the process up a minute later; then the site takes the next invitation. No round waits longer.

    By SIGTERM (client 3) as by SIGKILL (client 0).
    """
    live.wait_for_rounds(1)
    killed = {client: session_process(live, client) for client in (0, 3)}
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
    assert all(session_process(live, client) != pid for client, pid in killed.items())
    after = [record for record in live.rounds() if record.round > before]
    assert all({"1", "2"} <= {*record.metrics["participants"]} for record in after)
    assert all(record.metrics["seconds"] < LONGEST_ROUND_S for record in after)


def test_a_client_whose_process_hangs_is_named_with_what_to_do(tmp_path: Path) -> None:
    """It counts as online and holds its stream: two rounds without an answer, and log and `check` name it."""
    with live_federation(tmp_path, num_clients=2, round_timeout_s=4.0) as live:
        live.deployment.wait_until(
            lambda: live.rounds()[-1].metrics["participants"] == ["0", "1"], WAIT_S, "both have trained"
        )
        hanging = session_process(live, 1)
        os.kill(hanging, signal.SIGSTOP)
        live.deployment.wait_until(
            # on a busy machine the other may miss the short limit of a round too
            lambda: all("1" in record.metrics["silent"] for record in live.rounds()[-2:]),
            WAIT_S,
            "two rounds have passed without client 1",
        )
        sentence = "Client 1 is online and gave no answer in rounds "
        state = str(live.deployment.layout.state_dir)
        ran = CliRunner().invoke(app, ["check", "--state-dir", state, "--config-dir", str(tmp_path)])
        for said in (ran.output, live.deployment.control.log(live.run_id)):
            assert "Restart its SuperNode (systemctl restart flower-supernode" in said[said.index(sentence) :]
        os.kill(hanging, signal.SIGCONT)
        live.deployment.wait_until(
            lambda: "1" in live.rounds()[-1].metrics["participants"], WAIT_S, "client 1 trains again"
        )


def session_process(live: LiveFederation, client: int) -> int:
    """The process that a client's session lives in: forked by the worker, with the SuperNode's streams."""
    log = live.deployment._group(supernode(client)).log_path
    (found,) = (
        member.pid
        for member in live.deployment._group(WORKER).members()
        if Path(f"/proc/{member.pid}/fd/1").resolve() == log.resolve()
    )
    return found
