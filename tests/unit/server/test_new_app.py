"""`flower-unlearn new` writes an app, or says why not."""

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from server.cli import app
from strategies.in_process_grid import read_run_config
from strategies.settings.task_source import TaskSource


def new(*arguments: str):
    return CliRunner().invoke(app, ["new", *arguments])


def test_it_writes_an_app_with_a_package_of_its_name(tmp_path):
    """Hyphens are for Flower, underscores for Python; nothing of a template is left."""
    done = new("heart-net", "--directory", str(tmp_path))
    assert done.exit_code == 0, done.output
    written = {
        str(path.relative_to(tmp_path / "heart-net")) for path in tmp_path.rglob("*") if path.is_file()
    }
    assert written == {
        "README.md",
        "pyproject.toml",
        "heart_net/__init__.py",
        "heart_net/task.py",
        "heart_net/client_app.py",
        "heart_net/server_app.py",
        "tests/test_app.py",
    }
    assert not [
        path for path in tmp_path.rglob("*") if path.is_file() and "{{" in path.read_text(encoding="utf-8")
    ]


def test_its_settings_are_ours_and_its_own(tmp_path):
    """Every setting that its pyproject.toml names there is, with the default or a better one."""
    new("heart-net", "--directory", str(tmp_path))
    values = read_run_config(tmp_path / "heart-net", {})
    assert TaskSource.of(len, "heart_net").read(values).own == {"depth": 1, "width": 16}


def test_what_it_writes_is_clean(tmp_path):
    """Formatted, imports in order, nothing unused."""
    new("hospital", "--directory", str(tmp_path))
    for command in (["check", "--select", "E,F,I,UP,B,D1"], ["format", "--check"]):
        ruff = [sys.executable, "-m", "ruff", *command, "--isolated", "--line-length", "110", "."]
        done = subprocess.run(ruff, cwd=tmp_path / "hospital", capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", ["server", "My App", "1st", "a--b", "../up", ""])
def test_a_name_that_no_package_can_have_is_refused(tmp_path, name):
    """With what one looks like."""
    done = new(name, "--directory", str(tmp_path))
    assert done.exit_code == 2
    assert "small letters" in done.output
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_written_over(tmp_path):
    """An app that is there stays as it is."""
    new("hospital", "--directory", str(tmp_path))
    (tmp_path / "hospital" / "README.md").write_text("mine")
    assert new("hospital", "--directory", str(tmp_path)).exit_code == 2
    assert (tmp_path / "hospital" / "README.md").read_text() == "mine"
