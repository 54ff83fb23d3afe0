"""After a deletion on real processes no file of the server holds what the forgotten client answered, or a password.

What the client answers is known bit for bit from the same federation in this process, so its arrays are the canary:
they are looked for as bytes in every file of the deployment.
"""

from contextlib import closing
from pathlib import Path

import pytest
from flwr.app import Context, Message

from benchmarks.process_group import living_processes
from client.app import app as client_app
from server.ledger import Ledger
from server.operations.checklist import Installation, Level
from server.operations.checklist.kept_data import check_residue, check_superlink_database
from server.operations.starting import write_app
from server.operations.superlink_residue import erase_after_deletions
from tests.federation import InProcessFederation
from tests.integration.deployments import FrugalDeployment
from tests.integration.live_federation import SETTINGS
from tests.ledgers import CANARY
from tests.residue import files_with
from tests.waiting import HANGS_S
from unlearning.requests import Status
from unlearning.runtime.durable_files import open_to_others

pytestmark = pytest.mark.slow

FORGOTTEN = 1
RUN_CONFIG = {
    **SETTINGS,
    "num-clients": 2,
    "rounds": 3,
    "attack-samples": 200,
    "requests": f"at=1 client={FORGOTTEN} method=puf-special",
}
SHORTEST, LENGTH = 512, 48
"""A canary is LENGTH bytes from the middle of an array of at least SHORTEST: never part of a page that is split."""


def answered_by_the_forgotten(directory: Path) -> list[bytes]:
    """Of each larger array that the forgotten client answers, some bytes of its middle."""
    one = InProcessFederation(directory, RUN_CONFIG)
    node, found = one.node(str(FORGOTTEN)), list[bytes]()

    def recording(message: Message, context: Context) -> Message:
        answer = client_app(message, context)
        if context.node_id == node:
            for record in answer.content.array_records.values():
                found.extend(bytes(array.data) for array in record.values())
        return answer

    one.grid._client_app = recording
    one.run()
    one.close()
    middles = [data[len(data) // 2 :][:LENGTH] for data in found if len(data) >= SHORTEST]
    return [middle for middle in middles if len(set(middle)) > LENGTH // 3]  # zeros lie everywhere


def test_after_a_deletion_no_file_has_what_was_forgotten_or_the_ledgers_password(
    tmp_path: Path, url_with_password: str
) -> None:
    """The SuperLink's database holds the answers until they are erased, while it works on it; nothing is left to do."""
    canaries = answered_by_the_forgotten(tmp_path / "reference")
    assert len(canaries) >= 3
    home = tmp_path / "federation"
    deployment = FrugalDeployment(
        home,
        num_clients=2,
        app_dir=write_app(tmp_path / "app"),
        run_config=RUN_CONFIG,
        with_deletion_service=True,
        ledger_url=url_with_password,
    )
    layout = deployment.layout
    wal = layout.superlink_database.with_name("superlink.db-wal")

    def files_with_an_answer() -> list[Path]:
        return [path for canary in canaries for path in files_with(home, canary)]

    with deployment, closing(Ledger.open(url_with_password)) as ledger:
        run_id = deployment.submit_run()
        deployment.wait_until(
            lambda: any(found.status is Status.COMPLETED for found in ledger.requests.select()),
            HANGS_S,
            "the deletion is completed",
        )
        wal_bytes = wal.stat().st_size
        assert {path.name for path in files_with_an_answer()} & {"superlink.db", "superlink.db-wal"}
        assert erase_after_deletions(layout.superlink_database, layout.state_dir, ledger)
        assert files_with_an_answer() == []
        assert wal.stat().st_size < wal_bytes
        assert [process for process in living_processes() if CANARY in process.command] == []
        assert not erase_after_deletions(layout.superlink_database, layout.state_dir, ledger)
        assert deployment.wait_until_finished(run_id, HANGS_S) == "finished:completed"
        host = Installation(
            config_dir=home, state_dir=layout.state_dir, superlink_database=layout.superlink_database
        )
        findings = (*check_superlink_database(host), *check_residue(host, ledger))
        assert [finding.what for finding in findings if finding.level is not Level.OK] == []
    # Logs, databases, Flower's own directory, settings, states, reports, bundles.
    assert files_with(home, CANARY) == []
    assert list(open_to_others([layout.server_dir, *map(layout.client_dir, range(2))])) == []
