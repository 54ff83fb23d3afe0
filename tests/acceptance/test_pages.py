"""What README, docs/own-app.md and docs/library.md show is run as it stands there."""

import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.serverapp import ServerApp

from strategies.in_process_grid import InProcessGrid, run_apps

ROOT = Path(__file__).parents[2]
SETTINGS = {"num-clients": 3, "wait-timeout-s": 1.0, "hospital.depth": 2}


def blocks(page: str) -> list[str]:
    """The Python code of a page, block by block."""
    return re.findall(r"(?ms)^```python\n(.*?)^```$", (ROOT / page).read_text(encoding="utf-8"))


@pytest.fixture
def hospital(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The app of docs/own-app.md, file by file, to be imported."""
    for text in blocks("docs/own-app.md"):
        path = tmp_path / text.splitlines()[0].removeprefix("# ")
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] == "hospital"]:
        del sys.modules[name]


def test_the_app_of_the_page_passes_the_test_of_the_page(hospital: Path):
    """The page is an app: task, both apps, and its test."""
    names: dict[str, Any] = {}
    exec((hospital / "tests" / "test_app.py").read_text(encoding="utf-8"), names)
    names["test_a_site_is_forgotten"](hospital / "state")


@pytest.mark.usefixtures("hospital")
def test_the_server_app_of_the_readme_forgets():
    """Ten lines: learn, forget client 1, recover without it."""
    (text,) = [text for text in blocks("README.md") if "ServerApp()" in text]
    assert len(re.findall(r"(?m)^    ", text)) <= 10
    names: dict[str, Any] = {}
    exec(text, names)
    assert isinstance(names["app"], ServerApp)
    client_app = importlib.import_module("hospital.client_app").app
    grid: InProcessGrid = run_apps(names["app"], client_app, SETTINGS, num_clients=3)
    asked = [one.metadata for one in grid.sent if one.metadata.message_type in ("train", "train.unlearn")]
    assert [one.message_type for one in asked] == ["train"] * 9 + ["train.unlearn"] + ["train"] * 6
    assert 1002 not in {one.dst_node_id for one in asked[10:]}


def test_the_page_of_the_library_runs_from_top_to_bottom(capsys: pytest.CaptureFixture[str]):
    """In one process, each block with the names of those before; what a comment says is printed is."""
    names: dict[str, Any] = {}
    text = "\n".join(blocks("docs/library.md"))
    exec(compile(text, "docs/library.md", "exec"), names)
    printed = capsys.readouterr().out
    for promised in re.findall(r"(?m)^ *print\(.*\)  # (.*?)(?: \.\.\.)?$", text):
        assert promised in printed or promised.startswith("what "), promised
    assert np.isfinite(names["state"].parameters).all()
    scores = dict(re.findall(r"(\w+) +forgotten .* never seen (\S+)", printed))
    assert float(scores["after"]) > 0.85
