"""FedMemPrune against numbers worked out by hand and a convex problem with exact retraining, in float64."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from tests.deletions import CLIENT, THETA, convex_problem, reply, samples
from tests.tasks import tiny_classification
from unlearning.local import carry_out, problem_of
from unlearning.methods.fedmemprune import draw_again, least_moved, trainable
from unlearning.methods.registry import METHODS
from unlearning.parameters import Slot
from unlearning.tasks.task import Examples
from unlearning.testing.convex import DATA, TASK, TRAINING, mean_loss, optima
from unlearning.training import train

METHOD = METHODS["fedmemprune"]
problem = partial(convex_problem, METHOD)


def test_the_least_moved_are_the_smallest_in_size_whatever_their_sign():
    """Two fifths of five: those at −0.1 and 0.2; a frozen sixth that did not move at all is not counted."""
    own = np.array([True, True, True, True, True, False])
    mean = np.array([3.0, -0.1, -5.0, 0.2, 0.3, 0.0])
    assert np.flatnonzero(least_moved(mean, own, 0.4)).tolist() == [1, 3]


def test_buffers_and_frozen_parameters_are_not_drawn_anew():
    """A running mean is learnt by other means, and a frozen layer is not in the vector at all."""
    model = nn.Sequential(nn.Linear(1, 2), nn.BatchNorm1d(2))
    # weight 2, bias 2, scale 2, shift 2, running mean 2, running variance 2
    assert trainable(model).tolist() == 8 * [True] + 4 * [False]
    model[0].bias.requires_grad = False
    assert trainable(model).tolist() == 6 * [True]


def test_weights_are_drawn_by_their_fan_in_and_the_rest_within_a_tenth():
    """A convolution 3x2x2x2 has a fan-in of 8: up to √(6/8); the largest of many is near its bound."""
    slots = (Slot("weight", (900, 2, 2, 2), 0, 7200), Slot("bias", (900,), 7200, 8100))
    fresh = np.zeros(8100)
    draw_again(fresh, np.ones(8100, dtype=bool), slots, np.random.default_rng(0))
    assert 0.99 * np.sqrt(6 / 8) < np.abs(fresh[:7200]).max() <= np.sqrt(6 / 8)
    assert 0.099 < np.abs(fresh[7200:]).max() <= 0.1
    assert abs(fresh[:7200].mean()) < 0.03


def test_the_round_is_averaged_by_examples_and_ranked_by_clients():
    """Mean by clients (2, 2, 3, 3, −1, 4): of six the least two thirds… r = 1/3 resets positions 0 and 4."""
    given = problem(share=0.34)
    replies = {"r": reply([0, 4, 4, 4, -1, 4], 1), "s": reply([3, 4, 2, 2, -1, 4], 3)}
    state = METHOD.aggregate(given, METHOD.begin(given, THETA), replies)
    averaged = THETA + np.array([2.25, 4.0, 2.5, 2.5, -1.0, 4.0])
    kept = [1, 2, 3, 5]
    np.testing.assert_allclose(state.parameters[kept], averaged[kept], rtol=1e-14)
    assert (state.parameters[[0, 4]] != averaged[[0, 4]]).all()
    assert abs(state.parameters[4]) <= 0.1
    assert state.findings["parameters drawn again"] == 2


def test_who_leaves_is_never_asked_and_who_keeps_a_part_trains_on_it():
    """The target's forgotten examples enter nothing."""
    begun = METHOD.begin(problem(), THETA)
    assert sorted(METHOD.configure(problem(), begun)) == ["r", "s"]
    assert sorted(METHOD.configure(problem(samples(1)), begun)) == ["r", "s", "u"]


def test_the_seed_and_the_round_decide_what_is_drawn():
    """The same numbers for the same round, others for another."""
    drawn = [
        carry_out(METHOD, replace(problem(share=1.0), seed=seed, round=number), THETA, DATA).parameters
        for seed, number in ((1, 5), (1, 5), (2, 5), (1, 6))
    ]
    np.testing.assert_array_equal(drawn[0], drawn[1])
    assert not np.isclose(drawn[0], drawn[2]).any()
    assert not np.isclose(drawn[0], drawn[3]).any()


def test_what_the_retained_have_no_use_for_is_forgotten_and_recovery_ends_at_retraining():
    """Convex: recovery goes to the retrained optimum from wherever the reset left the model.

    And where those who stay have nothing in a dimension, its weights are among the reset: the target's alone had set
    them, and recovery without the reset would leave them (but for the L2 term).
    """
    flat = {
        name: Examples(data.inputs * torch.tensor([1.0, 0.0]), data.targets, data.ids)
        for name, data in DATA.items()
    }
    data = {**flat, "u": DATA["u"]}
    plain = replace(TRAINING, weight_decay=0.0)
    before = np.array([0.0, -5.0, 0.0, 5.0, 0.0, 0.0])  # the second input decides, which only u has
    given = problem_of(METHOD, TASK, [CLIENT], data, plain, share=0.4)
    state = carry_out(METHOD, given, before, data)
    assert np.abs(state.parameters[[1, 3]]).max() <= np.sqrt(6 / 2)
    np.testing.assert_array_equal(np.abs(before[[1, 3]]), 5)

    optimum, retrained = optima()
    unlearned = carry_out(METHOD, problem(), optimum, DATA).parameters
    model, fast = unlearned, replace(TRAINING, learning_rate=1.0)
    for _ in range(150):
        updates = [len(DATA[c]) * (train(TASK, model, DATA[c], fast).parameters - model) for c in "rs"]
        model = model + sum(updates) / 50
    assert np.linalg.norm(model - retrained) < 1e-3 * np.linalg.norm(unlearned - retrained)
    assert mean_loss(unlearned, DATA["u"]) != pytest.approx(mean_loss(retrained, DATA["u"]), abs=1e-3)


def test_a_model_of_one_dimension_tensors_is_drawn_within_a_tenth():
    """No tensor has a fan-in."""
    task = tiny_classification(lambda: nn.LayerNorm(2))
    given = replace(problem(share=1.0), task=task)
    state = METHOD.aggregate(given, METHOD.begin(given, np.ones(4)), {"r": reply([1, 1, 1, 1])})
    assert np.abs(state.parameters).max() <= 0.1
