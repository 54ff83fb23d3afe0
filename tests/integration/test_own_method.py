"""The package of examples/own_method, installed into a directory of its own: found by its entry point alone."""

import os
import shutil
import sys
from pathlib import Path

import pytest

from tests.integration.conftest import REPOSITORY
from tests.programs import run_well

pytestmark = pytest.mark.slow


def run(command: list[str], directory: Path, python_path: list[Path]) -> str:
    """Run a program to its end with packages of these directories; return what it printed."""
    places = os.pathsep.join(map(str, python_path))
    return run_well(command, directory, {**os.environ, "PYTHONPATH": places})


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Path]]:
    """A copy of the example without its package, which is installed elsewhere; and where to find everything."""
    directory = tmp_path_factory.mktemp("own-method")
    app, packages = directory / "app", directory / "packages"
    shutil.copytree(REPOSITORY / "examples" / "own_method", app)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps"]
    run([*pip, "--target", str(packages), str(app)], directory, [])
    shutil.rmtree(app / "shrink_perturb")
    return app, [packages, REPOSITORY]


@pytest.mark.long
def test_its_own_test_passes(installed: tuple[Path, list[Path]]):
    """The contract, a claim, and a federation.

    In the gate acceptance/test_adding_a_method.py carries out a deletion by the method of the tutorial.
    """
    app, places = installed
    assert "4 passed" in run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"], app, places)


def test_the_command_lists_it(installed: tuple[Path, list[Path]]):
    """Beside ours, where no deletion service answers."""
    app, places = installed
    command = "from server.cli import main; main()"
    said = run([sys.executable, "-c", command, "--server", "127.0.0.1:1", "methods"], app, places)
    assert "shrink-perturb" in said
    assert "puf-special" in said
