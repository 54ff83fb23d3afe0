"""FedQUIT against numbers worked out by hand, a distillation written anew, and a convex problem, in float64."""

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from tests.deletions import CLIENT, THETA, convex_problem, reply, samples
from unlearning.local import answer, carry_out, problem_of
from unlearning.methods.fedquit import virtual_teacher
from unlearning.methods.registry import METHODS
from unlearning.requests import Granularity, Target
from unlearning.testing.convex import DATA, TASK, TRAINING, mean_loss, optimum_of, plane

METHOD = METHODS["fedquit"]
problem = partial(convex_problem, METHOD)


SCORES = np.array([3.0, -1.0, 0.5])


@pytest.mark.parametrize(
    ("scores", "true", "temperature", "expected"),
    [
        (np.log([2.0, 1.0, 4.0]), 2, 1.0, [0.5, 0.25, 0.25]),
        (np.array([np.log(2.0), 0.0, 50.0]), 2, 1.0, [0.5, 0.25, 0.25]),
        (SCORES, 1, 1.0, np.exp(SCORES) / np.exp(SCORES).sum()),
        (np.log([4.0, 1.0, 9.0]), 2, 2.0, [0.5, 0.25, 0.25]),
        (np.array([1e4, 0.0, -1e4]), 0, 1.0, [0.0, 1.0, 0.0]),
    ],
    ids=["by-hand", "whatever-it-scored", "least-likely-already", "temperature-flattens", "no-overflow"],
)
def test_the_virtual_teacher_scores_the_true_class_as_the_least_likely(scores, true, temperature, expected):
    """The others keep their odds, 2 to 1, but for a temperature: 4 to 1 is 2 to 1 at τ = 2. The outputs stay."""
    outputs = scores[None, :].copy()
    answers = virtual_teacher(outputs, np.array([true]), temperature)
    np.testing.assert_allclose(answers, [expected], rtol=1e-14, atol=1e-300)
    np.testing.assert_array_equal(outputs, [scores])


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
    given = problem(samples(3))
    asked = METHOD.configure(given, METHOD.begin(given, THETA))
    alone = DATA["u"].select(np.arange(3))
    partial, only = (answer(METHOD, given, asked, {"u": data})["u"] for data in (DATA["u"], alone))
    np.testing.assert_array_equal(partial.vector, only.vector)
    assert partial.num_examples == 3
    assert partial.values["num_retained"] == 17


def test_several_targets_models_are_averaged_by_what_they_forget():
    """θ + (1·4 + 3·8)/4."""
    given = problem(CLIENT, Target(Granularity.CLIENT, "s"))
    state = METHOD.aggregate(given, METHOD.begin(given, THETA), {"u": reply(4, 1), "s": reply(8, 3)})
    np.testing.assert_allclose(state.parameters, THETA + 7.0)


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
