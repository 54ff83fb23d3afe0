"""After a deletion on real processes no file of the server holds what the forgotten client answered, or a password.

What the client answers is known bit for bit from the same federation in this process, so its arrays are the canary:
they are looked for as bytes in every file of the deployment.
"""

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from client.app import app as client_app
from server.ledger import Ledger
from server.operations.checklist import Installation, Level
from server.operations.checklist.residue import check_residue, check_superlink_database
from server.operations.superlink_residue import ResidueEraser
from server.processes.app_directory import write_app
from server.processes.process_group import living_processes
from tests.acceptance.test_ledger_secret import CANARY, url_with_password  # noqa: F401 - a fixture
from tests.federation import InProcessFederation
from tests.integration.deployments import FrugalDeployment
from tests.integration.live_federation import SETTINGS, WAIT_S
from tests.residue import files_with
from unlearning.durable_files import open_to_others
from unlearning.requests import Status

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

FORGOTTEN = 1
RUN_CONFIG = {
    **SETTINGS,
    "num-clients": 2,
    "rounds": 3,
    "attack-samples": 200,
    "requests": f"at=1 client={FORGOTTEN}",
}
SHORTEST, LENGTH = 512, 48
"""A canary is so many bytes from the middle of an array of at least so many: never part of a page that is split."""


def answered_by_the_forgotten(directory: Path) -> list[bytes]:
    """Of each larger array that the forgotten client answers, some bytes of its middle."""
    one = InProcessFederation(directory, RUN_CONFIG)
    node, found = one.node(str(FORGOTTEN)), []

    def recording(message, context):
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What lay where, before and after the residue was erased with the SuperLink running."""

    before: set[str]
    after: list[Path]
    wal_bytes: tuple[int, int]
    was_erased_again: bool
    run_status: str
    findings: list[str]
    with_password: list[Path]
    commands: list[str]
    open_files: list[Path]


@pytest.fixture(scope="module")
def seen(tmp_path_factory, request) -> Seen:
    """One run with a deletion, whose ledger's URL has a password."""
    url = request.getfixturevalue("url_with_password")
    directory = tmp_path_factory.mktemp("residue")
    canaries = answered_by_the_forgotten(directory / "reference")
    assert len(canaries) >= 3
    home = directory / "federation"
    deployment = FrugalDeployment(
        home,
        num_clients=2,
        app_dir=write_app(directory / "app"),
        run_config=RUN_CONFIG,
        with_deletion_service=True,
        ledger_url=url,
    )
    layout = deployment.layout
    wal = layout.superlink_database.with_name("superlink.db-wal")

    def files_with_an_answer() -> list[Path]:
        return [path for canary in canaries for path in files_with(home, canary)]

    with deployment, closing(Ledger.open(url)) as ledger:
        run_id = deployment.submit_run()
        deployment.wait_until(
            lambda: any(found.status is Status.COMPLETED for found in ledger.list_requests()),
            WAIT_S,
            "the deletion is completed",
        )
        before, wal_before = files_with_an_answer(), wal.stat().st_size
        eraser = ResidueEraser(database=layout.superlink_database, state_dir=layout.state_dir, ledger=ledger)
        assert eraser.step()
        after, wal_after = files_with_an_answer(), wal.stat().st_size
        host = Installation(
            config_dir=home, state_dir=layout.state_dir, superlink_database=layout.superlink_database
        )
        commands = [process.command for process in living_processes()]
        again = eraser.step()
        status = deployment.wait_until_finished(run_id, WAIT_S)
        findings = [
            finding.what
            for finding in (*check_superlink_database(host), *check_residue(host, ledger))
            if finding.level is not Level.OK
        ]
    return Seen(
        before={path.name for path in before},
        after=after,
        wal_bytes=(wal_before, wal_after),
        was_erased_again=again,
        run_status=status,
        findings=findings,
        with_password=files_with(home, CANARY),
        commands=[command for command in commands if CANARY in command],
        open_files=list(open_to_others([layout.server_dir, *map(layout.client_dir, range(2))])),
    )


def test_what_the_superlink_kept_is_gone_once_it_is_erased(seen):
    """It was in its database or log before; afterwards in no file, and the log was emptied."""
    print(seen)
    assert seen.before & {"superlink.db", "superlink.db-wal"}
    assert seen.after == []
    assert seen.wal_bytes[1] < seen.wal_bytes[0]


def test_the_run_goes_on_over_it_and_nothing_is_left_to_do(seen):
    """The SuperLink works on the database meanwhile."""
    assert seen.run_status == "finished:completed"
    assert not seen.was_erased_again
    assert seen.findings == []


def test_the_ledgers_password_is_in_no_file_and_no_command(seen):
    """Logs, databases, settings, reports, bundles; the process list."""
    assert seen.with_password == []
    assert seen.commands == []


def test_no_file_of_the_deployment_is_open_to_others(seen):
    """The SuperLink's database, Flower's own directory, logs and states."""
    assert seen.open_files == []
