"""An app that `flower-unlearn new` writes, run from a wheel by a Python that knows no repository.

The environment is a fresh one without packages of its own, but for the wheel: a `.pth` file lends it those of this one
(Flower, PyTorch), whose own `.pth` files, and so this repository, are not followed.
"""

import json
import os
import re
import shutil
import sys
import sysconfig
import venv
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest

from benchmarks.process_group import local_superlink
from server.federation.checkpoints import CheckpointStore
from server.operations.flower_control import FLOWER_ENVIRONMENT
from tests.integration.conftest import REPOSITORY
from tests.programs import run_well

pytestmark = pytest.mark.slow

STORY = Path(__file__).parent / "own_app_deployment.py"


MODS = """
from pathlib import Path

from flwr.clientapp.mod import LocalDpMod


def note(message, context, call_next):
    reply = call_next(message, context)
    if "state-dir" in context.node_config:  # not in a simulation
        with (Path(str(context.node_config["state-dir"])) / "noted").open("a") as file:
            file.write(f"{message.metadata.message_type}\\n")
    return reply


app = make_client_app(make_task, load_site, mods=[note, LocalDpMod(100.0, 0.0, 1.0, 1e-5)])
"""
STRATEGY = """
from flwr.serverapp.strategy import FedAvgM

app = make_server_app(make_task, load_test, strategy=lambda settings: FedAvgM(server_momentum=0.2))
"""
"""What the app is given beside what `new` wrote: mods, the second of which never reaches its bound, and a strategy."""


class Installed:
    """An environment with the wheel, and an app that was begun there."""

    def __init__(self, directory: Path) -> None:
        self.programs = directory / "venv" / "bin"
        self.python = self.programs / "python"
        venv.create(directory / "venv", with_pip=False, symlinks=True)
        (site,) = (directory / "venv" / "lib").glob("python*/site-packages")
        (site / "lent.pth").write_text(sysconfig.get_path("purelib") + "\n")
        wheels = directory / "wheels"
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
        self._run(
            [*pip, "wheel", "--quiet", "--no-deps", "--wheel-dir", str(wheels), str(REPOSITORY)], directory
        )
        (wheel,) = wheels.glob("*.whl")
        self._run(
            [*pip, "--python", str(self.python), "install", "--quiet", "--no-deps", str(wheel)], directory
        )
        for name in ("flwr", "pytest"):
            for entry in distribution(name).entry_points:
                if entry.group == "console_scripts":
                    self._write_program(entry.name, entry.value)
        self.run("flower-unlearn", "new", "hospital", directory=directory)
        self.app = directory / "hospital"

    def run(self, name: str, *arguments: str, directory: Path | None = None, **environment: str) -> str:
        """Run one of the environment's programs to its end, in the app's directory; return what it printed."""
        return self._run([str(self.programs / name), *arguments], directory or self.app, **environment)

    def shell(self, text: str, directory: Path, **environment: str) -> str:
        """Run shell commands up to the first that fails; return what they printed."""
        return self._run(["bash", "-ec", text], directory, **environment)

    def _write_program(self, name: str, value: str) -> None:
        module, _, function = value.partition(":")
        path = self.programs / name
        path.write_text(
            f"#!{self.python}\nimport sys\nfrom {module} import {function} as main\nsys.exit(main())\n"
        )
        path.chmod(0o755)

    def _run(self, command: list[str], directory: Path, **environment: str) -> str:
        known = {
            name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")
        }
        path = f"{self.programs}{os.pathsep}{known['PATH']}"
        return run_well(command, directory, {**known, **FLOWER_ENVIRONMENT, "PATH": path, **environment})


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The wheel in an environment of its own."""
    return Installed(tmp_path_factory.mktemp("own"))


def test_the_packages_are_those_of_the_wheel(installed: Installed):
    """Nothing of the repository is imported."""
    places = "import client, server, strategies, unlearning as u; print(client.__file__, server.__file__, u.__file__)"
    assert str(REPOSITORY) not in installed.run("python", "-c", places)


def test_its_own_test_passes(installed: Installed):
    """As its README says."""
    assert "1 passed" in installed.run("python", "-m", "pytest", "-q")


@pytest.mark.long
@pytest.mark.parametrize("kind", ["simulation", "messages", "session"])
def test_it_learns_and_forgets(installed: Installed, tmp_path: Path, kind: str):
    """Its code comes to the nodes by Flower and is never stale.

    Mods run around training and unlearning, in the processes that Flower starts, and a strategy aggregates.
    In the simulation it imports the packages as `flower_unlearning.NAME`. In the gate the app's own test, above, has a
    federation in one process, and the demo runs one on real processes.
    """
    app = tmp_path / "hospital"
    shutil.copytree(installed.app, app, ignore=shutil.ignore_patterns("__pycache__"))
    for module, text in (("client_app", MODS), ("server_app", STRATEGY)):
        path = app / "hospital" / f"{module}.py"
        path.write_text(path.read_text() + text)
    for module in (app / "hospital").glob("*.py" if kind == "simulation" else "nothing"):
        renamed = re.sub(
            r"(?m)^from (client|server|unlearning)\b", r"from flower_unlearning.\1", module.read_text()
        )
        module.write_text(renamed)
    told = installed.run("python", str(STORY), str(tmp_path / "federation"), str(app), kind)
    report: dict[str, Any] = json.loads(told)
    assert report["request"]["client_id"] == "1"
    assert report["federation"]["task"] == "hospital"
    assert report["measurements"][-1]["test"]["score"] > 0.8
    [checkpoints] = (tmp_path / "federation").glob("**/checkpoints")
    kept = CheckpointStore(checkpoints).newest().aggregation
    assert kept.strategy == "FedAvgM"
    if kind != "simulation":
        noted = [set(path.read_text().split()) for path in (tmp_path / "federation").glob("**/noted")]
        assert sorted(map(sorted, noted)) == [["train"], ["train", "train.unlearn"]]


@pytest.mark.long
def test_the_tutorial_is_followed_to_the_report(installed: Installed, tmp_path: Path):
    """Its blocks in their order, but for the installation: a new app, data of one's own, a deletion, the model."""
    _, _, steps = (REPOSITORY / "docs" / "tutorial-your-own-app.md").read_text().partition("## Step 2")
    directory = tmp_path
    with local_superlink(tmp_path / "flwr") as variables:
        for kind, text in re.findall(r"(?ms)^```(sh|python)\n(.*?)^```$", steps):
            if kind == "python":
                (directory / text.splitlines()[0].removeprefix("# ")).write_text(text)
                continue
            said = installed.shell(f"{text}\npwd", directory, **variables)
            directory = Path(said.splitlines()[-1])
    report = directory / "state" / "reports" / "r-000001"
    assert (report / "report.html").exists()
    request = json.loads((report / "report.json").read_text())["request"]
    assert request["client_id"] == "1"
    assert request["num_samples"] == 1
    assert (directory / "model.pt").exists()
