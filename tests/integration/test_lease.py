"""SuperNodes with registered keys are killed: what `clients` says of one, and when another is let in again."""

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from client.worker.node import LEASE_S
from server.ledger import SITE_PROBLEMS, ClientRecord, Ledger
from server.ledger.silence import presence
from server.processes.deployment import LocalDeployment, supernode
from server.processes.flower_control import flower_environment, program
from server.processes.process_group import ProcessGroup
from tests.integration.conftest import REPOSITORY
from tests.integration.live_federation import SETTINGS, WAIT_S

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(400)]

OTHER_VERSION = (
    "The site has a protocol version before 1 and the server has 1: upgrade flower-unlearning at the site."
)


def test_a_killed_supernode_is_missed_and_comes_back_when_its_lease_ends(tmp_path: Path) -> None:
    """Client 1 stays away, client 0 is started again at once, by `flower-unlearn-site node`.

    It comes back with a program of a lower protocol version, which is upgraded under its running SuperNode, and with
    another num-partitions; both are named.
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
        run_config={**SETTINGS, "num-clients": 2, "start-clients": 2, "round-interval-s": 5.0},
        secure=True,
        with_deletion_service=True,
        with_worker=False,
    ) as deployment:
        (tmp_path / "federation" / "server" / "state").mkdir(parents=True, exist_ok=True)
        ledger = Ledger.open(deployment.layout.ledger_url)
        deployment.submit_run()
        deployment.wait_until(lambda: len(ledger.rounds()) > 0, WAIT_S, "the first round is done")

        def client(name: str) -> ClientRecord:
            return {one.client_id: one for one in ledger.clients()}[name]

        deployment.kill(supernode(0))
        deployment.kill(supernode(1))
        killed_at, killed = datetime.now(UTC), time.monotonic()
        layout = deployment.layout
        command = [
            word.replace("num-partitions=2", "num-partitions=3") for word in layout.supernode_command(0)[1:]
        ]
        node = ProcessGroup(
            "node",
            [program("flower-unlearn-site"), "node", "--no-worker", "--", *command],
            environment={
                **flower_environment(layout.client_dir(0) / "flower"),
                "PYTHONPATH": str(tmp_path),
            },
            directory=layout.client_dir(0),
        )
        node.start()
        said: list[tuple[float, str]] = []
        let_in_s = 0.0
        try:
            while time.monotonic() - killed < WAIT_S and not (let_in_s and said[-1][1] == "no"):
                now = presence(client("1"), datetime.now(UTC))
                if not said or now.split()[0] != said[-1][1].split()[0]:
                    said.append((time.monotonic() - killed, now))
                if not let_in_s and "SuperNode ID:" in node.log_text():
                    let_in_s = time.monotonic() - killed
                time.sleep(0.2)
            last_seen = client("1").last_seen
            deployment.wait_until(
                lambda: OTHER_VERSION in str(ledger.facts().get(SITE_PROBLEMS)),
                WAIT_S,
                "the version is named",
            )
            version.write_text("1")
            deployment.wait_until(
                lambda: "num-partitions" in str(ledger.facts().get(SITE_PROBLEMS)),
                WAIT_S,
                "the misfit is named",
            )
        finally:
            node.kill()
            ledger.close()
        print(f"let in again after {let_in_s:.0f} s; of the one that stays away: {said}")
        assert [words.split()[0] for _, words in said] == ["yes", "not", "no"]
        assert last_seen is not None
        assert last_seen <= killed_at + timedelta(seconds=1)
        assert 0 < let_in_s < 2 * LEASE_S
        assert "it was killed less than a minute ago" in node.log_text()
