"""The method keeps to the contract of all methods, and a federation forgets by it."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np

from client.app import app as client_app
from server.app import app as server_app
from shrink_perturb.method import ShrinkPerturb
from strategies import ShrinkPerturb as Strategy
from strategies.in_process_grid import run_apps
from unlearning.local import Learnt, unlearn
from unlearning.methods.registry import METHODS
from unlearning.requests import Granularity, Target
from unlearning.testing import Claim, check_method
from unlearning.testing.convex import DATA, TASK, TRAINING


def test_it_is_installed() -> None:
    """By its entry point alone it is a method, and a strategy."""
    assert isinstance(METHODS["shrink-perturb"], ShrinkPerturb)
    assert Strategy.__name__ == "ShrinkPerturb"


def test_it_keeps_to_the_contract() -> None:
    """And with forty rounds it is near the retrained model on a convex problem."""
    check_method(ShrinkPerturb(), Claim(distance=0.2, parameters={"rounds": 40, "perturb": 0.0}))


def test_the_model_shrinks_before_it_is_trained() -> None:
    """λ θ and a step down the retained gradient: with hardly any learning rate λ θ itself."""
    theta = np.array([1.0, -1.0, 0.5, 0.0, 0.2, -0.2])
    still = Learnt(parameters=theta, training=replace(TRAINING, learning_rate=1e-300))
    target = [Target(Granularity.CLIENT, "u")]
    done = unlearn(ShrinkPerturb(), TASK, still, DATA, target, shrink=0.25, perturb=0.0, rounds=1)
    np.testing.assert_allclose(done.parameters, 0.25 * theta, atol=1e-15)


def test_a_federation_forgets_by_it(tmp_path: Path) -> None:
    """Four clients learn digits; after two rounds client 1 asks, and the report says by what it was forgotten."""
    settings = {
        "dataset": "digits",
        "model": "logistic",
        "num-clients": 4,
        "rounds": 4,
        "learning-rate": 0.5,
        "recovery-max-rounds": 2,
        "max-score-loss": 0.0,
        "state-dir": str(tmp_path),
        "requests": "at=2 client=1 method=shrink-perturb rounds=2",
    }
    run_apps(server_app, client_app, settings, num_clients=4)
    (path,) = tmp_path.glob("reports/*/report.json")
    report = json.loads(path.read_text(encoding="utf-8"))
    assert report["request"]["client_id"] == "1"
    assert report["request"]["method"] == "shrink-perturb"
    assert report["measurements"][-1]["test"]["score"] > 0.7
