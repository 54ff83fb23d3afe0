"""SuperNodes with registered keys are killed: what `clients` says of one, and when another is let in again.

And one whose SuperExec is killed.
"""

import os
import signal
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil
import pytest

from benchmarks.deployment import LocalDeployment, supernode
from benchmarks.process_group import ProcessGroup
from client.supernode import LEASE_S
from server.federation.presence import presence
from server.ledger import SITE_PROBLEMS, ClientRecord, Ledger
from server.operations.checklist import Level
from server.operations.checklist.processes import REFUSED_AFTER, check_let_in, nodes_here
from server.operations.flower_control import FEDERATION, flower_environment
from strategies.installation import program
from tests.integration.conftest import REPOSITORY
from tests.integration.deployments import FrugalDeployment
from tests.integration.live_federation import SETTINGS
from tests.waiting import HANGS_S

pytestmark = [pytest.mark.slow, pytest.mark.long]

OTHER_VERSION = (
    "The site has a protocol version before 1 and the server has 1: upgrade flower-unlearning at the site."
)


NODES = ["supernode", "list", FEDERATION]


def started_node(directory: Path, command: list[str], **environment: str) -> ProcessGroup:
    """`flower-unlearn-site node` of one site."""
    group = ProcessGroup(
        "node",
        [program("flower-unlearn-site"), "node", "--", *command],
        environment={**flower_environment(directory / "flower"), **environment},
        directory=directory,
    )
    group.start()
    return group


def test_a_supernode_whose_superexec_was_killed_is_ended(tmp_path: Path) -> None:
    """Flower's goes on and executes nothing; systemd starts again what has ended."""
    with FrugalDeployment(tmp_path / "federation", num_clients=1, app_dir=REPOSITORY) as deployment:
        deployment.kill(supernode(0))
        layout = deployment.layout
        node = started_node(layout.client_dir(0), layout.supernode_command(0)[1:])
        try:
            deployment.wait_until(
                lambda: "SuperNode ID:" in node.log_text(), HANGS_S, "the SuperNode is let in"
            )
            [superexec] = [one for one in node.members() if "flower-superexec" in one.command]
            os.kill(superexec.pid, signal.SIGKILL)
            deployment.wait_until(lambda: node.is_gone, HANGS_S, "all of the node has ended")
        finally:
            node.kill()
        assert "The SuperExec of this SuperNode has ended" in node.log_text()


def process_of(pid: int) -> psutil.Process:
    [found] = [one for one in psutil.process_iter(["cmdline"]) if one.pid == pid]
    return found


def test_a_killed_supernode_is_missed_and_comes_back_when_its_lease_ends(tmp_path: Path) -> None:
    """Client 1 stays away, client 0 is started again at once, by `flower-unlearn-site node`.

    It comes back with a program of a lower protocol version, which is upgraded under its running SuperNode, and with
    another num-partitions; both are named. Upgraded, it is on its stream again at once, though invitations were lost
    while the server still counted it as online. Client 1 is revoked, and is told that its key is not registered when no
    lease can last so long.
    """
    version = tmp_path / "version"
    version.write_text("0")
    (tmp_path / "sitecustomize.py").write_text(
        "from pathlib import Path\n"
        "from unlearning import protocol\n"
        f"protocol.PROTOCOL_VERSION = int(Path({str(version)!r}).read_text())\n"
    )
    with LocalDeployment(
        tmp_path / "federation",
        num_clients=2,
        app_dir=REPOSITORY,
        run_config={
            **SETTINGS,
            "num-clients": 2,
            "start-clients": 2,
            "round-interval-s": 5.0,
            "transport": "session",
        },
        secure=True,
        with_deletion_service=True,
        with_sessions=True,
    ) as deployment:
        (tmp_path / "federation" / "server" / "state").mkdir(parents=True, exist_ok=True)
        ledger = Ledger.open(deployment.layout.ledger_url)
        deployment.submit_run()
        deployment.wait_until(lambda: len(ledger.rounds()) > 0, HANGS_S, "the first round is done")

        def client(name: str) -> ClientRecord:
            return {one.client_id: one for one in ledger.clients()}[name]

        deployment.kill(supernode(0))
        deployment.kill(supernode(1))
        killed_at, killed = datetime.now(UTC), time.monotonic()
        layout = deployment.layout
        command = [
            word.replace("num-partitions=2", "num-partitions=3") for word in layout.supernode_command(0)[1:]
        ]
        node = started_node(layout.client_dir(0), command, PYTHONPATH=str(tmp_path))
        said: list[tuple[float, str]] = []
        let_in_s = 0.0
        try:
            while time.monotonic() - killed < HANGS_S and not (let_in_s and said[-1][1] == "no"):
                now = presence(client("1"), datetime.now(UTC))
                if not said or now.split()[0] != said[-1][1].split()[0]:
                    said.append((time.monotonic() - killed, now))
                if not let_in_s and "SuperNode ID:" in node.log_text():
                    let_in_s = time.monotonic() - killed
                time.sleep(0.2)
            last_seen = client("1").last_seen
            deployment.wait_until(
                lambda: OTHER_VERSION in str(ledger.facts().get(SITE_PROBLEMS)),
                HANGS_S,
                "the version is named",
            )
            version.write_text("1")
            deployment.wait_until(
                lambda: "num-partitions" in str(ledger.facts().get(SITE_PROBLEMS)),
                HANGS_S,
                "the misfit is named",
            )
            back = ledger.rounds()[-1].round
            deployment.wait_until(
                lambda: ledger.rounds()[-1].round > back, HANGS_S, "a round after its return"
            )
            figures = ledger.rounds()[-1].metrics
        finally:
            node.kill()
            ledger.close()
        [gone] = [one for one in deployment.control.ask(NODES)["nodes"] if one["status"] == "offline"]
        deployment.control.ask(["supernode", "unregister", str(gone["node-id"]), FEDERATION])
        revoked = started_node(layout.client_dir(1), layout.supernode_command(1)[1:])
        try:
            said_so = "its key is not registered at the server"
            deployment.wait_until(lambda: said_so in revoked.log_text(), 2 * LEASE_S, "it is said")
            assert "Failed to activate SuperNode" in revoked.log_text()
            [seen] = nodes_here([process_of(revoked.pid)])
            [finding] = check_let_in([replace(seen, age=REFUSED_AFTER)])
            assert finding.level is Level.PROBLEM
        finally:
            revoked.kill()
        print(f"let in again after {let_in_s:.0f} s; of the one that stays away: {said}")
        assert [words.split()[0] for _, words in said] == ["yes", "not", "no"]
        assert last_seen is not None
        assert last_seen <= killed_at + timedelta(seconds=1)
        assert 0 < let_in_s < 2 * LEASE_S
        assert figures["participants"] == list(figures.get("session", {})) == ["0"]
        assert "counts a SuperNode that was killed as online" in node.log_text()
