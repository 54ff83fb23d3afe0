"""FedOSD against numbers worked out by hand, least squares written anew, and a convex problem, in float64."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from tests.deletions import CLIENT, THETA, convex_problem, reply, samples
from unlearning.curvature.gradients import gradient
from unlearning.errors import MethodFailed
from unlearning.local import carry_out, exchange, problem_of
from unlearning.methods.fedosd import orthogonal_step, unlearning_cross_entropy, without_component
from unlearning.methods.registry import METHODS
from unlearning.methods.updates import NUM_RETAINED, RETAINED_UPDATE
from unlearning.requests import Granularity, Target
from unlearning.testing.convex import DATA, TASK, TRAINING, mean_loss, optima

METHOD = METHODS["fedosd"]
SAMPLES = samples(2)
problem = partial(convex_problem, METHOD)


def unit(*positions: int) -> np.ndarray:
    return np.eye(6)[list(positions)].sum(axis=0)


class TestLoss:
    def test_it_is_minus_log_of_one_less_half_the_true_probability(self):
        """p_y = 1/2 and 1/4: −(log 3/4 + log 7/8)/2."""
        logits = torch.tensor([[0.0, 0.0], [np.log(3.0), 0.0]], dtype=torch.float64)
        loss = unlearning_cross_entropy(logits, torch.tensor([0, 1]))
        assert loss.item() == pytest.approx(-(np.log(0.75) + np.log(0.875)) / 2)

    def test_it_ends_where_the_true_class_has_no_probability(self):
        """Unlike the negated cross entropy it has a least value, 0, and cannot run away."""
        logits = torch.tensor([[-40.0, 40.0]], dtype=torch.float64, requires_grad=True)
        loss = unlearning_cross_entropy(logits, torch.tensor([0]))
        loss.backward()
        assert loss.item() == pytest.approx(0)
        assert logits.grad.abs().max() < 1e-30


class TestOrthogonalStep:
    def test_what_the_others_have_is_taken_out_and_the_length_restored(self):
        """(3, 4) less its part along e_0 is (0, 4), at length 5; four fifths were free."""
        step, share = orthogonal_step(3 * unit(0) + 4 * unit(1), [2 * unit(0)])
        np.testing.assert_allclose(step, 5 * unit(1), atol=1e-14)
        assert share == pytest.approx(0.8)

    def test_it_is_least_squares_for_others_that_are_not_orthogonal_or_are_alike(self):
        """Against the normal equations' pseudo-inverse, with one row twice."""
        generator = np.random.default_rng(0)
        wanted, rows = generator.normal(size=9), generator.normal(size=(3, 9))
        rows = np.vstack([rows, rows[:1]])
        free = wanted - rows.T @ np.linalg.pinv(rows @ rows.T, rcond=1e-10) @ rows @ wanted
        step, share = orthogonal_step(wanted, list(rows))
        np.testing.assert_allclose(step, free * np.linalg.norm(wanted) / np.linalg.norm(free), rtol=1e-9)
        np.testing.assert_allclose(rows @ step, 0, atol=1e-9)
        assert share == pytest.approx(np.linalg.norm(free) / np.linalg.norm(wanted))

    @pytest.mark.parametrize("wanted", [2 * unit(0), np.zeros(6)], ids=["along-another", "zero"])
    def test_no_free_direction_is_an_error_and_not_a_division_by_zero(self, wanted):
        """Nothing could be unlearned without one who stays noticing."""
        with pytest.raises(MethodFailed) as caught:
            orthogonal_step(wanted, [unit(0)])
        assert not caught.value.retryable


@pytest.mark.parametrize("sign", [1, -1])
def test_the_part_along_the_direction_goes_either_way(sign):
    """(3, 4) and (−3, 4) without e_0, at length 5."""
    update, direction = sign * 3 * unit(0) + 4 * unit(1), 7 * unit(0)
    scale, along = without_component(update, direction)
    np.testing.assert_allclose(scale * update - along * direction, 5 * unit(1), atol=1e-14)


def test_a_model_that_has_not_moved_takes_nothing_out_and_an_update_along_its_way_is_left_out():
    """a = 0; and what remains of the other would be rounding at full length."""
    assert without_component(unit(2), np.zeros(6)) == (1.0, 0.0)
    assert without_component(2 * unit(0), 3 * unit(0)) == (0.0, 0.0)


def test_a_round_of_unlearning_means_over_clients_whatever_their_numbers():
    """Targets u, w: ḡ = (e_1 + e_2), rows e_0: d = ḡ whole. Counts of 1 and 99 change nothing."""
    data = {**DATA, "w": DATA["s"]}
    given = problem_of(METHOD, TASK, [CLIENT, Target(Granularity.CLIENT, "w")], data, TRAINING)
    replies = {"r": reply(unit(0)), "u": reply(2 * unit(1), 1), "w": reply(2 * unit(2), 99)}
    state = METHOD.aggregate(given, METHOD.begin(given, THETA), replies)
    np.testing.assert_allclose(state.parameters, THETA + unit(1, 2), atol=1e-14)


def test_a_partial_targets_rest_is_one_of_those_that_must_not_notice():
    """Without it the step would be 5 e_0/… and now is along e_1."""
    given = problem(SAMPLES)
    rest = {"arrays": {RETAINED_UPDATE: unit(0)}, "values": {NUM_RETAINED: 18}}
    both = reply(3 * unit(0) + 4 * unit(1), **rest)
    state = METHOD.aggregate(given, METHOD.begin(given, THETA), {"r": reply(unit(3)), "u": both})
    np.testing.assert_allclose(state.parameters, THETA + 5 * unit(1), atol=1e-13)


def test_post_training_cannot_go_back():
    """After a step along e_1 the update −2 e_1 + 2 e_0 of r becomes √8 e_0; the target is not asked."""
    given = problem(unlearning_rounds=1, post_training_rounds=1)
    begun = METHOD.begin(given, THETA)
    moved = METHOD.aggregate(given, begun, {"r": reply(unit(3)), "u": reply(unit(1))})
    assert sorted(METHOD.configure(given, moved)) == ["r", "s"]
    done = METHOD.aggregate(given, moved, {"r": reply(2 * unit(0) - 2 * unit(1))})
    np.testing.assert_allclose(done.parameters, THETA + unit(1) + np.sqrt(8) * unit(0), atol=1e-14)
    assert done.finished


def test_whoever_keeps_a_part_takes_part_in_post_training_with_it():
    """u trains on its rest with the round's rate, the unlearning rounds with their own."""
    given = problem(SAMPLES, unlearning_rounds=1, post_training_rounds=1)
    begun = METHOD.begin(given, THETA)
    first = METHOD.configure(given, begun)["u"].training
    moved, _ = exchange(METHOD, given, begun, DATA)
    second = METHOD.configure(given, moved)["u"].training
    assert (first.learning_rate, second.learning_rate) == (0.004, TRAINING.learning_rate)


def test_no_retained_loss_changes_to_first_order_and_the_targets_does():
    """One full-batch step a client: Δ_i are gradients, so ∇ℓ_r·step = ∇ℓ_s·step = 0 and UCE falls."""
    given = problem(unlearning_rounds=1, post_training_rounds=0, learning_rate=1e-3)
    given = replace(given, training=replace(TRAINING, weight_decay=0.0))
    step = carry_out(METHOD, given, THETA, DATA).parameters - THETA
    length = np.linalg.norm(step)
    for client in "rs":
        slope = gradient(TASK, THETA, DATA[client])
        assert abs(slope @ step) < 1e-9 * length * np.linalg.norm(slope)
    uce = replace(TASK, loss=unlearning_cross_entropy)
    slope = gradient(uce, THETA, DATA["u"])
    assert slope @ step < -1e-3 * length * np.linalg.norm(slope)


def test_on_a_convex_problem_the_forgotten_loss_ends_nearer_to_the_retrained_models():
    """From the optimum of all; those that stay lose little more than retraining would give them."""
    before, retrained = optima()
    given = problem(learning_rate=0.02)
    state = carry_out(METHOD, given, before, DATA)
    gaps = [
        abs(mean_loss(model, DATA["u"]) - mean_loss(retrained, DATA["u"]))
        for model in (before, state.parameters)
    ]
    assert gaps[1] < 0.8 * gaps[0]
    for client in "rs":
        assert mean_loss(state.parameters, DATA[client]) < mean_loss(before, DATA[client]) + 0.02
    assert state.findings["rounds of unlearning"] == 10
    assert state.findings["rounds of post-training"] == 10
