"""Federations of real processes start, survive kills, speak TLS and leave nothing behind.

And the supervisor keeps their runs alive; a kill of the ServerApp under it is in test_kills.py. All tests but the
last two leave the clients of the federation that they share running.
"""

import os
import shutil
import socket
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest

from benchmarks.deployment import SUPEREXEC, SUPERLINK, LocalDeployment, supernode
from server.operations.flower_control import ConfigValue
from server.operations.renewing import renew
from tests.integration.conftest import REPOSITORY, TRIVIAL_APP, Trivial
from tests.integration.deployments import ForkedDeployment, connected_clients, living_pids, restart
from tests.programs import lives
from tests.supervised import OneRun, supervised
from tests.waiting import HANGS_S, wait_until
from unlearning.errors import DeploymentError

pytestmark = pytest.mark.slow


def wait_until_connected(deployment: LocalDeployment, clients: list[int]) -> None:
    """Wait until these clients and no other have their node ids."""
    deployment.wait_until(
        lambda: connected_clients(deployment) == clients, HANGS_S, f"clients {clients} are connected"
    )


def test_a_run_reaches_every_client(trivial: Trivial) -> None:
    """Each SuperNode runs the installed ClientApp, the bundle carries none, and knows its client's id."""
    deployment = trivial.deployment
    run_id = trivial.submit(rounds=1)
    assert deployment.wait_until_finished(run_id, HANGS_S) == "finished:completed", deployment.control.log(
        run_id
    )
    assert sorted(trivial.answers()) == [(1, "0"), (1, "1")]


def test_only_this_machine_reaches_control_and_runtime(trivial: Trivial) -> None:
    """Ports that could start runs are bound to 127.0.0.1 alone, not to every address of the machine."""
    layout = trivial.deployment.layout
    wait_until_connected(trivial.deployment, [0, 1])
    port = int(layout.control_address.rpartition(":")[2])
    for private in (port, *layout.runtime_ports):
        with socket.create_connection(("127.0.0.1", private), timeout=5):
            pass
        # Another address of this machine: a socket bound to 0.0.0.0 would answer there as well.
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", private), timeout=5)


def test_a_stopped_run_says_so(trivial: Trivial) -> None:
    """Stopping a run ends its ServerApp."""
    deployment = trivial.deployment
    run_id = trivial.submit(rounds=1000)
    deployment.wait_until(lambda: len(trivial.answers()) >= 1, HANGS_S, "the first round is answered")
    deployment.control.stop_run(run_id)
    deployment.wait_until(lambda: deployment.server_app_pid() is None, HANGS_S, "the ServerApp has ended")
    assert deployment.control.run(run_id).status == "finished:stopped"


def test_a_wait_in_vain_shows_the_logs(trivial: Trivial) -> None:
    """The error names what was waited for and ends with what the programs wrote."""
    with pytest.raises(DeploymentError) as caught:
        trivial.deployment.wait_until(lambda: False, 0.5, "pigs fly")
    assert all(part in str(caught.value) for part in ("pigs fly", "--- ", "flower-superlink"))


def test_a_wait_ends_when_a_program_has_died(trivial: Trivial) -> None:
    """A wait does not last until its timeout where a program is dead."""
    deployment = trivial.deployment
    os.kill(deployment.group(SUPEREXEC).pid, 9)
    with pytest.raises(DeploymentError) as caught:
        deployment.wait_until(lambda: False, HANGS_S, "the end of the world")
    assert SUPEREXEC in str(caught.value)
    restart(deployment, SUPEREXEC)


def statuses(deployment: LocalDeployment) -> list[str]:
    return [run.status for run in deployment.control.runs()]


@pytest.mark.long
def test_a_run_that_fails_is_submitted_again_and_completes(trivial: Trivial) -> None:
    """An app that fails once completes under supervision, and is then left alone.

    In the gate the supervisor submits a run again whose ServerApp was killed (test_kills.py).
    """
    deployment = trivial.deployment
    before = statuses(deployment)
    trivial.submit(rounds=1, fail_once=True)
    settings: dict[str, ConfigValue] = {**deployment.run_config, "rounds": 1, "fail-once": True}
    with supervised(OneRun(deployment.control, settings), poll_s=3.0):
        deployment.wait_until(lambda: len(trivial.answers()) == 2, HANGS_S, "the second run is answered")
        done = ["finished:completed", "finished:failed", *before]
        deployment.wait_until(
            lambda: deployment.server_app_pid() is None and statuses(deployment) == done,
            HANGS_S,
            "the second run completes",
            poll_s=3.0,
        )
    assert sorted(trivial.answers()) == [(1, "0"), (1, "1")]


def test_a_killed_superlink_comes_back_and_its_run_goes_on(trivial: Trivial) -> None:
    """Its database knows the one run, which is completed; the supervisor waited and submitted nothing."""
    deployment = trivial.deployment
    before = statuses(deployment)
    run_id = trivial.submit(rounds=3)
    deployment.wait_until(lambda: len(trivial.answers()) >= 2, HANGS_S, "the first round is answered")
    with supervised(OneRun(deployment.control, {**deployment.run_config, "rounds": 3}), poll_s=3.0):
        deployment.kill(SUPERLINK)
        assert not deployment.superlink_answers()
        deployment.start(SUPERLINK)
        deployment.wait_until(deployment.superlink_answers, HANGS_S, "the SuperLink is back")
        assert deployment.wait_until_finished(run_id, HANGS_S) == "finished:completed", (
            deployment.control.log(run_id)
        )
    assert statuses(deployment) == ["finished:completed", *before]
    assert sorted(trivial.answers()) == [(number, client) for number in (1, 2, 3) for client in "01"]


def test_an_interruption_ends_everything(tmp_path: Path) -> None:
    """Leaving by Ctrl-C stops the processes, as leaving otherwise does, and the helpers that outlive them."""
    pids: list[int] = []

    def run_and_interrupt() -> None:
        with LocalDeployment(tmp_path, num_clients=1, app_dir=TRIVIAL_APP) as deployment:
            wait_until_connected(deployment, [0])
            pids.extend(living_pids(deployment))
            assert len(pids) > len(deployment.names), "a SuperNode starts a SuperExec of its own"
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_and_interrupt()
    assert [pid for pid in pids if lives(pid)] == []


@pytest.mark.long
def test_a_server_moves_to_another_host_with_its_files_and_a_renewed_certificate(
    trivial: Trivial, tmp_path: Path
) -> None:
    """As docs/how-to-move-the-server.md says: all is stopped and copied. The same keys are let in at the other address,
    the run of before has ended, and a new one reaches every client. In the gate acceptance/test_backup.py moves one.
    """
    old = trivial.deployment
    before = [run.run_id for run in old.control.runs()]
    for name in (*map(supernode, (0, 1)), SUPEREXEC, SUPERLINK):
        old._expected.discard(name)
        old.group(name).ask_to_end()
        assert old.group(name).wait_until_gone(20.0)
    for site in ("server", "client-0", "client-1"):
        shutil.copytree(old.layout.directory / site, tmp_path / site)
    certificates = tmp_path / "server" / "certificates"
    renew(certificates / "server.pem", certificates, addresses=["new.example.org"], now=datetime.now(UTC))
    with ForkedDeployment(
        tmp_path,
        num_clients=2,
        app_dir=TRIVIAL_APP,
        run_config=old.run_config,
        secure=True,
        environment=old._added_environment,
    ) as moved:
        assert moved.layout.fleet_address != old.layout.fleet_address
        there = Trivial(moved, trivial.progress)
        run_id = there.submit(rounds=1)
        assert moved.wait_until_finished(run_id, HANGS_S) == "finished:completed", moved.control.log(run_id)
        assert sorted(there.answers()) == [(1, "0"), (1, "1")]
        assert [run.run_id for run in moved.control.runs()] == [run_id, *before]
    for name in old.names:
        old.start(name)
    old.wait_until(old.superlink_answers, HANGS_S, "the old SuperLink is back")


def test_killing_a_supernode_ends_its_superexec(trivial: Trivial) -> None:
    """A kill takes the whole process group, and no other process.

    It is not started again: Flower admits no node with its key while the killed one's lease lasts (test_lease.py).
    """
    deployment = trivial.deployment
    deployment.wait_until(
        lambda: len(members(deployment, 0)) >= 2, HANGS_S, "the SuperNode has its SuperExec"
    )
    of_the_killed = members(deployment, 0)
    deployment.kill(supernode(0))
    assert not of_the_killed & {*living_pids(deployment)}
    assert deployment.group(supernode(1)).pid in members(deployment, 1)


def members(deployment: LocalDeployment, client: int) -> set[int]:
    """A client's SuperNode, its SuperExec, and its processes of messages."""
    return {process.pid for process in deployment.group(supernode(client)).members()}


def test_a_supernode_without_a_registered_key_is_refused(trivial: Trivial) -> None:
    """A key that was not registered opens nothing, although its holder trusts the right authority."""
    deployment = trivial.deployment
    deployment.kill(supernode(0))
    site = deployment.layout.client_dir(0)
    (site / "key").unlink()
    (site / "key.pub").unlink()
    script = REPOSITORY / "deploy" / "make_supernode_key.sh"
    subprocess.run(["sh", str(script), str(site / "key")], check=True)
    deployment.start(supernode(0))
    with pytest.raises(DeploymentError):
        deployment.wait_until(lambda: False, HANGS_S, "the stranger is refused")
    wait_until(lambda: connected_clients(deployment) == [1], HANGS_S, "the other client alone is there")
