"""The benchmark of certified heads, on digits instead of features: the minimum, the step and its residual bound."""

import numpy as np
import pytest

from benchmarks.certified.federated import Setup
from benchmarks.certified.heads import minimum, newton_rows, online_rows
from benchmarks.data import sites_and_test
from unlearning.curvature.gradients import gradient
from unlearning.tasks import TaskSettings, make_task
from unlearning.training import TrainingSettings, initial_parameters

SETTINGS = TaskSettings(num_clients=8, max_examples=160, dtype="float64")


def test_the_minimum_has_no_gradient_left():
    """To rounding, from any start."""
    task, examples = make_task(SETTINGS), sites_and_test(SETTINGS)[0]["0"]
    models = [minimum(task, examples, 0.05, initial_parameters(task, seed)) for seed in (0, 1)]
    assert np.linalg.norm(gradient(task, models[0], examples, l2=0.05)) < 1e-10
    assert models[0] == pytest.approx(models[1], abs=1e-8)


@pytest.mark.slow
@pytest.mark.long
def test_every_bound_holds_and_the_residual_is_far_nearer_than_the_worst_case():
    """Error ≤ residual bound ≤ worst case, and noise never helps the bound: σ at ε = 8 is below that at ε = 1."""
    task, (data, test) = make_task(SETTINGS), sites_and_test(SETTINGS)
    for row in newton_rows(task, data, test, 0.1):
        assert row["error"] <= row["bound"] < row["worst"] / 100
        assert row["error"] < row["distance"]
        assert row["sigma-8"] < row["sigma-1"]
    training = TrainingSettings(learning_rate=0.05, batch_size=20, weight_decay=0.1)
    for row in online_rows(Setup(task=task, data=data, training=training, rounds=2), test):
        assert row["error"] <= row["bound"]
        assert row["error"] < row["distance"]
