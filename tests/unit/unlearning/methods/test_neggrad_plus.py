"""NegGrad+ against numbers worked out by hand and exact optima of a convex problem, in float64."""

from functools import partial

import numpy as np
import pytest

from tests.deletions import CLIENT, THETA, convex_problem, reply, samples
from unlearning.curvature.gradients import gradient
from unlearning.local import carry_out, retained
from unlearning.methods.registry import METHODS
from unlearning.methods.updates import NUM_RETAINED, RETAINED_UPDATE
from unlearning.tasks.task import forgotten_mask
from unlearning.testing.convex import DATA, TASK, WEIGHT_DECAY, mean_loss, optima

METHOD = METHODS["neggrad-plus"]
SAMPLES = samples(4)
problem = partial(convex_problem, METHOD)


def test_each_side_is_averaged_by_its_own_examples():
    """θ + 0.8·(1·4 + 3·8)/4 + 0.2·(−5) = θ + 4.6, however many examples are forgotten."""
    given = problem(balance=0.8)
    replies = {"r": reply(4, 1), "s": reply(8, 3), "u": reply(-5, 1000)}
    state = METHOD.aggregate(given, METHOD.begin(given, THETA), replies)
    np.testing.assert_allclose(state.parameters, THETA + 4.6, rtol=1e-14)


def test_a_partial_target_is_on_both_sides():
    """0.5·(1·4 + 3·8)/4 of what is kept, r and the rest of u, and 0.5·(−2) of what u forgets."""
    given = problem(SAMPLES, balance=0.5)
    both = reply(-2, 4, arrays={RETAINED_UPDATE: np.full(6, 8.0)}, values={NUM_RETAINED: 3})
    state = METHOD.aggregate(given, METHOD.begin(given, THETA), {"r": reply(4, 1), "u": both})
    np.testing.assert_allclose(state.parameters, THETA + 2.5, rtol=1e-14)


@pytest.mark.parametrize("target", [CLIENT, SAMPLES], ids=["client", "samples"])
def test_one_full_batch_round_is_a_step_down_the_published_objective(target):
    """θ − η (β ∇mean_R ℓ − (1 − β) ∇mean_U ℓ + β μ θ), written anew from whole data sets."""
    given = problem(target, rounds=1, learning_rate=0.25, balance=0.7, clip_norm=1e6)
    unlearned = carry_out(METHOD, given, THETA, DATA).parameters
    gone, kept = DATA["u"].select(forgotten_mask(DATA["u"], target.forget)), retained(DATA, [target]).values()
    slopes = [len(one) * gradient(TASK, THETA, one) for one in kept]
    descent = sum(slopes) / sum(map(len, kept)) + WEIGHT_DECAY * THETA
    expected = THETA - 0.25 * (0.7 * descent - 0.3 * gradient(TASK, THETA, gone))
    np.testing.assert_allclose(unlearned, expected, rtol=1e-10)


def test_with_all_weight_on_what_is_kept_it_ends_at_the_retrained_model():
    """β = 1, full batches: gradient descent on the retained objective, whose minimiser is retraining's."""
    before, retrained = optima()
    given = problem(rounds=150, learning_rate=1, balance=1)
    unlearned = carry_out(METHOD, given, before, DATA).parameters
    assert np.linalg.norm(before - retrained) > 0.1
    assert np.linalg.norm(unlearned - retrained) < 1e-3 * np.linalg.norm(before - retrained)


def test_by_default_the_forgotten_loss_moves_towards_the_retrained_models():
    """A few small rounds close part of the gap, and no more than the gap."""
    before, retrained = optima()
    unlearned = carry_out(METHOD, problem(), before, DATA).parameters
    losses = [mean_loss(model, DATA["u"]) for model in (before, unlearned, retrained)]
    assert losses == sorted(losses)


def test_a_long_climbing_gradient_is_clipped_and_a_descent_is_not():
    """The target's update is no longer than learning rate · bound."""
    climbed, descended = (
        carry_out(METHOD, problem(rounds=1, learning_rate=0.5, clip_norm=0.01, balance=one), THETA, DATA)
        for one in (0, 1)
    )
    assert np.linalg.norm(climbed.parameters - THETA) == pytest.approx(0.005, rel=1e-3)
    assert np.linalg.norm(descended.parameters - THETA) > 0.01


def test_findings_count_rounds_and_the_change_since_the_beginning():
    """Of all rounds together, not of the last."""
    state = carry_out(METHOD, problem(rounds=3), THETA, DATA)
    change = np.linalg.norm(state.parameters - THETA) / np.linalg.norm(THETA)
    assert state.findings["rounds of descent and ascent"] == 3
    assert state.findings["relative change of the model ‖Δθ‖/‖θ‖"] == pytest.approx(change)


def test_a_retained_client_that_is_away_is_left_out_of_the_round():
    """Only s descends; the state goes on."""
    given = problem(balance=1)
    state = METHOD.aggregate(given, METHOD.begin(given, THETA), {"s": reply(8, 3), "u": reply(5, 1)})
    np.testing.assert_allclose(state.parameters, THETA + 8)
    assert not state.finished
