"""A restore that is killed anywhere leaves the old state, the new one, or one that is named and can be finished."""

import shutil
from pathlib import Path

import pytest

from server.ledger import Ledger
from server.operations.backup import back_up
from server.operations.restore import restore
from server.state_directory.files import RESTORE_JOURNAL, RESTORING, refuse_half_restored
from server.state_directory.ledger_address import ledger_url
from tests.kills import Killed, Killer
from tests.ledgers import NOW
from tests.raising import raises
from unlearning.errors import BackupError

STEPS = (
    (Path, "rename"),
    (Path, "replace"),
    (Path, "unlink"),
    (Path, "mkdir"),
    (shutil, "copyfileobj"),
    (shutil, "rmtree"),
)
"""All by which a restore changes which files there are."""


@pytest.fixture
def killer(monkeypatch: pytest.MonkeyPatch) -> Killer:
    return Killer(monkeypatch, STEPS)


@pytest.fixture(params=["in the state directory", pytest.param("elsewhere", marks=pytest.mark.slow)])
def places(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, str]:
    """State directory and ledger of a federation that has a backup of "then" and is at "now"."""
    state = tmp_path / "state"
    url = ledger_url(state) if request.param.startswith("in") else ledger_url(tmp_path / "database")
    (state / "reports" / "r-000001").mkdir(parents=True)
    (state / "reports" / "r-000001" / "report.json").write_text("then")
    (state / "settings.json").write_text("then")
    opened = Ledger.open(url)
    opened.acquire_fence("loop", now=NOW)
    opened.close()
    back_up(tmp_path / "backup", state_dir=state, ledger_url=url, now=NOW)
    (state / "settings.json").write_text("now")
    (state / "later.json").write_text("now")
    return state, url


def contents(state: Path) -> dict[str, str]:
    """What counts: not what was moved aside, and not a ledger's bytes."""
    return {
        path.relative_to(state).as_posix(): path.read_text()
        for path in state.rglob("*.json")
        if not path.relative_to(state).parts[0].startswith("replaced-")
    }


OLD = {"settings.json": "now", "later.json": "now", "reports/r-000001/report.json": "then"}
NEW = {"settings.json": "then", "reports/r-000001/report.json": "then"}


@pytest.mark.slow
def test_a_kill_at_any_step_leaves_the_old_or_the_new_or_a_named_state(places, tmp_path, killer):
    """Before and after each change of a file; the same command finishes what was begun."""
    state, url = places
    keep = {path: path.with_name(f"{path.name}-kept") for path in tmp_path.iterdir()}
    for path, kept in keep.items():
        shutil.copytree(path, kept)

    def restored() -> None:
        restore(tmp_path / "backup", state_dir=state, ledger_url=url, now=NOW)

    restored()
    assert contents(state) == NEW
    killer.arm(10**9)
    outcomes, kill_at = set(), 0
    while True:
        killer.disarm()
        for path, kept in keep.items():
            shutil.rmtree(path)
            shutil.copytree(kept, path)
        kill_at += 1
        killer.arm(kill_at)
        try:
            restored()
        except Killed:
            killer.disarm()
        else:
            break
        if (state / RESTORE_JOURNAL).exists():
            outcomes.add("named")
            with raises(BackupError, "half-restored"):
                refuse_half_restored(state)
            with raises(BackupError, "half-restored"):
                back_up(tmp_path / "another", state_dir=state, ledger_url=url, now=NOW)
        else:
            found = {name: text for name, text in contents(state).items() if not name.startswith(RESTORING)}
            outcomes.add("old" if found == OLD else "new")
            assert found in (OLD, NEW)
            Ledger.open(url).close()
        restored()
        assert contents(state) == NEW
        ledger = Ledger.open(url)
        assert ledger.acquire_fence("loop", now=NOW) > 1
        ledger.close()
        assert not (state / RESTORING).exists()
    assert outcomes == {"old", "named", "new"}
    assert kill_at > 30


def test_a_federation_does_not_start_on_a_half_restored_state(federation, places, tmp_path):
    """The ServerApp says what to do instead of going on from half a state."""
    state, url = places
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("server.operations.restore._finish", lambda *_, **__: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            restore(tmp_path / "backup", state_dir=state, ledger_url=url, now=NOW)
    one = federation(name="state", num_clients=2, max_examples=100)
    with raises(BackupError, "half-restored"):
        one.run()
