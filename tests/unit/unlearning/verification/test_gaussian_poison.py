"""Planted noise: by hand, of models that saw it, and of those that did not."""

import numpy as np
import pytest
import torch

from tests.tasks import initial_model
from unlearning.errors import DataError
from unlearning.parameters import flatten
from unlearning.tasks import TaskSettings, load_site, make_task
from unlearning.tasks.task import Examples
from unlearning.training import TrainingSettings, initial_parameters, train
from unlearning.verification.gaussian_poison import Planted, judge, plant, scores

TASK = make_task(TaskSettings(model="mlp"))


def test_the_score_is_minus_the_cosine_times_the_noises_length_in_deviations():
    """By hand: of a linear model the gradient at x is Wᵀ(p − e_y)."""
    task = make_task(TaskSettings(model="logistic", dtype="float64"))
    model = initial_model(task, 3)
    generator = torch.Generator().manual_seed(0)
    inputs = torch.rand(1, 1, 8, 8, generator=generator)
    noise = torch.randn(1, 1, 8, 8, generator=generator) * 0.5
    planted = Planted(Examples(inputs, torch.tensor([4]), np.array(["a"])), noise, 0.5)
    weight = model[1].weight.detach()
    pull = torch.softmax(model(inputs.double()), dim=1)[0].detach()
    pull[4] -= 1
    gradient = weight.T @ pull
    expected = -(gradient @ noise.double().flatten()) / (0.5 * gradient.norm())
    assert scores(task, flatten(model), planted) == pytest.approx([float(expected)])


def test_a_score_is_judged_by_the_normal_distribution():
    """By hand: four scores of mean 1: z = 2, one-sided p = 0.0228; one of four lies above 2.326."""
    found = judge(np.array([0.0, 0.5, 1.0, 2.5]))
    assert (found.mean, found.z, found.tpr) == (1.0, 2.0, 0.25)
    assert found.p_value == pytest.approx(0.02275, abs=1e-5)


def test_a_model_that_never_saw_the_noise_scores_like_a_standard_normal():
    """Mean 0 and deviation 1 over 400 examples, whatever the noise's own deviation."""
    examples = load_site(TaskSettings(num_clients=1), 0).train
    _, planted = plant(examples, 400 / len(examples), 0.7, np.random.default_rng(0))
    trained = train(TASK, initial_parameters(TASK, 0), examples, TrainingSettings(epochs=3))
    found = scores(TASK, trained.parameters, planted)
    assert len(found) == 400
    assert abs(judge(found).z) < 3.5
    assert found.std() == pytest.approx(1, abs=0.15)


def test_a_model_that_knows_the_noisy_examples_by_heart_gives_the_noise_away():
    """Far above what a model without the noise reaches in one of a million cases (z = 4.75)."""
    examples = load_site(TaskSettings(num_clients=6), 0).train
    noisy, planted = plant(examples, 0.5, 0.7, np.random.default_rng(1))
    training = TrainingSettings(epochs=30, batch_size=16, momentum=0.9, learning_rate=0.05)
    knowing = train(TASK, initial_parameters(TASK, 0), noisy, training).parameters
    clean = train(TASK, initial_parameters(TASK, 0), examples, training).parameters
    assert judge(scores(TASK, knowing, planted)).z > 4.75
    assert judge(scores(TASK, clean, planted)).z < 4.75


def test_noise_is_added_to_a_share_and_nothing_else_changes():
    """A tenth of the examples, by position; ids and labels stay; the given examples stay too."""
    examples = load_site(TaskSettings(num_clients=6), 0).train
    before = examples.inputs.clone()
    noisy, planted = plant(examples, 0.1, 0.5, np.random.default_rng(2))
    changed = (noisy.inputs != examples.inputs).flatten(1).any(dim=1).numpy()
    assert changed.sum() == len(planted.clean) == round(0.1 * len(examples))
    assert set(examples.ids[changed]) == set(planted.clean.ids)
    assert torch.equal(examples.inputs, before)
    assert torch.equal(noisy.targets, examples.targets)


@pytest.mark.parametrize(("share", "deviation"), [(0, 1), (1.5, 1), (0.5, 0)])
def test_noise_that_is_none_is_refused(share, deviation):
    """The message says what may be given."""
    with pytest.raises(DataError):
        plant(load_site(TaskSettings(), 0).train, share, deviation, np.random.default_rng(0))
