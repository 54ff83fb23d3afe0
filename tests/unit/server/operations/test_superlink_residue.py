"""What the SuperLink deleted is gone from its files once it is erased, and that happens once a completed deletion."""

import json
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from server.cli import app
from server.ledger import Ledger, LedgerUnavailable
from server.operations.checklist import Installation, Level, kept_data
from server.operations.checklist.kept_data import check_residue, check_superlink_database
from server.operations.superlink_residue import (
    count_waiting_answers,
    erase_after_deletions,
    erase_residue,
    last_erased_event,
)
from server.operations.supervisor import Supervisor
from tests.fake_flower import FakeFlower, control_of_app
from tests.ledgers import WAY, live_at, submit
from tests.raising import raises
from tests.residue import files_with
from tests.supervised import OneRun
from unlearning.errors import DeploymentError
from unlearning.requests import Granularity, Status, Target

NOW = datetime(2026, 3, 1, tzinfo=UTC)
CANARY = b"losses-of-the-forgotten" * 400


@dataclass
class SuperLink:
    """A database as Flower's SuperLink has it open, with a client's answer that was fetched and deleted."""

    path: Path
    connection: sqlite3.Connection = field(init=False)

    def __post_init__(self) -> None:
        self.connection = sqlite3.connect(self.path, isolation_level=None)
        for pragma in (
            "journal_mode = WAL",
            "synchronous = NORMAL",
            "mmap_size = 268435456",
            "secure_delete = OFF",
        ):
            self.connection.execute(f"PRAGMA {pragma}")
        self.connection.execute("CREATE TABLE message_res (content BLOB)")
        self.connection.execute("CREATE TABLE node (name TEXT)")
        self.connection.execute("INSERT INTO node VALUES ('hospital-0')")
        self.answer(CANARY)
        self.connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
        self.fetch()

    def answer(self, content: bytes) -> None:
        self.connection.execute("INSERT INTO message_res VALUES (?)", (content,))

    def fetch(self) -> None:
        self.connection.execute("DELETE FROM message_res")


@pytest.fixture
def superlink(tmp_path: Path) -> Iterator[SuperLink]:
    (tmp_path / "flower").mkdir(mode=0o700)
    running = SuperLink(tmp_path / "flower" / "superlink.db")
    running.path.chmod(0o600)
    yield running
    running.connection.close()


def complete(ledger: Ledger, label: int, *, now: datetime = NOW) -> None:
    """Carry a deletion out, as far as the ledger goes."""
    request = submit(ledger, Target(Granularity.CLASS, class_label=label), key=f"key {label}", now=now)
    token = ledger.acquire_fence("loop", now=now)
    for status in WAY:
        live_at(ledger, token, now).move(request.id, status)


@pytest.fixture
def ledger(sqlite_ledger: Ledger) -> Ledger:
    return sqlite_ledger


@pytest.fixture
def erase(superlink: SuperLink, ledger: Ledger, tmp_path: Path) -> Callable[[], bool]:
    return lambda: erase_after_deletions(superlink.path, tmp_path, ledger)


@pytest.fixture
def host(superlink: SuperLink, tmp_path: Path) -> Installation:
    return Installation(state_dir=tmp_path, superlink_database=superlink.path)


def test_what_was_deleted_is_gone_from_database_and_log_while_they_are_open(superlink):
    """It lay in both; what is still there stays, and the SuperLink goes on."""
    assert {path.name for path in files_with(superlink.path.parent, CANARY[:60])} == {
        "superlink.db",
        "superlink.db-wal",
    }
    erase_residue(superlink.path)
    assert files_with(superlink.path.parent, CANARY[:60]) == []
    assert superlink.path.with_name("superlink.db-wal").stat().st_size == 0
    superlink.answer(b"another")
    assert superlink.connection.execute("SELECT name FROM node").fetchall() == [("hospital-0",)]


def test_an_answer_that_was_not_fetched_is_not_lost(superlink):
    """It is no residue; `check` counts it."""
    superlink.answer(b"on its way")
    erase_residue(superlink.path)
    assert count_waiting_answers(superlink.path) == 1


def test_a_database_may_have_any_name(tmp_path):
    """SQLite reads ?, # and %41 of an address as something else."""
    elsewhere = SuperLink(tmp_path / "fed?x=%41#1.db")
    elsewhere.answer(b"on its way")
    assert count_waiting_answers(elsewhere.path) == 1


@pytest.mark.parametrize(
    ("statements", "code"),
    [
        (["BEGIN IMMEDIATE"], "database-in-use"),
        (["BEGIN", "SELECT * FROM node"], "log-in-use"),  # a reader of the log
    ],
)
def test_a_database_in_use_is_left_for_later(superlink, monkeypatch, statements, code):
    """Nothing waits without end, and nothing is broken; the next look erases."""
    monkeypatch.setattr("server.operations.superlink_residue._WAIT_S", 0.01)
    with closing(sqlite3.connect(superlink.path, isolation_level=None)) as user:
        for statement in statements:
            user.execute(statement).fetchall()
        with raises(DeploymentError, code):
            erase_residue(superlink.path)
    erase_residue(superlink.path)
    assert files_with(superlink.path.parent, CANARY[:60]) == []


def test_a_database_that_is_not_there_is_not_made(tmp_path):
    """A wrong path is said."""
    with raises(DeploymentError, "no-database"):
        erase_residue(tmp_path / "superlink.db")
    assert list(tmp_path.iterdir()) == []


def test_it_is_erased_once_for_each_completed_deletion(erase, ledger, tmp_path):
    """A restart of the supervisor remembers."""
    assert not erase()
    complete(ledger, 1)
    assert erase()
    assert not erase()
    complete(ledger, 2)
    assert erase()
    assert last_erased_event(tmp_path) == max(
        event.sequence for event in ledger.events.page() if event.to_status is Status.COMPLETED
    )


def test_the_command_erases_in_any_case(superlink, ledger, tmp_path):
    """A late answer of a run that was stopped is residue without a further deletion."""
    options = ["--superlink-database", str(superlink.path), "--state-dir", str(tmp_path)]
    done = CliRunner().invoke(app, ["erase-residue", "--json", *options])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout) == {"erased": str(superlink.path)}
    assert files_with(superlink.path.parent, CANARY[:60]) == []


def test_check_names_a_deletion_whose_residue_was_not_erased(erase, host, ledger):
    """Until it is: a problem from when the supervisor should have done it."""
    complete(ledger, 1, now=datetime.now(UTC) - timedelta(seconds=30))
    (found,) = check_residue(host, ledger)
    assert (found.level, "is not erased yet" in found.what) == (Level.WARNING, True)
    erase()
    complete(ledger, 2, now=datetime.now(UTC) - timedelta(seconds=90))
    (found,) = check_residue(host, ledger)
    assert (found.level, "is not erased." in found.what) == (Level.PROBLEM, True)
    erase()
    (found,) = check_residue(host, ledger)
    assert found.level is Level.OK


def test_check_names_a_superlinks_database_that_others_can_read(superlink, tmp_path):
    """And answers in it that were not fetched, and that there is none."""
    host = Installation(superlink_database=superlink.path)
    for name in ("superlink.db-wal", "superlink.db-shm"):
        superlink.path.with_name(name).chmod(0o600)
    assert list(check_superlink_database(host)) == []
    superlink.path.chmod(0o644)
    superlink.answer(b"late")
    assert [finding.level for finding in check_superlink_database(host)] == [Level.PROBLEM, Level.WARNING]
    (found,) = check_superlink_database(Installation(superlink_database=tmp_path / "none"))
    assert "There is no database" in found.what


def test_check_names_a_place_from_which_a_superlink_makes_no_tables(superlink, monkeypatch):
    """The SuperLink itself starts, and answers each call with an internal error."""
    refuse = kept_data.refuse_unusable_flower
    monkeypatch.setattr(kept_data, "refuse_unusable_flower", lambda: refuse(Path("/srv/My Projects/flwr")))
    found = [
        finding
        for finding in check_superlink_database(Installation(superlink_database=superlink.path))
        if "My Projects" in finding.what
    ]
    assert [finding.level for finding in found] == [Level.PROBLEM]


def test_check_names_what_a_restore_moved_aside(host, ledger):
    """It may hold what was forgotten."""
    (host.state_dir / "replaced-20260301").mkdir()
    (warned,) = [finding.what for finding in check_residue(host, ledger) if finding.level is Level.WARNING]
    assert "replaced-20260301" in warned


@pytest.mark.parametrize("error", [DeploymentError("busy"), LedgerUnavailable("away")])
def test_a_supervisor_goes_on_when_it_cannot_erase_now(tmp_path, error, caplog):
    """It says so, looks after the run all the same, and tries again."""
    flower, stop = FakeFlower(), threading.Event()

    def step():
        if flower.submitted:
            stop.set()
        raise error

    run = OneRun(control_of_app(tmp_path, flower))
    Supervisor(run, poll_s=0, erase_residue=step).run(stop)
    assert caplog.text.count("is not erased yet") == 2
