"""What root's commands make in the service's directories belongs to the service's user, who can read and write it."""

import os
import pwd
import shutil
import sqlite3
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from client.memory import DirectoryMemory
from server.cli import app
from server.federation.checkpoints import CheckpointStore
from server.ledger import Ledger
from server.ledger.database import Database
from server.operations.checklist import Installation, Level
from server.operations.checklist.services import check_service_user
from server.operations.flower_control import FlowerControl
from server.operations.starting import write_app
from server.state_directory.ledger_address import ledger_url
from server.state_directory.subject_key import subject_keys
from strategies.installation import DEPLOY, run_script
from tests.ledgers import MIGRATE, NOW, submit
from unlearning.requests import Granularity, Target
from unlearning.runtime.durable_files import open_private, write_atomically

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes files that a service cannot read")
SERVICE = pwd.getpwnam("nobody")


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory of the service, which the service can reach; pytest's own are root's alone."""
    directory = Path(tempfile.mkdtemp(prefix="service-"))
    os.chown(directory, SERVICE.pw_uid, SERVICE.pw_gid)
    yield directory
    shutil.rmtree(directory)


def run(*arguments: str | Path) -> str:
    ran = CliRunner().invoke(app, [str(one) for one in arguments], catch_exceptions=False)
    assert ran.exit_code == 0, ran.output
    return ran.output


def owners(directory: Path) -> dict[str, int]:
    """What below `directory` is not the service's."""
    found = {path.relative_to(directory).as_posix(): path.lstat().st_uid for path in directory.rglob("*")}
    assert found
    return {name: owner for name, owner in found.items() if owner != SERVICE.pw_uid}


def can_use(directory: Path) -> None:
    """The service reads and writes every file."""
    script = (
        'find "$0" -type f -exec sh -c \'for f; do cat "$f" >/dev/null && : >>"$f" || exit 1; done\' sh {} +'
    )
    # Python's own `user=` forks, and what gRPC then says in the child would be on its stderr.
    become = ["setpriv", f"--reuid={SERVICE.pw_uid}", f"--regid={SERVICE.pw_gid}", "--clear-groups"]
    done = subprocess.run(
        [*become, "sh", "-c", script, str(directory)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def federation_in(state: Path) -> None:
    """A ledger with a request, its keys, a checkpoint."""
    keys = subject_keys(state)
    MIGRATE(Database(ledger_url(state)))  # the tests' own would copy a file
    with closing(Ledger.open(ledger_url(state), keys)) as ledger:
        submit(ledger, Target(Granularity.CLASS, class_label=1), key="1", now=NOW)
    write_atomically(CheckpointStore(state / "checkpoints")._directory / "x.txt", b"x")


def test_a_restore_by_root_is_the_services(place):
    """The ledger, its log and the checkpoints, also on a host that had none; and what it moved aside can be erased."""
    state = place / "state"
    federation_in(state)
    run("backup", place / "backup", "--state-dir", state)
    shutil.rmtree(state)
    for _ in range(2):
        run("restore", place / "backup", "--state-dir", state)
    assert (state / "ledger.db").exists()
    assert owners(place) == {}
    can_use(place)


def test_what_commands_of_root_make_is_the_services(place):
    """Keys, tokens, residue, the app that is submitted, a ledger that was opened first by root."""
    state, database = place / "state", place / "superlink.db"
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
    os.chown(database, SERVICE.pw_uid, SERVICE.pw_gid)
    run("certificate-key", place / "etc" / "certificate-key")
    run("http-token", place / "etc" / "tokens.json", "tool")
    federation_in(state)
    run("erase-residue", "--state-dir", state, "--superlink-database", database)
    write_app(place / "app")
    DirectoryMemory(place / "site").file_request(Target(Granularity.CLIENT, "1"), "not", {})
    (place / "home").mkdir()
    os.chown(place / "home", SERVICE.pw_uid, SERVICE.pw_gid)
    (place / "bin").mkdir()
    flwr = place / "bin" / "flwr"
    flwr.write_text('#!/bin/sh\n: > "$FLWR_HOME/source"; echo \'"success": true\'\n')
    flwr.chmod(0o700)
    environment = {"FLWR_HOME": str(place / "home"), "PATH": f"{flwr.parent}:{os.environ['PATH']}"}
    (key := flwr.with_name("key.pub")).write_text("a key\n")
    subprocess.run(["sh", DEPLOY / "register_client.sh", key, "1"], env=environment, check=True)
    shutil.rmtree(flwr.parent)
    run_script("make_certificates.sh", str(place / "etc" / "certificates"), "server", "localhost")
    run_script("make_certificates.sh", str(place / "etc" / "certificates"), "operator", "ada")
    run_script("make_certificates.sh", str(place / "etc"), "request", "hospital-0")
    run_script("make_supernode_key.sh", str(place / "etc" / "site" / "client-key"))
    key = place / "etc" / "certificates" / "ca.key"  # signs for every role, and no service reads it
    assert owners(place) == {path.relative_to(place).as_posix(): 0 for path in (key, key.with_suffix(".srl"))}
    key.unlink()
    key.with_suffix(".srl").unlink()
    can_use(place)


def test_a_ledger_that_root_looks_at_stays_the_services(place):
    """SQLite's log files among it, which are made again when a ledger that lay at rest is opened."""
    state = place / "state"
    federation_in(state)
    with closing(Ledger.open(ledger_url(state))) as ledger:
        assert ledger.events.verify() == ""
        assert (state / "ledger.db-wal").exists()
        assert owners(place) == {}


def test_check_says_what_the_service_cannot_use(place):
    """Also what lies in directories that it can read, and what keeps it from entering one; by the unit's user."""
    state, config, units = place / "home" / "state", place / "etc", place / "units"
    federation_in(state)
    run("certificate-key", config / "certificate-key")
    units.mkdir()
    (units / "flower-superlink.service").write_text("[Service]\nUser=nobody\n")
    installation = Installation(config_dir=config, state_dir=state, units_dir=units)

    def problems() -> list[str]:
        return [one.what for one in check_service_user(installation) if one.level is not Level.OK]

    assert problems() == []
    key = config / "certificate-key" / "certificate-signing.key"
    for path, words in (
        (key, "read"),
        (state / "ledger.db", "read and written"),
        (state, "read and written"),
    ):
        os.chown(path, 0, 0)
        [found] = problems()
        assert found.startswith(f"{path} cannot be {words} by the user nobody")
        os.chown(path, SERVICE.pw_uid, SERVICE.pw_gid)
    place.chmod(0o700)
    os.chown(place, 0, 0)
    [found] = problems()
    assert found.startswith(f"{place} cannot be entered by the user nobody")


def test_what_flwr_writes_for_root_is_the_services(place):
    """`start`, `setup client` and `check` run it; it keeps files in $FLWR_HOME."""
    (place / "pyproject.toml").write_text('[project]\nname = "app"\n[tool.flwr.app]\npublisher = "tests"\n')
    os.chown(place / "pyproject.toml", SERVICE.pw_uid, SERVICE.pw_gid)
    control = FlowerControl(place, "here", environment={"FLWR_HOME": str(place), "PATH": os.environ["PATH"]})
    control._run_in_a_process(["sh", "-c", 'mkdir "$FLWR_HOME/new"; echo x > "$FLWR_HOME/new/source"'])
    assert owners(place) == {}


def test_a_file_that_root_writes_again_keeps_its_owner_in_a_directory_of_roots(tmp_path):
    """As tokens directly below a directory of root's; and what root makes there is root's."""
    tokens = tmp_path / "tokens.json"
    write_atomically(tokens, b"{}")
    assert tokens.stat().st_uid == 0
    os.chown(tokens, SERVICE.pw_uid, SERVICE.pw_gid)
    write_atomically(tokens, b"[]")
    assert tokens.stat().st_uid == SERVICE.pw_uid


def test_a_file_with_a_second_name_is_not_given_away(place):
    """The service can link root's files into its directory, and must not become their owner."""
    secret = Path(tempfile.mkdtemp()) / "secret"
    secret.write_text("x")
    link = place / "service.log"
    link.hardlink_to(secret)
    open_private(link, append=True).close()
    assert secret.stat().st_uid == 0
    shutil.rmtree(secret.parent)
