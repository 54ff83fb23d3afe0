"""A module of the user's that hides one of our packages is named at the start, with the package."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flower_unlearning_names import PACKAGES, refuse_shadows
from server.cli import app

REPOSITORY = Path(__file__).parents[2]


def begin(directory: Path, code: str) -> str:
    """Run `code` with the app's directory before everything, as Flower puts it; return what it fails with."""
    path = os.pathsep.join([str(directory), str(REPOSITORY)])
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    return done.stderr.splitlines()[-1]


@pytest.mark.parametrize("hidden", PACKAGES)
@pytest.mark.parametrize("as_directory", [False, True])
def test_an_app_that_hides_a_package_ends_in_a_sentence_with_both_files(tmp_path, hidden, as_directory):
    """The app as `flower-unlearn new` writes it, with one file more."""
    made = CliRunner().invoke(app, ["new", "--json", "hospital", "--directory", str(tmp_path)])
    assert json.loads(made.stdout) == {"path": str(tmp_path / "hospital"), "package": "hospital"}
    own = tmp_path / "hospital" / (f"{hidden}/__init__.py" if as_directory else f"{hidden}.py")
    own.parent.mkdir(exist_ok=True)
    own.write_text("app = None\n")
    said = begin(tmp_path / "hospital", "import hospital.server_app")
    assert said.startswith(
        f"flower_unlearning_names.HiddenPackage: {own} hides flower-unlearning's package '{hidden}'"
    )
    assert str(REPOSITORY / hidden / "__init__.py") in said


@pytest.mark.parametrize(
    ("hidden", "imported"),
    [
        ("client", "server"),
        ("server", "unlearning"),
        ("unlearning", "client"),
        ("server", "flower_unlearning"),
    ],
)
def test_any_other_of_the_packages_says_it_too(tmp_path, hidden, imported):
    """Of an app that was not begun by `flower-unlearn new`."""
    (tmp_path / f"{hidden}.py").write_text("")
    assert f"{tmp_path / hidden}.py hides" in begin(tmp_path, f"import {imported}")


def test_a_directory_of_data_hides_nothing(tmp_path, monkeypatch):
    """Python finds the package behind it."""
    (tmp_path / "client").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    refuse_shadows()
