"""FedQUIT against numbers worked out by hand, a distillation written anew, and a convex problem, in float64."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from unlearning.evaluation import predict
from unlearning.local import carry_out, problem_of
from unlearning.methods.fedquit import virtual_teacher
from unlearning.methods.method import ClientSite, Problem, Reply
from unlearning.methods.registry import METHODS
from unlearning.requests import Granularity, Target
from unlearning.testing.convex import DATA, TASK, TRAINING, mean_loss, optimum_of, plane

METHOD = METHODS["fedquit"]
CLIENT = Target(Granularity.CLIENT, "u")
SAMPLES = Target(Granularity.SAMPLE, "u", frozenset({"u-0", "u-1", "u-2"}))
THETA = np.array([1.0, -1.0, 0.5, 0.0, 0.2, -0.2])


def problem(target: Target = CLIENT, **parameters) -> Problem:
    return problem_of(METHOD, TASK, [target], DATA, TRAINING, **parameters)


def site(forgotten: slice) -> ClientSite:
    data = DATA["u"]
    chosen = np.zeros(len(data), dtype=np.bool_)
    chosen[forgotten] = True
    return ClientSite(task=TASK, forget=data.select(chosen), retain=data.select(~chosen))


class TestVirtualTeacher:
    def test_the_true_class_scores_as_the_least_likely(self):
        """(log 2, 0, log 4) with class 2 true: odds 2, 1, 1."""
        answers = virtual_teacher(np.log([[2.0, 1.0, 4.0]]), np.array([2]), 1.0)
        np.testing.assert_allclose(answers, [[0.5, 0.25, 0.25]], rtol=1e-14)

    def test_the_others_keep_their_proportions(self):
        """Whatever the true class had: 2 to 1 before and after."""
        for true_score in (-5.0, 0.0, 50.0):
            answers = virtual_teacher(np.array([[np.log(2), 0.0, true_score]]), np.array([2]), 1.0)
            assert answers[0, 0] / answers[0, 1] == pytest.approx(2)

    def test_a_true_class_that_is_the_least_likely_already_stays_as_it_is(self):
        """Nothing is left to forget."""
        scores = np.array([[3.0, -1.0, 0.5]])
        expected = np.exp(scores) / np.exp(scores).sum()
        np.testing.assert_allclose(virtual_teacher(scores, np.array([1]), 1.0), expected, rtol=1e-14)

    def test_a_temperature_flattens(self):
        """Odds 4, 1, 1 at τ = 1 are 2, 1, 1 at τ = 2."""
        answers = virtual_teacher(np.log([[4.0, 1.0, 9.0]]), np.array([2]), 2.0)
        np.testing.assert_allclose(answers, [[0.5, 0.25, 0.25]], rtol=1e-14)

    def test_outputs_far_apart_do_not_overflow(self):
        """As of a model that knows its data by heart; the outputs given are not changed."""
        scores = np.array([[1e4, 0.0, -1e4]])
        answers = virtual_teacher(scores, np.array([0]), 1.0)
        np.testing.assert_allclose(answers, [[0.0, 1.0, 0.0]], atol=1e-300)
        assert scores[0, 0] == 1e4


def test_the_student_is_the_teacher_after_adam_on_the_divergence():
    """Three full-batch epochs, written anew with torch's own Adam and losses."""
    given = problem(epochs=3, learning_rate=0.01, temperature=2.0)
    unlearned = carry_out(METHOD, given, THETA, DATA).parameters
    inputs, labels = DATA["u"].inputs, DATA["u"].targets
    weight = nn.Parameter(torch.from_numpy(THETA[:4].reshape(2, 2).copy()))
    bias = nn.Parameter(torch.from_numpy(THETA[4:].copy()))
    with torch.no_grad():
        scores = inputs @ weight.T + bias
        scores[torch.arange(len(labels)), labels] = scores.min(dim=1).values
        answers = (scores / 2).softmax(dim=1)
    adam = torch.optim.Adam([weight, bias], lr=0.01)
    for _ in range(3):
        adam.zero_grad()
        said = ((inputs @ weight.T + bias) / 2).log_softmax(dim=1)
        (answers * (answers.log() - said)).sum(dim=1).mean().backward()
        adam.step()
    expected = np.concatenate([weight.detach().numpy().ravel(), bias.detach().numpy()])
    np.testing.assert_allclose(unlearned, expected, rtol=1e-9)


def test_a_target_that_keeps_a_part_distils_what_it_forgets_only():
    """The same update as of a client that has no more than that, and it says what it keeps."""
    instruction = METHOD.configure(problem(SAMPLES), METHOD.begin(problem(SAMPLES), THETA))["u"]
    partial = site(slice(0, 3))
    reply = METHOD.client_step(instruction, partial)
    alone = METHOD.client_step(instruction, replace(partial, retain=partial.retain.select(np.array([], int))))
    np.testing.assert_array_equal(reply.vector, alone.vector)
    assert reply.num_examples == 3
    assert reply.values["num_retained"] == 17


def test_several_targets_models_are_averaged_by_what_they_forget():
    """θ + (1·4 + 3·8)/4."""
    given = problem_of(METHOD, TASK, [CLIENT, Target(Granularity.CLIENT, "s")], DATA, TRAINING)
    replies = {
        "u": Reply(vector=np.full(6, 4.0), num_examples=1),
        "s": Reply(vector=np.full(6, 8.0), num_examples=3),
    }
    state = METHOD.aggregate(given, METHOD.begin(given, THETA), replies)
    np.testing.assert_allclose(state.parameters, THETA + 7.0)


def test_with_many_epochs_it_ends_at_the_exact_minimiser_of_the_divergence():
    """Convex for a linear model: the slope of the mean divergence is zero there."""
    given = problem(epochs=1000, learning_rate=0.01)
    unlearned = carry_out(METHOD, given, THETA, DATA).parameters
    scores = predict(TASK, THETA, DATA["u"])
    answers = virtual_teacher(scores, DATA["u"].targets.numpy(), 1.0)
    student = np.exp(predict(TASK, unlearned, DATA["u"]))
    slope = (student / student.sum(axis=1, keepdims=True) - answers).T @ DATA["u"].inputs.numpy() / 20
    assert np.abs(slope).max() < 1e-6


def test_on_a_convex_problem_what_the_model_knew_well_moves_towards_retraining():
    """A target whose examples both models get mostly right: its loss rises, as it does by retraining.

    The published rate moves the model too, by no more than 1e-4 a weight and step.
    """
    known = plane("u", 20, 0.9)
    before, retrained = optimum_of(DATA["r"], DATA["s"], known), optimum_of(DATA["r"], DATA["s"])
    data = {**DATA, "u": known}
    given = problem_of(METHOD, TASK, [CLIENT], data, TRAINING, epochs=3, learning_rate=0.02)
    unlearned = carry_out(METHOD, given, before, data).parameters
    gaps = [mean_loss(retrained, known) - mean_loss(model, known) for model in (before, unlearned)]
    assert 0 < gaps[1] < 0.8 * gaps[0]
    published = carry_out(METHOD, problem(), before, data).parameters
    assert 0 < np.abs(published - before).max() < 1.01e-4
