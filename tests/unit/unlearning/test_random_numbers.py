"""Networks that draw random numbers in eval mode as well, such as a variational autoencoder."""

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.tasks import noise, tiny_classification
from unlearning.curvature.gradients import fisher_diagonal, gradient
from unlearning.curvature.kinds import CurvatureKind
from unlearning.curvature.products import CurvatureProduct
from unlearning.evaluation import evaluate, evaluate_and_predict, predict
from unlearning.parameters import Vector
from unlearning.runtime.devices import drawing
from unlearning.task_contract import couples_examples
from unlearning.training import TrainingSettings, initial_parameters, train

COUNT = 9


class Sampling(nn.Module):
    """Adds to its two outputs as much noise as a third one says."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        found = self.layer(inputs)
        return found[:, :2] + torch.exp(found[:, 2:]) * torch.randn_like(found[:, :2])


TASK = tiny_classification(Sampling)
DATA = noise(COUNT)
START = initial_parameters(TASK, seed=0)


def loss_at(vector: Tensor) -> Tensor:
    """The mean loss with the first numbers that a process of the seed 0 draws, written out."""
    assert isinstance(DATA.inputs, Tensor)
    found = functional.linear(DATA.inputs, vector[:9].reshape(3, 3), vector[9:])
    drawn = torch.randn(COUNT, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return functional.cross_entropy(found[:, :2] + torch.exp(found[:, 2:]) * drawn, DATA.targets)


def test_a_measurement_repeats_itself_and_leaves_the_random_state_alone() -> None:
    """Two models differ by what they are and not by what was drawn for each."""

    def measured() -> list[Vector]:
        measures, outputs = evaluate_and_predict(TASK, START, DATA, np.arange(COUNT))
        return [evaluate(TASK, START, DATA).loss, predict(TASK, START, DATA), measures.loss, outputs]

    torch.manual_seed(1)
    before, first = torch.get_rng_state(), measured()
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert all(np.array_equal(one, other) for one, other in zip(first, measured(), strict=True))
    assert np.array_equal(first[0], first[2])
    assert np.array_equal(first[1], first[3])
    assert first[0].mean() == pytest.approx(float(loss_at(torch.from_numpy(START))), rel=1e-12)


def test_derivatives_are_those_of_the_same_draws() -> None:
    """Of the written-out loss, in float64; a batch draws what any other does, so it is one batch here."""
    at = torch.from_numpy(START).requires_grad_()
    (slope,) = torch.autograd.grad(loss_at(at), at)
    hessian = torch.autograd.functional.hessian(loss_at, at)
    assert gradient(TASK, START, DATA) == pytest.approx(slope.numpy(), rel=1e-10, abs=1e-12)
    product = CurvatureProduct(TASK, START, DATA, kind=CurvatureKind.HESSIAN)
    vector = np.sin(np.arange(len(START)))
    expected = (hessian @ torch.from_numpy(vector)).numpy()
    assert product(vector) == pytest.approx(expected, rel=1e-10, abs=1e-12)
    assert np.array_equal(product(vector), product(vector))
    assert np.array_equal(fisher_diagonal(TASK, START, DATA), fisher_diagonal(TASK, START, DATA))
    with_noise = replace(TASK, loss=drawing_itself)
    assert np.array_equal(gradient(with_noise, START, DATA), gradient(with_noise, START, DATA))
    product = CurvatureProduct(
        with_noise, START, DATA, kind=CurvatureKind.GAUSS_NEWTON, memory_budget_bytes=1
    )
    assert np.array_equal(product(vector), product(vector))


def own(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(outputs, targets)


def contrastive(outputs: Tensor, _targets: Tensor) -> Tensor:
    return functional.cross_entropy(outputs @ outputs.T, torch.arange(len(outputs)))


def mixing(outputs: Tensor, targets: Tensor) -> Tensor:
    """Draws by NumPy and Python, as mixup does."""
    share = np.random.default_rng(np.random.randint(9)).beta(1, 1) + random.random()
    return functional.cross_entropy(outputs * share, targets)


def drawing_itself(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(outputs + torch.rand_like(outputs), targets)


@pytest.mark.parametrize(
    ("loss", "build", "couples"),
    [
        (own, Sampling, False),
        (drawing_itself, lambda: nn.Linear(3, 2), False),
        (mixing, lambda: nn.Linear(3, 2), False),
        (contrastive, Sampling, True),
        (lambda outputs, targets: own(outputs, targets) * len(targets), Sampling, True),
    ],
    ids=["a mean", "a loss that draws", "a loss that draws by NumPy", "pairs", "a sum"],
)
def test_what_is_drawn_does_not_couple_examples(loss, build, couples) -> None:
    """A batch draws other numbers than its examples do alone; in the mean over many draws it is theirs, or not."""
    torch.manual_seed(3)
    before = torch.get_rng_state()
    assert couples_examples(replace(TASK, loss=loss, build_model=build), DATA) is couples
    assert torch.equal(torch.get_rng_state(), before)


def test_the_state_is_put_back_after_an_error() -> None:
    def draw() -> list[object]:
        return [torch.rand(3).tolist(), np.random.rand(3).tolist(), random.random()]

    drawn = []

    def fail() -> None:
        with drawing(5, torch.device("cpu")):
            drawn.extend(draw())
            raise ZeroDivisionError

    seed_all(7)
    expected = draw()
    seed_all(7)
    with pytest.raises(ZeroDivisionError):
        fail()
    assert draw() == expected
    seed_all(5)
    assert drawn == draw()


def seed_all(seed: int) -> None:
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)


def test_own_training_and_models_draw_by_the_seed_whatever_they_draw_with() -> None:
    """Mixup draws by NumPy in most people's loops, and some weights are drawn by it."""

    def own_training(model: nn.Module, loader: Any, settings: TrainingSettings) -> float:
        optimizer, loss = torch.optim.SGD(model.parameters(), lr=settings.learning_rate), torch.zeros(())
        for inputs, targets in loader:
            share = np.random.beta(1, 1) + random.random()
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(share * inputs + (1 - share) * inputs.flip(0)), targets)
            loss.backward()
            optimizer.step()
        return loss.item()

    def build() -> nn.Module:
        layer = nn.Linear(3, 2)
        with torch.no_grad():
            layer.weight.copy_(torch.from_numpy(np.random.normal(size=(2, 3))))
        return layer

    task = replace(TASK, build_model=build, train=own_training)
    found = []
    for seed in (1, 2):
        seed_all(seed)
        start = initial_parameters(task, seed=4)
        found.append(train(task, start, DATA, TrainingSettings(batch_size=4, seed=3)).parameters)
    assert np.array_equal(*found)
