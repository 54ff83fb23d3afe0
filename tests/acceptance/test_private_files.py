"""What a federation writes is its owner's alone, whatever the umask says, and what was open before is mended."""

import os
from collections.abc import Iterator

import pytest

from benchmarks.process_group import ProcessGroup
from client.app import app as client_app
from client.app import keep_files_private
from client.memory import DirectoryMemory
from server.ledger import Ledger
from server.state_directory.ledger_address import ledger_url
from tests.federation import SMALL, client
from unlearning.runtime.durable_files import open_to_others, write_atomically

SETTINGS = {**SMALL, "prepare": "federaser every=1; hf-online"}


@pytest.fixture(autouse=True)
def careless_umask() -> Iterator[None]:
    """The most careless one: new files are everybody's to write."""
    before = os.umask(0)
    yield
    os.umask(before)


def test_no_file_of_a_federation_is_open_to_others(federation, monkeypatch):
    """Ledger, settings, checkpoints, histories, reports, clients' memories."""
    monkeypatch.setattr("client.app.keep_private", lambda: None)  # each file by its own mode
    one = federation(**SETTINGS)
    one.run()
    one.forget(client("2"), rounds=3)
    DirectoryMemory(one.directory / "clients" / "1").file_request(client("1"), "not", {})
    made = list(one.directory.iterdir())
    assert {"ledger.db", "settings.json", "checkpoints", "kept", "reports", "clients"} <= {
        path.name for path in made
    }
    assert list(open_to_others(made)) == []


def test_what_an_earlier_version_left_open_is_closed_at_the_start_and_said(federation, caplog):
    """At the server, in its ledger, and at a client's site."""
    one = federation(**SETTINGS)
    one.run()
    DirectoryMemory(one.directory / "clients" / "1").file_request(client("1"), "not", {})
    for path in one.directory.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    caplog.clear()
    one.run()
    assert "could be read by others" in caplog.text
    mended = [path for path in one.directory.iterdir() if path.name != "clients"]
    assert list(open_to_others(mended)) == []


def test_a_clients_memory_that_was_open_is_closed_and_said(tmp_path, caplog):
    """Tombstones and requests; a file of somebody else's in the same directory stays as it is."""
    for name in ("tombstones.json", "outbox/1.json", "sent/2.json", "kept/pga/3.npz", "notes.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    DirectoryMemory(tmp_path)
    assert "8 file(s) and directories" in caplog.text
    assert [path.name for path in open_to_others(tmp_path.iterdir())] == ["notes.txt"]


def test_a_ledger_and_its_log_files_are_closed_to_others(tmp_path):
    """Also those that an earlier version made, and directories on the way to a new one."""
    url = ledger_url(tmp_path / "far" / "away")
    first = Ledger.open(url)
    found = [tmp_path / "far", *(tmp_path / "far").rglob("*")]
    assert {"ledger.db", "ledger.db-wal", "ledger.db-shm"} <= {path.name for path in found}
    assert list(open_to_others(found)) == []
    for path in (tmp_path / "far" / "away").iterdir():
        path.chmod(0o666)
    Ledger.open(url).close()
    assert list(open_to_others(found)) == []
    first.close()


def test_a_programs_log_and_what_it_makes_are_its_owners_alone(tmp_path):
    """The SuperLink's database among it: its program is told the umask."""
    group = ProcessGroup(
        "x", ["sh", "-c", "echo said; touch made"], environment=dict(os.environ), directory=tmp_path
    )
    group.start()
    assert group.wait_until_gone(30)
    assert {path.name for path in tmp_path.iterdir()} == {"x.log", "made"}
    assert list(open_to_others(tmp_path.iterdir())) == []


def test_a_clients_process_makes_private_files_from_its_first_message_on():
    """Also those that libraries make."""
    assert keep_files_private in client_app._mods
    keep_files_private(None, None, lambda *_: None)  # type: ignore[arg-type]
    assert os.umask(0) == 0o077


def test_a_file_that_is_being_written_is_private_from_its_first_byte(tmp_path, monkeypatch):
    """Not only once it has its name."""
    seen = []
    sync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: (seen.append(os.fstat(file).st_mode & 0o777), sync(file)))
    write_atomically(tmp_path / "new" / "file", b"content")
    assert seen[0] == 0o600
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700


def test_what_a_killed_process_left_half_written_is_erased_at_the_next_start(federation):
    """It may carry what was forgotten since."""
    one = federation(**SETTINGS)
    one.run()
    left = [
        one.directory / folder / f".x.npz.{os.getpid() + 1}" for folder in ("checkpoints", "reports", "kept")
    ]
    for path in left:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"forgotten")
    one.run()
    assert [path for path in left if path.exists()] == []
