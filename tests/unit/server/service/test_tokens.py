"""The file of tokens: hashes only, for its owner alone, and nobody is let in by what is damaged."""

import fcntl
import json
import threading
from datetime import datetime, timedelta
from pathlib import Path
from typing import IO

import pytest
from typer.testing import CliRunner

from server.cli import app
from server.service.calls import Role
from server.service.tokens import Token, Tokens, last_uses, make_token, read_tokens, remove_tokens
from server.state_directory.files import TOKEN_USES
from tests.deletion_service import NOW
from tests.raising import refuses


def opened(path: Path, now: datetime = NOW) -> Tokens:
    return Tokens(path, path.with_name("uses.json"), lambda: now)


def test_a_token_stands_for_a_name_and_a_role(tmp_path: Path) -> None:
    """The file, mode 600, does not have the token itself."""
    path = tmp_path / "tokens.json"
    token = make_token(path, "hospital-0", Role.CLIENT, NOW)
    caller = opened(path).caller_of(f"Bearer {token}")
    assert (caller.name, caller.role, caller.certified) == ("hospital-0", Role.CLIENT, True)
    assert path.stat().st_mode & 0o777 == 0o600
    assert token not in path.read_text()
    assert len(token) > 40


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer ", "Basic abc", "bearer fu_other", "Bearer é"])
def test_anything_else_stands_for_nobody(tmp_path: Path, header: str) -> None:
    """A caller without a role, which every call refuses."""
    path = tmp_path / "tokens.json"
    make_token(path, "3", Role.CLIENT, NOW)
    assert opened(path).caller_of(header).role is None


def test_two_callers_have_two_tokens(tmp_path: Path) -> None:
    """And one caller may have two, so that one can be replaced without a gap."""
    path = tmp_path / "tokens.json"
    made = [make_token(path, name, Role.CLIENT, NOW) for name in ("3", "3", "4")]
    known = opened(path)
    assert [known.caller_of(f"Bearer {token}").name for token in made] == ["3", "3", "4"]


def test_a_third_token_of_a_caller_is_refused_until_the_older_ones_are_removed(tmp_path: Path) -> None:
    """In another role the name is another caller; the newest is the one that stays."""
    path = tmp_path / "tokens.json"
    first, second = (make_token(path, "3", Role.CLIENT, NOW) for _ in range(2))
    make_token(path, "3", Role.OPERATOR, NOW)
    with refuses("http-token"):
        make_token(path, "3", Role.CLIENT, NOW)
    command = CliRunner().invoke(app, ["http-token", str(path), "3", "--remove-older"])
    assert "1 token(s) of 3 as client removed" in command.stdout
    known = opened(path)
    assert [known.caller_of(f"Bearer {token}").role for token in (first, second)] == [None, Role.CLIENT]
    assert len(read_tokens(path)) == 2


@pytest.mark.parametrize("first", ["make", "remove"])
def test_two_changes_at_the_same_time_both_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    """While one is between reading and writing, the other waits: no removed token comes back, no new one is lost."""
    path, meets = tmp_path / "tokens.json", threading.Event()
    make_token(path, "old", Role.CLIENT, NOW)
    changes = {
        "make": lambda: make_token(path, "new", Role.CLIENT, NOW),
        "remove": lambda: remove_tokens(path, "old", Role.CLIENT),
    }
    (second,) = changes.keys() - {first}
    other = threading.Thread(target=lambda: (changes[second](), meets.set()))
    flock = fcntl.flock

    def lock_and_say(file: IO[bytes], operation: int) -> None:
        if threading.current_thread() is other:
            meets.set()
        flock(file, operation)

    def read_and_let_the_other_begin(file: Path) -> tuple[Token, ...]:
        found = read_tokens(file)
        if threading.current_thread() is not other and not meets.is_set():
            other.start()
            assert meets.wait(10)  # it waits for the lock now, or has changed the file
        return found

    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", lock_and_say)
        patch.setattr("server.service.tokens.read_tokens", read_and_let_the_other_begin)
        changes[first]()
        other.join()
    assert [token.name for token in read_tokens(path)] == ["new"]


def test_a_file_that_is_damaged_later_lets_nobody_in(tmp_path: Path) -> None:
    """Until it is repaired; the operator's log says why."""
    path = tmp_path / "tokens.json"
    token = make_token(path, "3", Role.CLIENT, NOW)
    known, content = opened(path), path.read_bytes()
    path.write_bytes(content[:-5])
    assert known.caller_of(f"Bearer {token}").role is None
    path.write_bytes(content)
    assert known.caller_of(f"Bearer {token}").role is Role.CLIENT


@pytest.mark.parametrize(
    ("content", "mode"),
    [
        (None, 0o600),
        ("{", 0o600),
        ('{"tokens": 3}', 0o600),
        ('{"tokens": []}', 0o644),
        ('{"tokens": [{"name": "3", "role": "king", "sha256": "", "made_at": ""}]}', 0o600),
    ],
)
def test_a_file_that_cannot_be_used_is_refused(tmp_path: Path, content: str | None, mode: int) -> None:
    """With what to do."""
    path = tmp_path / "tokens.json"
    if content is not None:
        path.write_text(content)
        path.chmod(mode)
    with refuses("http-tokens"):
        read_tokens(path)


def test_the_command_makes_and_removes_tokens(tmp_path: Path) -> None:
    """The token goes to the standard output alone, so that it can go into a file of mode 600."""
    path = tmp_path / "tokens.json"
    made = CliRunner().invoke(app, ["http-token", str(path), "ada", "--role", "operator"])
    assert opened(path).caller_of(f"Bearer {made.stdout.strip()}").role is Role.OPERATOR
    removed = CliRunner().invoke(app, ["http-token", str(path), "ada", "--role", "operator", "--remove"])
    assert "1 token(s) of ada as operator removed" in removed.stdout
    assert read_tokens(path) == ()


def test_a_token_ends_with_its_last_day(tmp_path: Path) -> None:
    """It opens nothing from the moment of its expiry on, and the answer says so."""
    path = tmp_path / "tokens.json"
    token = make_token(path, "3", Role.CLIENT, NOW, days=30)
    end = NOW + timedelta(days=30)
    assert opened(path, end - timedelta(seconds=1)).caller_of(f"Bearer {token}").role is Role.CLIENT
    assert "expired at" in opened(path, end).caller_of(f"Bearer {token}").problem


def test_a_token_has_the_rights_that_it_was_made_with(tmp_path: Path) -> None:
    """None beyond its role's, where nothing is said."""
    path = tmp_path / "tokens.json"
    plain = make_token(path, "3", Role.CLIENT, NOW)
    able = make_token(path, "4", Role.CLIENT, NOW, may_erase_clients=True, is_sandbox=True)
    callers = [opened(path).caller_of(f"Bearer {token}") for token in (plain, able)]
    rights = [(caller.may_erase_clients, caller.is_sandbox) for caller in callers]
    assert rights == [(False, False), (True, True)]


def test_tokens_are_listed_with_their_end_and_last_use(tmp_path: Path) -> None:
    """The command without a name; the hash is in the JSON, the token nowhere."""
    path = tmp_path / "tokens.json"
    token = make_token(path, "3", Role.CLIENT, NOW, days=30, is_sandbox=True)
    Tokens(path, tmp_path / TOKEN_USES, lambda: NOW).caller_of(f"Bearer {token}")
    make_token(path, "4", Role.CLIENT, NOW)
    shown = CliRunner().invoke(app, ["http-token", str(path), "--state-dir", str(tmp_path), "--json"]).stdout
    found = [(one["name"], one["expires_at"][:10], one["last_used"]) for one in json.loads(shown)]
    assert found == [("3", "2026-03-31", "2026-03-01"), ("4", "2027-03-01", "")]
    assert token not in shown


def test_damaged_uses_let_tokens_in_all_the_same(tmp_path: Path) -> None:
    """They say when a token was used, and not whether it may be."""
    path = tmp_path / "tokens.json"
    token = make_token(path, "3", Role.CLIENT, NOW)
    (tmp_path / "uses.json").write_text("{")
    assert opened(path).caller_of(f"Bearer {token}").role is Role.CLIENT
    assert len(last_uses(tmp_path / "uses.json")) == 1
