"""Federations of real processes start, survive kills, speak TLS and leave nothing behind."""

import os
import socket
import subprocess
from pathlib import Path

import pytest

from server.processes.deployment import SUPEREXEC, SUPERLINK, LocalDeployment, supernode
from tests.integration.conftest import REPOSITORY, TRIVIAL_APP
from tests.integration.deployments import connected_clients, living_pids
from unlearning.errors import DeploymentError

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


def test_a_run_reaches_every_client(deploy_trivial, answers):
    """Each SuperNode runs the installed ClientApp, the bundle carries none, and knows its client's id."""
    deployment = deploy_trivial(num_clients=2)
    run_id = deployment.submit_run({"rounds": 1})
    assert deployment.wait_until_finished(run_id, 90) == "finished:completed", deployment.control.log(run_id)
    assert sorted(answers()) == [(1, "0"), (1, "1")]


def test_nothing_lives_on_afterwards(deploy_trivial):
    """Stopping ends the helpers too that SuperNodes start and that outlive them."""
    deployment = deploy_trivial(num_clients=1)
    deployment.wait_until(lambda: connected_clients(deployment) == [0], 60, "the SuperNode is connected")
    pids = living_pids(deployment)
    assert len(pids) > len(deployment.names), "a SuperNode starts a SuperExec of its own"
    deployment.stop()
    assert [pid for pid in pids if Path(f"/proc/{pid}/exe").exists()] == []


def test_an_interruption_ends_everything(tmp_path):
    """Leaving by Ctrl-C stops the processes as leaving otherwise does."""
    pids: list[int] = []

    def run_and_interrupt() -> None:
        with LocalDeployment(tmp_path, num_clients=1, app_dir=TRIVIAL_APP) as deployment:
            pids.extend(living_pids(deployment))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_and_interrupt()
    assert pids
    assert [pid for pid in pids if Path(f"/proc/{pid}/exe").exists()] == []


def test_killing_a_supernode_ends_its_superexec(deploy_trivial):
    """A kill takes the whole process group, and nobody else's."""
    deployment = deploy_trivial(num_clients=2)
    deployment.wait_until(lambda: connected_clients(deployment) == [0, 1], 60, "both are connected")
    others = living_pids(deployment)
    deployment.kill(supernode(0))
    left = living_pids(deployment)
    assert deployment.pid(supernode(0)) not in left
    assert len(others) - len(left) == 2
    assert deployment.pid(supernode(1)) in left


def test_a_killed_superlink_comes_back_and_its_run_goes_on(deploy_trivial, answers):
    """The run that the SuperLink's database knows is completed after a kill in the middle of it."""
    deployment = deploy_trivial(num_clients=2)
    run_id = deployment.submit_run({"rounds": 4})
    deployment.wait_until(lambda: len(answers()) >= 2, 60, "the first round is answered")
    deployment.kill(SUPERLINK)
    assert not deployment.superlink_answers()
    deployment.start(SUPERLINK)
    deployment.wait_until(deployment.superlink_answers, 60, "the SuperLink is back")
    assert deployment.wait_until_finished(run_id, 120) == "finished:completed", deployment.control.log(run_id)
    assert sorted(answers()) == [(number, client) for number in (1, 2, 3, 4) for client in "01"]


def test_a_secure_federation_runs(deploy_trivial, answers):
    """TLS and registered keys from the deploy scripts carry a run end to end."""
    deployment = deploy_trivial(num_clients=2, secure=True)
    run_id = deployment.submit_run({"rounds": 1})
    assert deployment.wait_until_finished(run_id, 90) == "finished:completed", deployment.control.log(run_id)
    assert sorted(answers()) == [(1, "0"), (1, "1")]


def test_a_supernode_without_a_registered_key_is_refused(deploy_trivial):
    """A key that nobody registered opens nothing, although its holder trusts the right authority."""
    deployment = deploy_trivial(num_clients=1, secure=True)
    deployment.wait_until(lambda: connected_clients(deployment) == [0], 60, "the registered one is connected")
    deployment.kill(supernode(0))
    site = deployment.layout.client_dir(0)
    (site / "key").unlink()
    (site / "key.pub").unlink()
    script = REPOSITORY / "deploy" / "make_supernode_key.sh"
    subprocess.run(["sh", str(script), str(site / "key")], check=True)
    deployment.start(supernode(0))
    with pytest.raises(DeploymentError, match="Ended unasked"):
        deployment.wait_until(lambda: False, 60, "the stranger is refused")
    assert connected_clients(deployment) == []


def test_a_stopped_run_says_so(deploy_trivial, answers):
    """Stopping a run ends its ServerApp."""
    deployment = deploy_trivial(num_clients=1)
    run_id = deployment.submit_run({"rounds": 1000})
    deployment.wait_until(lambda: len(answers()) >= 1, 60, "the first round is answered")
    deployment.control.stop_run(run_id)
    deployment.wait_until(lambda: deployment.server_app_pid() is None, 60, "the ServerApp has ended")
    assert deployment.run_status(run_id) == "finished:stopped"


def test_only_this_machine_reaches_control_and_runtime(deploy_trivial):
    """Ports that could start runs are bound to 127.0.0.1 alone, not to every address of the machine."""
    deployment = deploy_trivial(num_clients=1)
    deployment.wait_until(lambda: connected_clients(deployment) == [0], 60, "the SuperNode is connected")
    port = int(deployment.layout.control_address.rpartition(":")[2])
    for private in (port, *deployment.layout.runtime_ports):
        with socket.create_connection(("127.0.0.1", private), timeout=5):
            pass
        # Another address of this machine: a socket bound to 0.0.0.0 would answer there as well.
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", private), timeout=5)


def test_a_wait_in_vain_shows_the_logs(deploy_trivial):
    """The error names what was waited for and ends with what the programs wrote."""
    deployment = deploy_trivial(num_clients=1)
    with pytest.raises(DeploymentError, match=r"until pigs fly(.|\n)*Starting Flower SuperLink"):
        deployment.wait_until(lambda: False, 0.5, "pigs fly")


def test_a_wait_ends_when_a_program_has_died(deploy_trivial):
    """Nobody waits a timeout out for a program that is dead."""
    deployment = deploy_trivial(num_clients=1)
    os.kill(deployment.pid(SUPEREXEC), 9)
    with pytest.raises(DeploymentError, match=rf"Ended unasked.*{SUPEREXEC}"):
        deployment.wait_until(lambda: False, 60, "the end of the world")
