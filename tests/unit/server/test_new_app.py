"""`flower-unlearn new`: which names an app can have."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from server.cli import app


@pytest.mark.parametrize(
    "name",
    ["Hospital", "9lives", "a--b", "a_b", "-x", "", "../x", "class", "lambda", "tests", "server", "unlearning",
     "random", "site", "email", "torch", "flwr", "typing-extensions"],
)  # fmt: skip
def test_a_name_that_python_reads_otherwise_is_refused(tmp_path: Path, name: str) -> None:
    """No package has it, or another one, which the app would hide from Flower and from itself."""
    done = CliRunner().invoke(app, ["new", "--directory", str(tmp_path), "--", name])
    assert done.exit_code == 2, done.output
    assert not list(tmp_path.iterdir())


def test_an_app_is_written_once(tmp_path: Path) -> None:
    """A second time nothing is overwritten."""
    for code in (0, 2):
        done = CliRunner().invoke(app, ["new", "hospital-net", "--directory", str(tmp_path)])
        assert done.exit_code == code, done.output
    assert (tmp_path / "hospital-net" / "hospital_net" / "task.py").is_file()
