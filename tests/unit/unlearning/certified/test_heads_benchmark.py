"""The benchmark of certified heads, on digits instead of features: the minimum, the step and its residual bound."""

import numpy as np
import pytest

from benchmarks.certified.federated import Setup
from benchmarks.certified.heads import minimum, newton_rows, online_rows
from unlearning.curvature import gradient
from unlearning.tasks import TaskSettings, load_server_test, load_site, make_task
from unlearning.training import TrainingSettings, initial_parameters

SETTINGS = TaskSettings(num_clients=8, max_examples=160, dtype="float64")


def data():
    return {str(number): load_site(SETTINGS, number).train for number in range(8)}


def test_the_minimum_has_no_gradient_left():
    """To rounding, from any start."""
    task, examples = make_task(SETTINGS), data()["0"]
    models = [minimum(task, examples, 0.05, initial_parameters(task, seed)) for seed in (0, 1)]
    assert np.linalg.norm(gradient(task, models[0], examples, l2=0.05)) < 1e-10
    assert models[0] == pytest.approx(models[1], abs=1e-8)


@pytest.mark.slow
def test_every_bound_holds_and_the_residual_is_far_nearer_than_the_worst_case():
    """Error ≤ residual bound ≤ worst case, and noise never helps the bound: σ at ε = 8 is below that at ε = 1."""
    test = load_server_test(SETTINGS)
    assert test is not None
    for row in newton_rows(make_task(SETTINGS), data(), test, 0.1):
        assert row["error"] <= row["bound"] < row["worst"] / 100
        assert row["error"] < row["distance"]
        assert row["sigma-8"] < row["sigma-1"]
    training = TrainingSettings(learning_rate=0.05, batch_size=20, weight_decay=0.1)
    for row in online_rows(Setup(task=make_task(SETTINGS), data=data(), training=training, rounds=2), test):
        assert row["error"] <= row["bound"]
        assert row["error"] < row["distance"]
