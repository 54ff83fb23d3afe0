"""Backup and restore: what comes back is what was there, and never silently what was forgotten since."""

import errno
import hashlib
import json
import os
import shutil
import sqlite3
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
import sqlalchemy as sa
from typer.testing import CliRunner

from server.certificate.keys import make_key_pair
from server.cli import app
from server.federation.checkpoints import CheckpointStore
from server.ledger import Ledger
from server.ledger.records import APPROVED
from server.operations import backup as backup_module
from server.operations import restore as restore_module
from server.operations.backup import FILE, back_up, read_verified
from server.operations.certified_deletions import read_certified, unknown_to
from server.operations.restore import restore
from tests.acceptance.test_live_deletion import sample_ids
from tests.cases import LONG
from tests.federation import client
from tests.ledgers import CLIENT_4, NOW, live_at, submit
from tests.raising import raises
from unlearning.errors import BackupError, Fenced
from unlearning.methods.registry import METHODS
from unlearning.parameters import content_hash
from unlearning.requests import Granularity, Status, Target

SMALL = {"num_clients": 3, "max_examples": 200, "recovery_max_rounds": 1, "attack_samples": 20, "rounds": 2}


def ledger_url(directory: Path) -> str:
    return f"sqlite:///{directory / 'ledger.db'}"


def saved(one, directory: Path) -> Path:
    """A backup of a federation."""
    back_up(directory, state_dir=one.directory, ledger_url=ledger_url(one.directory), now=NOW)
    return directory


def keep_apart(one, directory: Path) -> None:
    """Let the clients keep what they must remember on machines of their own, which no restore touches."""
    for context in one.grid.contexts.values():
        context.node_config["state-dir"] = str(directory / str(context.node_config["client-id"]))


@pytest.fixture
def one(federation):
    """A federation that has trained."""
    made = federation(**SMALL)
    made.run()
    return made


@pytest.fixture
def backup_of_one(one, tmp_path) -> Path:
    """What it was then."""
    return saved(one, tmp_path / "backup")


def brought_back(backup: Path, state_dir: Path, **changes):
    given = {"now": NOW} | changes
    return restore(backup, state_dir=state_dir, ledger_url=ledger_url(state_dir), **given)


def test_a_federation_goes_on_from_a_restored_backup_to_the_same_bits(federation, tmp_path):
    """On another machine, with a deletion behind it and rounds to come."""
    one = federation(name="first", requests="at=1 client=2 method=puf-special", **SMALL)
    one.run()
    backup = saved(one, tmp_path / "backup")
    other = federation(name="second", requests="at=1 client=2 method=puf-special", **SMALL)
    shutil.rmtree(other.directory)
    done = brought_back(backup, other.directory)
    assert (done.undone, done.compared) == ((), False)
    assert not (other.directory / done.aside).exists()
    assert (other.directory / "reports" / "r-000001" / "report.json").is_file()
    expected, state = one.run(rounds=4), other.run(rounds=4)
    assert content_hash(state.parameters) == content_hash(expected.parameters)
    assert state.exclusions.is_forgotten("2")


def test_a_restore_that_undoes_a_deletion_is_refused_and_if_forced_says_so(one, backup_of_one):
    """The model of the backup still holds client 2; the newer state is moved aside."""
    one.file(client("2"))
    after = one.run(rounds=3)
    with raises(BackupError, "would-undo") as refused:
        brought_back(backup_of_one, one.directory)
    assert "the deletion of client 2 (r-000001)" in str(refused.value)
    assert "--force" in str(refused.value)
    assert content_hash(one.checkpoint().parameters) == content_hash(after.parameters)
    assert one.ledger.exclusions().is_forgotten("2")
    one.close()
    done = brought_back(backup_of_one, one.directory, force=True)
    assert any("deletion of client 2" in line for line in done.undone)
    assert json.loads((one.directory / "undone-by-restore.json").read_text())["undone"] == list(done.undone)
    kept = CheckpointStore(one.directory / done.aside / "checkpoints").newest()
    assert kept is not None
    assert content_hash(kept.parameters) == content_hash(after.parameters)
    assert not one.checkpoint().exclusions.is_forgotten("2")


def test_what_a_restore_undoes_is_carried_out_again_in_its_order(one, backup_of_one):
    """Without a person: the register has each request under its key, who filed it, its day and its deadline."""
    gone = one.file(client("2"), "not")
    named = Target(Granularity.SAMPLE, "1", frozenset(sample_ids(one, "1", 2)))
    later = one.file(named, "natural")
    one.ledger.decisions.extend(later.id, days=5, reason="many systems", by="ada", now=later.created_at)
    withdrawn = one.file(client("0"))
    one.ledger.decisions.cancel(withdrawn.id, by="ada", now=withdrawn.created_at)
    one.run(rounds=3)
    held = one.file(client("0"), "natural")
    one.ledger.decisions.hold(held.id, reason="a court keeps the data", by="ada", now=held.created_at)
    before = [one.ledger.requests.get(item.id) for item in (gone, later, held)]
    one.close()
    one._ledger = None
    done = brought_back(backup_of_one, one.directory, force=True, now=datetime.now(UTC))
    assert [item.request_id for item in done.lost] == [item.id for item in before]
    again = one.ledger.requests.select()
    assert {item.status for item in again} == {Status.RECEIVED}
    one.run(rounds=3)
    again = one.ledger.requests.select()
    kept = ("idempotency_key", "submitted_by", "method", "received_on", "due_on", "extended_days", "is_held")
    assert [[getattr(item, name) for name in kept] for item in again] == [
        [getattr(item, name) for name in kept] for item in before
    ]
    assert [item.status for item in again] == [item.status for item in before]
    exclusions = one.checkpoint().exclusions
    assert exclusions.is_forgotten("2")
    assert exclusions.of("1").sample_ids == one.ledger.key_target(named).sample_ids
    told = [one.ledger.events.page(item.id, limit=1)[0].detail["text"] for item in again]
    assert told[2] == f"filed again by a restore; it was {held.id}"
    assert json.loads((one.directory / "undone-by-restore.json").read_text())["filed_again"] == {
        old.id: new.id for old, new in zip(before, again, strict=True)
    }


@pytest.mark.parametrize("where", [pytest.param("here", marks=LONG), "on a new machine"])
def test_sites_that_remember_a_deletion_need_none_of_its_data_to_do_it_again(
    federation, one, tmp_path, where
):
    """Their state directories are on machines of their own; a method that works with the data would find none."""
    keep_apart(one, tmp_path / "sites")
    before = one.file(Target(Granularity.CLASS, None, class_label=3), "puf-special")
    backup, ids = saved(one, tmp_path / "backup"), sorted(sample_ids(one, "1", 2))
    after = [
        one.file(client("2"), "fedquit"),
        one.file(Target(Granularity.SAMPLE, "1", frozenset(ids)), "puf-regular"),
        one.file(client("0"), "not"),
    ]
    one.run(rounds=6)
    assert {item.status for item in one.ledger.requests.select()} == {Status.COMPLETED}
    expected = one.ledger.exclusions()
    one.close()
    restored, given = one, {}
    if where == "on a new machine":
        shutil.copytree(one.directory / "reports", tmp_path / "kept")
        (tmp_path / "kept" / "ids.txt").write_text("\n".join(ids))
        restored, given = federation(name="second", **SMALL), {"certificates": tmp_path / "kept"}
        keep_apart(restored, tmp_path / "sites")
        shutil.rmtree(restored.directory)
    one._ledger = None
    done = brought_back(backup, restored.directory, force=True, now=datetime.now(UTC), **given)
    assert len(set(done.filed_again.values())) == len(after) + 1
    restored.run(rounds=6)
    assert restored.ledger.exclusions() == restored.checkpoint().exclusions == expected
    for old in (before, *after):
        known = restored.ledger.requests.find(old.idempotency_key, old.submitted_by, old.submitted_role)
        new = restored.ledger.requests.get(done.filed_again[old.id])
        assert new.status is Status.COMPLETED
        assert not METHODS[new.method].info.works_with_the_data
        assert (new.received_on, new.due_on, new.target) == (old.received_on, old.due_on, old.target)
        if METHODS[old.method].info.works_with_the_data and known is not None:
            assert restored.ledger.requests.replacement_of(known).id == new.id


@pytest.mark.slow
def test_on_a_new_machine_certificates_say_what_is_carried_out_again(federation, one, tmp_path):
    """In its order and with its days; a person decides again, and files what needs ids that are in no list."""
    open_then = one.file(client("2"), "not")
    backup = saved(one, tmp_path / "backup")
    ids = sorted(sample_ids(one, "1", 3))
    one.run(rounds=3)
    listed = one.file(Target(Granularity.SAMPLE, "1", frozenset(ids[:2])), "natural")
    unlisted = one.file(Target(Granularity.SAMPLE, "1", frozenset(ids[2:])), "natural")
    one.run(rounds=4)
    kept = tmp_path / "kept"
    shutil.copytree(one.directory / "reports", kept)
    (kept / "ids.txt").write_text("\n".join(ids[:2]))
    other = federation(name="second", **SMALL)
    shutil.rmtree(other.directory)
    done = brought_back(backup, other.directory, certificates=kept, now=datetime.now(UTC))
    assert not done.compared
    assert done.filed_again == {open_then.id: open_then.id, listed.id: "r-000002"}
    assert [unlisted.id in line for line in done.by_hand] == [True]
    again = other.ledger.requests.get("r-000002")
    assert again.created_at > listed.created_at
    dated = ("received_on", "due_on", "ground", "method", "submitted_by")
    assert [getattr(again, name) for name in dated] == [getattr(listed, name) for name in dated]
    other.run(rounds=4)
    assert {item.status for item in other.ledger.requests.select()} == {Status.COMPLETED}
    keyed = other.ledger.key_target(Target(Granularity.SAMPLE, "1", frozenset(ids[:2])))
    assert other.checkpoint().exclusions.of("1").sample_ids == keyed.sample_ids


def test_certificates_of_what_the_backup_knows_change_nothing(federation, tmp_path):
    """Nor do those of another federation, or without the signature that is asked for; an empty folder is an error."""
    one = federation(name="first", requests="at=0 client=2", **SMALL | {"rounds": 1})
    one.run()
    backup, reports = saved(one, tmp_path / "backup"), one.directory / "reports"
    done = brought_back(backup, tmp_path / "new", certificates=reports)
    assert (done.undone, done.filed_again, len(done.certified)) == ((), {}, 1)
    _, public, _ = make_key_pair(tmp_path)
    for place, key in ((tmp_path / "new" / "restored", None), (reports, public)):
        with raises(BackupError, "no-certificates"):
            brought_back(backup, tmp_path / "other", certificates=place, public_key=key)
    stranger = Ledger.open(ledger_url(tmp_path))
    assert unknown_to(stranger, read_certified(reports, keys=None)) == []
    stranger.close()


@pytest.mark.parametrize("kept", ["the ledger", "the ledger, carried out", "certificates"])
@pytest.mark.slow
def test_what_was_approved_and_is_undone_runs_only_with_the_approvals_that_it_needs(
    federation, tmp_path, kept
):
    """The ledger knows who gave them, and they are named as given before; of certificates people decide again."""
    one = federation(name="first", approval="two", **SMALL | {"rounds": 1})
    one.run()
    backup = saved(one, tmp_path / "backup")
    request = one.file(client("2"))
    for name in ("olga", "paul"):
        one.ledger.decisions.accept(request.id, by=name, now=request.created_at)
    if kept != "the ledger":
        one.run(rounds=2)
    if kept != "certificates":
        one.close()
        one._ledger = None
        brought_back(backup, one.directory, force=True, now=datetime.now(UTC))
        restored = one
    else:
        restored = federation(name="second", approval="two", **SMALL)
        shutil.rmtree(restored.directory)
        reports = one.directory / "reports"
        brought_back(backup, restored.directory, certificates=reports, now=datetime.now(UTC))
    again = restored.ledger.requests.replacement_of(restored.ledger.requests.get(request.id))
    given = [event for event in restored.ledger.events.page(again.id) if event.kind == APPROVED]
    if kept != "certificates":
        assert again.status is Status.ACCEPTED
        assert (again.id == request.id) is (kept == "the ledger")
        assert [(event.actor, request.id in event.detail["text"]) for event in given] == [
            ("olga", True),
            ("paul", True),
        ]
    else:
        assert (again.status, again.approvals_needed, given) == (Status.AWAITING, 2, [])
        restored.run(rounds=2)
        assert restored.ledger.requests.get(again.id).status is Status.AWAITING
        assert restored.ledger.rounds()[-1].metrics["participants"] == ["0", "1"]


@pytest.mark.slow
def test_a_request_that_failed_then_and_was_carried_out_since_is_tried_again(one, tmp_path):
    """The restored ledger knows it, as failed, and by a method that works with data that its site no longer uses."""
    request = one.file(client("2"))
    one.grid.broken = {one.node("2")}
    one.run(rounds=3, max_attempts=1)
    assert one.ledger.requests.get(request.id).status is Status.FAILED
    backup = saved(one, tmp_path / "failed")
    one.grid.broken = set()
    one.ledger.decisions.retry(request.id, by="ada", now=datetime.now(UTC))
    one.run(rounds=4)
    assert one.ledger.requests.get(request.id).status is Status.COMPLETED
    one.close()
    one._ledger = None
    brought_back(backup, one.directory, force=True, now=datetime.now(UTC))
    again = one.ledger.requests.replacement_of(one.ledger.requests.get(request.id))
    assert (again.id != request.id, again.status) == (True, Status.RECEIVED)
    one.run(rounds=4)
    assert one.ledger.requests.get(again.id).status is Status.COMPLETED


def test_a_server_process_that_still_runs_is_fenced_off_by_a_restore(one, backup_of_one):
    """Its token was given out before the restore, and stays worthless after it."""
    tokens = [one.ledger.acquire_fence("old", now=NOW) for _ in range(5)]
    one.close()
    brought_back(backup_of_one, one.directory)
    again = Ledger.open(ledger_url(one.directory))
    for token in tokens:
        with pytest.raises(Fenced):
            live_at(again, token).check_fence()
    again.close()


def test_only_the_newest_checkpoint_is_in_a_backup(one, backup_of_one):
    """Older ones may hold what was forgotten."""
    assert len(list((one.directory / "checkpoints").iterdir())) > 1
    assert [name for name in read_verified(backup_of_one).sha256 if "checkpoints" in name] == [
        f"state/checkpoints/{CheckpointStore(one.directory / 'checkpoints').newest_file().name}"
    ]


def test_a_backup_is_for_its_owner_only(backup_of_one):
    """It holds models and names."""
    open_to_others = [path for path in backup_of_one.rglob("*") if path.stat().st_mode & 0o077]
    assert [path for path in open_to_others if path.is_file() and path.name != FILE] == []
    assert backup_of_one.stat().st_mode & 0o077 == 0


@pytest.fixture
def backup(federation, tmp_path) -> Path:
    one = federation(name="saved", **SMALL)
    one.ledger.acquire_fence("loop", now=NOW)
    (one.directory / "settings.json").write_text("{}")
    (one.directory / "noise-secret").write_bytes(b"1" * 32)
    return saved(one, tmp_path / "backup")


def test_a_damaged_backup_is_refused_before_anything_is_touched(backup, tmp_path):
    """One bit in one file."""
    path = backup / "state" / "settings.json"
    path.write_text("{ }")
    with raises(BackupError, "damaged-file", name="state/settings.json"):
        brought_back(backup, tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"format": 2}', '{"format": 1, "x": 1}', "[" * 100_000, " " * 2**24 + "{}"],
    ids=["empty", "a list", "nothing", "of another format", "strange", "too deep", "too long"],
)
def test_a_damaged_manifest_is_refused(backup, tmp_path, text):
    """With a sentence, whatever it holds; it is read within bounds."""
    (backup / FILE).write_text(text)
    with raises(BackupError, "damaged-manifest"):
        brought_back(backup, tmp_path / "new")


STRANGE_NAMES = [
    "../../etc/passwd",
    "/etc/passwd",
    "state/../../elsewhere",
    "state//settings.json",
    "state/",
    "state",
    "",
    "elsewhere.txt",
    "state\\..\\elsewhere",
    "state/a\0b",
    "state/ledger.db",
    "state/ledger.db-wal",
    "state/restoring.json",
    "state/replaced-1/x",
]


@pytest.mark.parametrize("name", STRANGE_NAMES)
def test_a_manifest_cannot_reach_outside_of_the_backup(backup, tmp_path, name):
    """A restore as root must not read or write elsewhere, nor over its own steps."""
    change_hashes(backup, lambda hashes: {**hashes, name: "0"})
    with raises(BackupError, "damaged-manifest"):
        brought_back(backup, tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("left", [(), ("state/settings.json",)])
def test_a_manifest_that_does_not_name_the_ledger_is_refused(backup, tmp_path, left):
    """An empty list of hashes holds for every file."""
    change_hashes(backup, lambda hashes: {name: hashes[name] for name in left})
    with raises(BackupError, "damaged-manifest"):
        brought_back(backup, tmp_path / "new")


def test_what_the_manifest_does_not_name_is_not_restored(backup, tmp_path):
    """A file that was put there, and a link to one elsewhere."""
    (tmp_path / "elsewhere").write_text("somebody else's")
    (backup / "state" / "added.json").write_text("{}")
    (backup / "state" / "link.json").symlink_to(tmp_path / "elsewhere")
    brought_back(backup, tmp_path / "new")
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == [
        *("ledger.db", "noise-secret", "settings.json", "subject-key")
    ]


@pytest.mark.parametrize("name", ["state", "state/settings.json"])
def test_a_link_in_a_backup_is_refused(backup, tmp_path, name):
    """Also one to a file with the right content, at which another could be tomorrow."""
    shutil.move(backup / name, tmp_path / "elsewhere")
    (backup / name).symlink_to(tmp_path / "elsewhere")
    with raises(BackupError, "strange-file"):
        brought_back(backup, tmp_path / "new")


@pytest.mark.parametrize("name", [FILE, "ledger.db", "state/settings.json"])
@pytest.mark.parametrize("what", ["pipe", "endless", "directory"])
def test_what_is_no_plain_file_of_a_backup_is_refused_without_a_wait(backup, tmp_path, name, what):
    """Also where the manifest itself should be: a backup can lie where others write."""
    (backup / name).unlink()
    make = {
        "pipe": lambda: os.mkfifo(backup / name),
        "endless": lambda: (backup / name).symlink_to("/dev/zero"),
        "directory": (backup / name).mkdir,
    }
    make[what]()
    with pytest.raises(BackupError):
        brought_back(backup, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_backup_goes_into_no_directory_of_another_account(backup, tmp_path, monkeypatch):
    """Its owner could exchange what is in it while it is written."""
    (tmp_path / "theirs").mkdir()
    own = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: own + 1)
    with raises(BackupError, "backup-directory"):
        saved(SimpleNamespace(directory=tmp_path / "saved"), tmp_path / "theirs")
    assert list((tmp_path / "theirs").iterdir()) == []


def test_a_file_that_is_exchanged_after_the_check_is_not_followed(backup, tmp_path, monkeypatch):
    """It is opened again to be copied: what is a link by then is not read."""
    (tmp_path / "secret").write_text("secret")
    real = restore_module._compare

    def exchanged(*arguments, **options):
        (backup / "state" / "settings.json").unlink()
        (backup / "state" / "settings.json").symlink_to(tmp_path / "secret")
        return real(*arguments, **options)

    monkeypatch.setattr(restore_module, "_compare", exchanged)
    with raises(BackupError, "not-copied"):
        brought_back(backup, tmp_path / "new")
    assert list((tmp_path / "new").rglob("settings.json")) == []


def change_hashes(backup: Path, change) -> None:
    values = json.loads((backup / FILE).read_text())
    values["sha256"] = change(values["sha256"])
    (backup / FILE).write_text(json.dumps(values))


def test_a_restore_by_relative_paths_is_the_same(backup, tmp_path, monkeypatch):
    """State directory, ledger and backup are found from where the command is given."""
    monkeypatch.chdir(tmp_path)
    done = restore(Path("backup"), state_dir=Path("saved"), ledger_url="sqlite:///saved/ledger.db", now=NOW)
    assert done.compared
    assert done.aside == f"replaced-{NOW:%Y%m%dT%H%M%S%f}"
    aside = tmp_path / "saved" / done.aside
    assert {"ledger.db", "settings.json"} <= {path.name for path in aside.iterdir()}
    assert (tmp_path / "saved" / "settings.json").read_text() == "{}"
    Ledger.open(ledger_url(tmp_path / "saved")).close()


def test_a_secret_of_mode_600_is_in_a_backup_and_comes_back_so(backup, tmp_path):
    """Whatever lies in the state directory under a plain name is carried; never readable by others."""
    brought_back(backup, tmp_path / "new")
    for path in (backup / "state" / "noise-secret", tmp_path / "new" / "noise-secret"):
        assert path.read_bytes() == b"1" * 32
        assert path.stat().st_mode & 0o777 == 0o600


def test_a_backup_that_broke_off_is_none(backup, tmp_path):
    """The manifest is written last."""
    (backup / FILE).unlink()
    with raises(BackupError, "no-backup"):
        brought_back(backup, tmp_path / "new")


def test_a_backup_lies_outside_of_what_it_saves(backup, tmp_path):
    """A restore would move it aside with the rest, and a disk that is lost takes both."""
    state_dir = tmp_path / "saved"
    shutil.move(backup, state_dir / "backup")
    with raises(BackupError, "inside-state"):
        brought_back(state_dir / "backup", state_dir)
    with raises(BackupError, "inside-state"):
        back_up(state_dir / "new", state_dir=state_dir, ledger_url=ledger_url(state_dir), now=NOW)
    assert (state_dir / "ledger.db").is_file()


def test_a_restore_without_room_for_the_copies_touches_nothing(one, backup_of_one, monkeypatch):
    """Everything is copied before anything is moved; once there is room, the same restore works."""
    expected = content_hash(one.checkpoint().parameters)
    one.close()
    with monkeypatch.context() as patch:

        def full(*_: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        patch.setattr("unlearning.runtime.durable_files.shutil.copyfileobj", full)
        with raises(BackupError, "not-copied"):
            brought_back(backup_of_one, one.directory)
    assert content_hash(one.checkpoint().parameters) == expected
    again = brought_back(backup_of_one, one.directory, now=NOW + timedelta(minutes=1))
    assert again.compared
    assert content_hash(one.checkpoint().parameters) == expected


@pytest.mark.parametrize("is_there", [False, True])
def test_a_backup_that_found_no_room_leaves_nothing_and_can_be_made_there_again(
    one, tmp_path, monkeypatch, is_there
):
    """The disk would stay full of it."""
    directory = tmp_path / "backup"
    if is_there:
        directory.mkdir()
    with monkeypatch.context() as patch:

        def full(*_: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        patch.setattr(backup_module, "dump_ledger", full)  # after all files
        with pytest.raises(OSError, match="No space left"):
            saved(one, directory)
    assert directory.exists() == is_there
    assert not list(directory.glob("*"))
    assert saved(one, directory)


def ledger_with_a_request(state_dir: Path, ledger: Path) -> str:
    """The URL of a new ledger at this place, of a federation that has this state directory."""
    state_dir.mkdir()
    ledger.parent.mkdir(exist_ok=True)
    url = f"sqlite:///{ledger}"
    opened = Ledger.open(url)
    submit(opened)
    opened.close()
    return url


@pytest.mark.parametrize("place", ["state/requests.db", "state/database/requests.db", "requests [1].db"])
def test_a_ledger_of_any_name_and_place_is_in_a_backup_once(tmp_path, place):
    """As a copy of one moment: the file that is written to, and SQLite's log of it, would give another one back."""
    state, ledger = tmp_path / "state", tmp_path / place
    url = ledger_with_a_request(state, ledger)
    with sqlite3.connect(ledger) as writing:  # keeps the log
        writing.execute("SELECT * FROM requests").fetchall()
        manifest = back_up(tmp_path / "backup", state_dir=state, ledger_url=url, now=NOW)
    writing.close()
    assert [name for name in manifest.sha256 if "requests" in name] == []
    (state / "later.json").write_text("{}")
    done = restore(tmp_path / "backup", state_dir=state, ledger_url=url, now=NOW)
    assert not (state / "later.json").exists()
    kept = sorted(path.name for path in (state / done.aside).rglob("requests*.db"))
    assert kept == [ledger.name]
    with sqlite3.connect(ledger) as restored:
        assert restored.execute("SELECT count(*) FROM requests").fetchone() == (1,)
    restored.close()


def test_a_restore_moves_no_file_of_another_federation(tmp_path):
    """Ledgers that lie side by side, of which one's name begins with the other's."""
    state = tmp_path / "state"
    url = ledger_with_a_request(state, tmp_path / "ledgers" / "north")
    others = [tmp_path / "ledgers" / name for name in ("north-2", "northern", "north.bak")]
    for path in others:
        path.write_text("another's")
    back_up(tmp_path / "backup", state_dir=state, ledger_url=url, now=NOW)
    restore(tmp_path / "backup", state_dir=state, ledger_url=url, now=NOW)
    assert [path.read_text() for path in others] == ["another's"] * 3


def test_the_log_of_an_older_backups_ledger_is_not_read(tmp_path):
    """Backups once had the log of a ledger whose name was not ours; SQLite wrote it over what was restored."""
    state, backup = tmp_path / "state", tmp_path / "backup"
    url = ledger_with_a_request(state, state / "requests.db")
    opened = Ledger.open(url)
    submit(opened, CLIENT_4, key="2")
    log = (state / "requests.db-wal").read_bytes()
    for number in range(20):
        submit(opened, Target(Granularity.CLASS, class_label=number), key=f"class {number}")
    opened.close()
    back_up(backup, state_dir=state, ledger_url=url, now=NOW)
    manifest = json.loads((backup / FILE).read_text())
    (backup / "state").mkdir(exist_ok=True)
    (backup / "state" / "requests.db-wal").write_bytes(log)
    manifest["sha256"]["state/requests.db-wal"] = hashlib.sha256(log).hexdigest()
    (backup / FILE).write_text(json.dumps(manifest))
    restore(backup, state_dir=state, ledger_url=url, now=NOW)
    opened = Ledger.open(url)
    assert len(opened.requests.select()) == 22
    assert opened.events.verify_chain() is None
    opened.close()


def test_a_backup_of_another_federation_is_refused(federation, tmp_path):
    """Its events are not the ones that this ledger has."""
    first, other = federation(name="first", **SMALL), federation(name="other", **SMALL)
    for one in (first, other):
        one.run()
        one.file(client("1"))
    with raises(BackupError, "would-undo") as refused:
        brought_back(saved(first, tmp_path / "backup"), other.directory)
    assert "another federation" in str(refused.value)


def test_writers_do_not_disturb_a_backup(one, tmp_path):
    """The copy is a whole database of one moment, while requests come in."""
    stop = threading.Event()

    def write() -> None:
        ledger = Ledger.open(ledger_url(one.directory))
        while not stop.wait(0.02):
            ledger.acquire_fence("busy", now=datetime.now(UTC))
        ledger.close()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        backup = saved(one, tmp_path / "backup")
    finally:
        stop.set()
        writer.join()
    copy = sqlite3.connect(backup / "ledger.db")
    assert copy.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    copy.close()


def test_the_commands_say_what_they_did(one, tmp_path):
    """Also that nothing could be compared; what was filed since, and answered as durable, is not lost silently."""
    run = CliRunner().invoke
    made = run(app, ["backup", str(tmp_path / "b"), "--state-dir", str(one.directory)])
    assert made.exit_code == 0, made.output
    again = run(app, ["backup", str(tmp_path / "b"), "--state-dir", str(one.directory)])
    assert again.exit_code == 1
    assert "is not empty" in again.output
    one.file(client("1"))
    refused = run(app, ["restore", str(tmp_path / "b"), "--state-dir", str(one.directory)])
    assert refused.exit_code == 1
    assert "the request r-000001 to delete client 1" in " ".join(refused.output.split())
    one.close()
    forced = run(app, ["restore", str(tmp_path / "b"), "--state-dir", str(one.directory), "--force"])
    assert forced.exit_code == 0, forced.output
    assert "UNDONE: the request r-000001" in forced.output
    new = run(app, ["restore", str(tmp_path / "b"), "--state-dir", str(tmp_path / "new")])
    assert "no ledger here to compare with" in new.output


def test_a_ledger_comes_back_on_either_database(url, tmp_path):
    """What was filed before the backup is there, what came after is filed again; without force it is refused."""
    if sa.make_url(url).get_backend_name() == "postgresql" and shutil.which("pg_dump") is None:
        pytest.skip("pg_dump is not installed")
    ledger = Ledger.open(url)

    def file(class_label: int) -> str:
        target, now = Target(Granularity.CLASS, class_label=class_label), NOW + timedelta(seconds=class_label)
        return submit(ledger, target, key=str(class_label), now=now).id

    first = file(1)
    back_up(tmp_path / "backup", state_dir=tmp_path / "state", ledger_url=url, now=NOW)
    second = file(2)
    with raises(BackupError, "would-undo") as refused:
        restore(tmp_path / "backup", state_dir=tmp_path / "state", ledger_url=url, now=NOW)
    assert second in str(refused.value)
    ledger.close()
    restore(tmp_path / "backup", state_dir=tmp_path / "state", ledger_url=url, now=NOW, force=True)
    ledger = Ledger.open(url)
    assert [request.id for request in ledger.requests.select()] == [first, second]
    token = ledger.acquire_fence("loop", now=NOW)
    live_at(ledger, token, NOW).move(first, Status.SCHEDULED)
    assert ledger.events.verify_chain() is None
    ledger.close()
