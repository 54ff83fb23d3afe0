"""docs/how-to-convert-an-app.md: the app learns before and after the diff of at most 15 lines; then it also forgets."""

import importlib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

from strategies.in_process_grid import read_run_config, run_apps

ROOT = Path(__file__).parents[2]
NUM_CLIENTS = 3
LEARNT = 0.8


@pytest.fixture
def conversion() -> str:
    """The diff of the page."""
    (text,) = re.findall(r"(?ms)^```diff\n(.*?)^```$", (ROOT / "docs/how-to-convert-an-app.md").read_text())
    found: str = text
    return found


@pytest.fixture
def app_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The converted app, to be imported."""
    shutil.copytree(ROOT / "examples" / "quickstart", tmp_path / "app")
    monkeypatch.syspath_prepend(str(tmp_path / "app"))
    yield tmp_path / "app"
    for name in [name for name in sys.modules if name.partition(".")[0] == "quickstart"]:
        del sys.modules[name]


def apps() -> tuple[ServerApp, ClientApp]:
    server, client = (importlib.import_module(f"quickstart.{side}_app") for side in ("server", "client"))
    return server.app, client.app


def test_the_conversion_is_at_most_fifteen_lines(conversion: str) -> None:
    """Those that a person writes."""
    assert len(re.findall(r"(?m)^\+(?!\+\+).+", conversion)) <= 15


@pytest.mark.slow
def test_the_app_before_the_conversion_learns(app_dir: Path, conversion: str) -> None:
    """It is the page's diff taken back, a plain Flower app."""
    subprocess.run(["git", "apply", "-R"], input=conversion.encode(), cwd=app_dir, check=True)
    server_app, client_app = apps()
    grid = run_apps(server_app, client_app, read_run_config(app_dir, {}), num_clients=NUM_CLIENTS)
    kinds = [message.metadata.message_type for message in grid.sent]
    assert kinds == ([*["train"] * NUM_CLIENTS, *["evaluate"] * NUM_CLIENTS]) * 3


def test_the_converted_app_learns_and_forgets(app_dir: Path, tmp_path: Path) -> None:
    """As `flwr run .` does it, with more epochs than the page's three rounds need."""
    changes: dict[str, Any] = {"state-dir": str(tmp_path / "state"), "local-epochs": 4}
    config = {**read_run_config(app_dir, changes), "num-clients": NUM_CLIENTS}
    run_apps(*apps(), config, num_clients=NUM_CLIENTS)
    (path,) = tmp_path.glob("state/reports/*/report.json")
    report = json.loads(path.read_text(encoding="utf-8"))
    assert report["request"]["client_id"] == "1"
    assert report["measurements"][0]["retained"]["score"] > LEARNT
