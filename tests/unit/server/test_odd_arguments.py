"""Paths, ledgers and numbers that no command can use are refused with a sentence and an exit code."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from server.cli import app


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["verify", "/"], 1),
        (["verify", ""], 1),
        (["timestamp", "/", "--url", "http://127.0.0.1:1", "--timestamp-authority", "ca.crt"], 1),
        (["http-token", "/", "someone"], 1),
        (["http-token", "", "someone"], 1),
        (["http-token", "/", "someone", "--remove"], 1),
        (["certificate-key", "/dev/null"], 1),
        (["backup", "to", "--state-dir", "state", "--ledger", "ledger.db"], 2),
        (["backup", "to", "--state-dir", "state", "--ledger", "mysql://here/ledger"], 2),
        (["restore", "from", "--state-dir", "state", "--ledger", "ledger.db"], 2),
        (["prune", "--state-dir", "state", "--report-months", "1000000000000"], 2),
        (["prune", "--state-dir", "state", "--text-months", "-1"], 2),
    ],
)
def test_it_is_refused_and_nothing_is_written(arguments: list[str], code: int, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, arguments)
    assert isinstance(result.exception, SystemExit), result.exception
    assert (result.exit_code, result.stdout) == (code, "")
    assert len(result.stderr.strip().splitlines()) <= 3
    assert not list(tmp_path.rglob("*"))
