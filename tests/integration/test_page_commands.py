"""The shell blocks of the pages, run as they are: on a live federation, on a machine alone, and in a new app.

What differs is what a reader puts in place of the pages' names. `tests.code_blocks` says which test runs which block.
"""

import os
import shutil
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest

from server.operations.flower_control import flower_environment
from strategies.installation import program
from tests.code_blocks import ALONE, LIVE, ROOT, ShellBlock, all_shell_blocks
from tests.integration.live_federation import LiveFederation, live_federation
from tests.waiting import HANGS_S
from unlearning.errors import FlowerUnlearningError
from unlearning.requests import DeletionRequest, Status

pytestmark = pytest.mark.slow

READER = "--server federation.example.org:9100 --tls-ca ca.crt --tls-cert olga.pem --tls-key olga.key"
"""The options of a command that is given on another machine."""


def run_block(block: ShellBlock, directory: Path, places: Mapping[str, str], **variables: str) -> str:
    """Run a block by bash, which ends at the first command that fails; return what it printed."""
    text = block.text
    for name, place in places.items():
        text = text.replace(name, place)
    path = f"{Path(program('flower-unlearn')).parent}:{ROOT}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", text],
        cwd=directory,
        env={**flower_environment(), "PATH": path, **variables},
        capture_output=True,
        text=True,
        timeout=HANGS_S,
        input="y\ny\n",  # a reader confirms what cannot be undone
        check=False,
    )
    where = f"{block.page}, line {block.line}"
    assert done.returncode == 0, f"{where}:\n{text}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def by_test(test: str) -> dict[tuple[str, int], ShellBlock]:
    return {(block.page, block.number): block for block in all_shell_blocks() if block.run_by == test}


class Desk:
    """A working directory at a live federation whose requests wait for a decision."""

    def __init__(self, live: LiveFederation, directory: Path) -> None:
        self.live = live
        self.directory = directory
        self._first = 0
        state = live.deployment.layout.state_dir
        (directory / "federation.toml").write_text(f'state-dir = "{state}"\n')

    def filed(self, method: str = "puf-special", **parameters: float) -> DeletionRequest:
        """A request for five samples of client 1."""
        self._first += 5
        target, service = self.live.samples(1, self._first), self.live.service
        return service.submit(
            target, method=method, parameters=parameters, idempotency_key=f"desk-{self._first}"
        )

    def failed(self) -> str:
        """The id of one that has failed: its step leads out of all numbers."""
        request = self.filed("gradient-ascent", learning_rate=100.0, clip_norm=0.0, epochs=50)
        self.live.service.change("accept", request.id)
        self.live.wait_until_reached(request, Status.FAILED)
        return request.id

    def samples_of(self, client: int) -> None:
        """Write ids.txt."""
        self._first += 5
        ids = self.live.samples(client, self._first).sample_ids
        (self.directory / "ids.txt").write_text("".join(f"{one}\n" for one in sorted(ids)))

    def give(self, block: ShellBlock, places: Mapping[str, str] | None = None) -> str:
        """Run a block; the pages' names of clients stand for client 1."""
        names = {f"{READER} \\\n   ": "", READER: "", "hospital-3": "1", **(places or {})}
        service = self.live.deployment.layout.deletion_address
        file = str(self.directory / "federation.toml")
        variables = {"FLOWER_UNLEARNING_SERVER": service, "FLOWER_UNLEARNING_FILE": file}
        return run_block(block, self.directory, names, **variables)

    def give_lines(self, block: ShellBlock, places: Mapping[str, str]) -> None:
        """Run each line by itself, where each asks for a request of its own; `places` by the command's name."""
        for line in filter(None, block.text.splitlines()):
            request_id = places[line.split()[1]] if line.split()[1] in places else self.failed()
            self.give(ShellBlock(block.page, block.number, block.line, line), {"r-000001": request_id})

    @contextmanager
    def accepting(self) -> Iterator[None]:
        """Accept meanwhile all that waits for a decision."""
        ends = threading.Event()

        def accept() -> None:
            while not ends.wait(0.5):
                for request in self.live.ledger.requests.select():
                    if request.status is Status.AWAITING:
                        with suppress(FlowerUnlearningError):
                            self.live.service.change("accept", request.id)

        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield
        finally:
            ends.set()
            thread.join()


@pytest.mark.long
@pytest.mark.skipif(shutil.which("jq") is None, reason="jq is not installed here, which a page uses")
def test_commands_of_the_pages_do_what_the_pages_say(tmp_path: Path) -> None:
    """Of README and of the pages for officers and operators, in the order of a story.

    In the gate tests/unit/test_documented_commands.py reads each command with the options that there are.
    """
    todo = by_test(LIVE)
    signing = tmp_path / "certificate-signing.key"
    subprocess.run([program("flower-unlearn"), "certificate-key", str(tmp_path)], check=True)
    settings = {"approval": "officer", "certificate_key": str(signing)}
    with live_federation(tmp_path, num_clients=3, **settings) as live:
        desk = Desk(live, tmp_path)

        def take(page: str, number: int = 0) -> ShellBlock:
            return todo.pop((page, number))

        # A person files, follows and reads.
        desk.samples_of(1)
        with desk.accepting():
            said = desk.give(take("README", 3), {"--client 3": "--client 0", "--client 5": "--client 1"})
            assert "r-000001" in said
        assert live.ledger.requests.get("r-000001").status is Status.COMPLETED
        desk.give(take("how-to-check-a-certificate", 1))
        (tmp_path / "certificate.json").write_bytes((tmp_path / "certificate-r-000001.json").read_bytes())
        assert "Verified Successfully" in desk.give(take("reference-certificate"))
        desk.give(take("how-to-choose-a-method"))
        desk.samples_of(1)
        desk.give(take("how-to-file-a-request"))
        desk.samples_of(1)
        site = live.deployment.layout.client_dir(1) / "state"
        desk.give(take("how-to-file-a-request", 1), {"--state-dir state": f"--state-dir {site}"})
        # Officers decide.
        desk.give(take("how-to-give-people-access", 1))
        places = {"r-000001": desk.filed().id, "r-000002": desk.filed().id}
        desk.give(take("how-to-approve-requests"), places)
        held, cancelled = desk.filed().id, desk.filed().id
        verbs = dict.fromkeys(("extend", "hold", "release", "refuse", "redact"), held)
        desk.give_lines(
            take("how-to-hold-extend-or-refuse"), {**verbs, "amend": cancelled, "cancel": cancelled}
        )
        assert live.ledger.requests.get(held).status is Status.REFUSED
        assert live.ledger.requests.get(cancelled).status is Status.CANCELLED
        # Operators mend and keep.
        desk.give_lines(take("how-to-handle-a-failed-deletion"), {})
        desk.give(take("how-to-recheck-a-deletion", 0))
        desk.give(take("how-to-recheck-a-deletion", 2), {"r-000001": desk.failed()})
        desk.give(take("how-to-audit-the-ledger"))
        assert (tmp_path / "heads.txt").read_text()
        desk.give(take("how-to-back-up-and-restore"), {"/backup": str(tmp_path / "backup")})
        assert (tmp_path / "backup" / "2026-03-01").is_dir()
        desk.give(take("how-to-prune-and-erase"))
        with desk.accepting():
            desk.give(take("reference-commands"), {"--client 3": "--class 3"})
        desk.give(take("how-to-set-a-privacy-budget"))
    assert not todo


def test_what_needs_no_federation_works(tmp_path: Path) -> None:
    """Keys, certificates and planted noise, with a directory of this test in place of those of a host."""
    clean = tmp_path / "clean"
    clean.mkdir()
    random = np.random.default_rng(0)
    inputs = random.normal(size=(40, 8)).astype(np.float32)
    np.savez(clean / "train.npz", inputs=inputs, targets=np.arange(40) % 2, ids=np.arange(40).astype(str))
    places = {
        "/etc/flower-unlearning": str(tmp_path / "etc"),
        "/var/lib/flower-unlearning": str(tmp_path / "var"),
        "DIR": str(tmp_path / "people"),
    }
    (tmp_path / "deploy").symlink_to(ROOT / "deploy")
    (tmp_path / "var" / "state").mkdir(parents=True)  # as a site's `setup` makes it
    for block in by_test(ALONE).values():
        run_block(block, tmp_path, places)
    assert {one.name for one in (tmp_path / "people").iterdir()} >= {"ada.pem", "olga.pem", "bea.pem"}
    assert (tmp_path / "CLIENT-ID.pem").exists()
    assert (tmp_path / "noisy" / "train.npz").exists()
