"""What README, tutorials and how-to pages show is run as it is there."""

import importlib
import json
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
import yaml
from flwr.serverapp import ServerApp

from strategies.in_process_grid import InProcessGrid, run_apps
from unlearning.local import Comparison, begin, learn, unlearn
from unlearning.requests import Granularity, Target
from unlearning.tasks import Examples
from unlearning.training import TrainingSettings

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
NOTEBOOKS = ("tutorial-your-first-deletion", "tutorial-your-own-method", "tutorial-compare-methods")
FROM_TOP_TO_BOTTOM = (
    "how-to-freeze-a-backbone",
    "how-to-keep-layers-at-each-site",
    "how-to-use-the-library",
    "how-to-use-your-own-data",
    "how-to-use-your-own-training-loop",
    "how-to-write-a-task",
)
OF_THE_APP = (
    "tutorial-your-own-app",
    "how-to-log-to-other-tools",
    "how-to-use-a-flower-strategy",
    "how-to-use-flower-mods",
    "how-to-use-methods-as-strategies",
)
"""Each block is a file of the app; its first line names it."""
SETTINGS = {"num-clients": 3, "wait-timeout-s": 1.0, "hospital.data": "data", "hospital.width": 16}


def text_of(page: str) -> str:
    return (DOCS / f"{page}.md").read_text(encoding="utf-8")


def blocks(page: str, kind: str) -> list[str]:
    """The blocks of a kind, in their order."""
    return re.findall(rf"(?ms)^ *```{kind}\n(.*?)^ *```$", text_of(page))


def run_page(page: str, kind: str) -> dict[str, Any]:
    """Run all blocks as one program; return its names."""
    names: dict[str, Any] = {"__name__": page}
    for number, text in enumerate(blocks(page, kind)):
        exec(compile(text, f"{page}, block {number}", "exec"), names)
    plt.close("all")
    return names


@pytest.fixture
def hospital(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The app of the tutorial with what other pages add, file by file, in the working directory."""
    for page in OF_THE_APP:
        for text in blocks(page, "python"):
            path = tmp_path / text.splitlines()[0].removeprefix("# ")
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    exec((tmp_path / "make_data.py").read_text(encoding="utf-8"), {})
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] == "hospital"]:
        del sys.modules[name]


def test_the_app_of_the_tutorial_passes_the_test_of_the_tutorial(hospital: Path):
    """The page is an app: data, task, both apps, and its test."""
    names: dict[str, Any] = {}
    exec((hospital / "tests" / "test_app.py").read_text(encoding="utf-8"), names)
    names["test_a_patient_is_deleted"](hospital / "state")


def test_the_apps_of_the_pages_with_mods_and_a_strategy_forget(hospital: Path):
    """Local DP at every site and FedAdam at the server, through a deletion."""
    client_app = importlib.import_module("hospital.private_client_app").app
    server_app = importlib.import_module("hospital.adaptive_server_app").app
    settings = {"rounds": 2, "requests": "at=1 client=1 method=puf-special", "recovery-max-rounds": 1}
    settings["max-score-loss"] = 0  # the mod's noise has no seed, and may cost more than the gate allows
    state = hospital / "state"
    run_apps(server_app, client_app, {**SETTINGS, **settings, "state-dir": str(state)}, num_clients=3)
    assert (state / "reports" / "r-000001" / "report.json").exists()


@pytest.mark.usefixtures("hospital")
def test_the_server_app_of_the_page_forgets():
    """Ten lines: learn, forget client 1, recover without it."""
    (text,) = blocks("how-to-use-methods-as-strategies", "python")
    assert len(re.findall(r"(?m)^    ", text)) <= 10
    server_app = importlib.import_module("hospital.own_server_app").app
    assert isinstance(server_app, ServerApp)
    client_app = importlib.import_module("hospital.client_app").app
    grid: InProcessGrid = run_apps(server_app, client_app, SETTINGS, num_clients=3)
    asked = [one.metadata for one in grid.sent if one.metadata.message_type in ("train", "train.unlearn")]
    assert [one.message_type for one in asked] == ["train"] * 9 + ["train.unlearn"] + ["train"] * 6
    assert 1002 not in {one.dst_node_id for one in asked[10:]}


def test_the_logging_mod_of_the_page_sees_each_rounds_loss(
    hospital: Path, capsys: pytest.CaptureFixture[str]
):
    """One line per client and round."""
    client_app = importlib.import_module("hospital.logged_client_app").app
    server_app = importlib.import_module("hospital.server_app").app
    run_apps(server_app, client_app, {**SETTINGS, "rounds": 2, "state-dir": str(hospital)}, num_clients=3)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("round ")]
    assert len(lines) == 6
    assert all("loss" in line for line in lines)


@pytest.mark.parametrize("page", FROM_TOP_TO_BOTTOM)
def test_the_page_runs_from_top_to_bottom(page: str):
    """In one process, each block with the names of those before."""
    assert run_page(page, "python")


def test_a_site_trains_by_the_loop_of_the_page_and_climbs_where_a_method_asks():
    """Gradient ascent needs `after_step`, `maximize` and `clip_norm`."""
    task = run_page("how-to-use-your-own-training-loop", "python")["task"]
    inputs = torch.randn(60, 8, generator=torch.Generator().manual_seed(0))
    ids = np.array([f"{number}" for number in range(60)])
    sites = {
        name: Examples(inputs[part], (inputs[part].sum(dim=1) > 0).long(), ids[part])
        for name, part in (("a", slice(0, 30)), ("b", slice(30, 60)))
    }
    learnt = learn(task, sites, begin(task, TrainingSettings(learning_rate=0.2, epochs=3)), rounds=3)
    assert learnt.losses[3] < learnt.losses[1]
    forgotten = unlearn("gradient-ascent", task, learnt, sites, [Target(Granularity.CLIENT, "b")])
    assert not np.array_equal(forgotten.parameters, learnt.parameters)


def test_the_first_deletion_comes_near_to_retraining():
    """As the page says: nearer than not training on the data any more."""
    comparison = run_page(NOTEBOOKS[0], r"\{code-cell\} ipython3")["comparison"]
    assert isinstance(comparison, Comparison)
    assert comparison.row("puf-special").difference < comparison.row("natural").difference / 2


@pytest.mark.slow  # the site's build runs both notebooks too
def test_the_method_of_the_tutorial_is_compared_and_keeps_to_the_contract():
    """`check_method` at its end raises where a rule is broken."""
    assert run_page(NOTEBOOKS[1], r"\{code-cell\} ipython3")["RetainedRound"]


@pytest.mark.slow
def test_the_methods_of_the_tutorial_are_compared():
    """PGA has no row, as the page says."""
    comparison = run_page(NOTEBOOKS[2], r"\{code-cell\} ipython3")["comparison"]
    assert list(comparison.refused) == ["pga"]
    before, natural, special = (
        comparison.row(name).difference for name in ("before", "natural", "puf-special")
    )
    assert special < natural < before


def test_the_script_of_the_first_deletion_says_what_the_page_says(capsys: pytest.CaptureFixture[str]):
    """The same sites, settings and method, in at most 60 lines."""
    path = ROOT / "examples" / "first_deletion.py"
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 60
    run_page(NOTEBOOKS[0], r"\{code-cell\} ipython3")
    said = [line for line in capsys.readouterr().out.splitlines() if "new examples" in line]
    exec(compile(text, str(path), "exec"), {"__name__": "__main__"})
    assert [line for line in capsys.readouterr().out.splitlines() if "new examples" in line] == said
    assert len(said) == 2


PAGES = sorted(
    path.stem
    for path in DOCS.glob("*.md")
    if path.stem.startswith(("tutorial-", "how-to-"))
    or path.stem in ("reference-tasks", "reference-method-seam")
)


@pytest.mark.parametrize("page", PAGES)
def test_each_block_of_settings_can_be_read(page: str):
    """By the program that reads such files."""
    for text in blocks(page, "toml"):
        assert tomllib.loads(text.replace("…", ""))
    for text in blocks(page, "yaml"):
        assert yaml.safe_load(text)
    for text in blocks(page, "json"):
        assert json.loads(text)
