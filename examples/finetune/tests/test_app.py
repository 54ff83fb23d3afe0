"""A head on a frozen network forgets a site with a certificate; an adapter in the network forgets one by Newton-CG."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from finetune.backbone import pretrain
from finetune.client_app import app as client_app
from finetune.server_app import app as server_app
from finetune.task import make_task
from strategies.in_process_grid import read_run_config, run_apps
from unlearning.errors import ConfigurationError, DataError
from unlearning.training import initial_parameters

APP = Path(__file__).parents[1]
SETTINGS = {"backbone": "", "adapter": "", "rank": 4, "precision": "float64"}


@pytest.fixture(scope="module")
def backbone(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The backbone's weights, trained on the public pictures."""
    path = tmp_path_factory.mktemp("public") / "backbone.pt"
    assert pretrain(path) < 0.1
    return str(path)


def run(state: Path, backbone: str, num_clients: int, **changes: Any) -> dict[str, Any]:
    """Return the report of the deletion of site 1."""
    own = {"state-dir": str(state), "finetune.backbone": backbone, "num-clients": num_clients}
    settings = {**own, "attack-samples": 30, **changes}
    run_apps(server_app, client_app, read_run_config(APP, settings), num_clients=num_clients)
    (path,) = state.glob("reports/*/report.json")
    return dict(json.loads(path.read_text(encoding="utf-8")))


def scores(report: dict[str, Any]) -> list[float]:
    """Return the test accuracies, before the deletion first."""
    return [one["test"]["score"] for one in report["measurements"]]


def test_a_head_forgets_a_site_with_a_certificate(tmp_path: Path, backbone: str) -> None:
    """HF-online: the noise hides a difference that is proven, and costs hardly any accuracy."""
    prepare = "hf-online feature_norm=1.4143 sigma=0.03 epsilon=1 delta=1e-5"
    asked = {"rounds": 5, "prepare": prepare, "requests": "at=4 client=1 method=hf-online"}
    report = run(tmp_path, backbone, 12, **asked)
    account = report["unlearning"]["findings"]["privacy account"]
    assert account["basis"] == "proven", account["unmet"]
    assert account["spent_epsilon"] < 1
    assert min(scores(report)) > 0.85


@pytest.mark.parametrize("adapter", ["", "lora"])
def test_newton_cg_forgets_a_site(tmp_path: Path, backbone: str, adapter: str) -> None:
    """Of a head, and of adapters in the network."""
    if adapter:
        pytest.importorskip("peft")
    changes = {"finetune.adapter": adapter, "rounds": 3, "learning-rate": 0.3, "weight-decay": 0.01}
    report = run(tmp_path, backbone, 4, requests="at=2 client=1 method=newton-cg", **changes)
    assert min(scores(report)) > 0.85


@pytest.mark.parametrize(("adapter", "num_trained"), [("", 330), ("lora", 1226)])
def test_what_is_learnt_alone_travels(adapter: str, num_trained: int) -> None:
    """330 numbers of the head; two adapters of rank 4 have 4 (64 + 64) + 4 (64 + 32) more."""
    if adapter:
        pytest.importorskip("peft")
    assert initial_parameters(make_task({**SETTINGS, "adapter": adapter}), 0).size == num_trained


def test_what_it_cannot_do_is_said(tmp_path: Path) -> None:
    """An adapter that there is not, and weights that are no backbone's."""
    with pytest.raises(ConfigurationError, match='must be "" or "lora"'):
        make_task({**SETTINGS, "adapter": "prefix"})
    torch.save({}, tmp_path / "other.pt")
    for name in ("other.pt", "none.pt"):
        task = make_task({**SETTINGS, "backbone": str(tmp_path / name)})
        with pytest.raises(DataError, match="cannot be read as the backbone's weights"):
            task.build_model()
