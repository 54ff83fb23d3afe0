"""MoDe against numbers worked out by hand and a whole deletion written anew, in float64."""

from dataclasses import replace
from functools import partial

import numpy as np
import torch

from tests.deletions import THETA, convex_problem, reply
from unlearning.curvature.gradients import gradient
from unlearning.local import carry_out
from unlearning.methods.method import UnlearningState
from unlearning.methods.mode import DEGRADATION, MoDeParameters, steps
from unlearning.methods.registry import METHODS
from unlearning.tasks.task import Examples
from unlearning.testing.convex import DATA, TASK, TRAINING, WEIGHT_DECAY
from unlearning.training import initial_parameters

METHOD = METHODS["mode"]
FRESH = initial_parameters(TASK, 0)
problem = partial(convex_problem, METHOD)
slope = partial(gradient, TASK, l2=WEIGHT_DECAY)


def relabelled(data: Examples, teacher: np.ndarray) -> Examples:
    weight, bias = torch.from_numpy(teacher[:4].reshape(2, 2)), torch.from_numpy(teacher[4:])
    return Examples(data.inputs, (data.inputs @ weight.T + bias).argmax(dim=1), data.ids)


def in_guidance() -> UnlearningState:
    """The state before the first guidance."""
    return UnlearningState(parameters=THETA, exchanges=1, arrays={DEGRADATION: FRESH})


def test_degradation_comes_before_guidance_in_each_round():
    """Two and three rounds of them: d g d g g; sixteen exchanges as published."""
    plan = steps(MoDeParameters(degradation_rounds=2, guidance_rounds=3))
    assert plan == ["degrade", "guide", "degrade", "guide", "guide"]
    assert len(steps(MoDeParameters())) == 16


def test_rates_and_epochs_are_mode_s_own():
    """0.1 for De and the target, 0.0005 for the others in guidance, one epoch each."""
    given = replace(problem(), training=replace(TRAINING, epochs=4))
    degrade = METHOD.configure(given, METHOD.begin(given, THETA))
    guide = METHOD.configure(given, in_guidance())
    assert {client: item.training.learning_rate for client, item in degrade.items()} == {"r": 0.1, "s": 0.1}
    rates = {client: item.training.learning_rate for client, item in guide.items()}
    assert rates == {"r": 0.0005, "s": 0.0005, "u": 0.1}
    assert {item.training.epochs for item in (*degrade.values(), *guide.values())} == {1}


def test_a_whole_deletion_is_what_the_paper_describes():
    """Two degradations and three guidances, written anew with plain gradients."""
    given = problem(degradation_rounds=2, guidance_rounds=3, retained_learning_rate=0.02)
    state = carry_out(METHOD, given, THETA, DATA)
    model, teacher = THETA.copy(), FRESH.copy()
    for number in range(3):
        if number < 2:
            slopes = [len(DATA[c]) * slope(teacher, DATA[c]) for c in "rs"]
            teacher = teacher - 0.1 * sum(slopes) / 50
            model = 0.95 * model + 0.05 * teacher
        kept = sum(len(DATA[c]) * 0.02 * slope(model, DATA[c]) for c in "rs")
        gone = 20 * 0.1 * slope(model, relabelled(DATA["u"], teacher))
        model = model - (kept + gone) / 70
    np.testing.assert_allclose(state.parameters, model, rtol=1e-10)
    assert state.findings == {"degradations": 2, "guidances": 3}


def test_a_client_that_stays_and_is_away_is_left_out_of_the_step():
    """Only s averages De."""
    given = problem()
    state = METHOD.aggregate(given, METHOD.begin(given, THETA), {"s": reply(8, 3)})
    np.testing.assert_allclose(state.arrays[DEGRADATION], FRESH + 8.0)
