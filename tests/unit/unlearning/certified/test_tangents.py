"""Tangents through local training against central differences of training itself."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.unit.unlearning.certified.problems import DIMENSION, LOGISTIC, QUADRATIC, blobs
from tests.unit.unlearning.curvature.problems import tiny_problem
from unlearning.certified.tangents import BlockProducts, train_with_tangents, vector_bytes
from unlearning.errors import ConfigurationError, NumericalError, UpdateRefused
from unlearning.parameters import Vector
from unlearning.tasks import Task, TaskSettings, load_site, make_task
from unlearning.training import TrainingSettings, initial_parameters, train

SETTINGS = TrainingSettings(epochs=3, batch_size=7, learning_rate=0.3, weight_decay=0.05, seed=5)
VARIANTS = {
    "plain": SETTINGS,
    "momentum": replace(SETTINGS, momentum=0.8),
    "ascent": replace(SETTINGS, maximize=True, learning_rate=0.05),
    "ascent with momentum": replace(SETTINGS, maximize=True, learning_rate=0.02, momentum=0.5),
}


def central_difference(task: Task, start: Vector, tangent: Vector, settings: TrainingSettings) -> Vector:
    """(train(w + ha) − train(w − ha))/2h."""
    plus, minus = (
        train(task, start + sign * 1e-5 * tangent, blobs(), settings).parameters for sign in (1, -1)
    )
    return (plus - minus) / 2e-5


def directions(count: int, dimension: int = DIMENSION) -> np.ndarray:
    return np.random.default_rng(1).standard_normal((count, dimension))


@pytest.mark.parametrize("how", [BlockProducts.LOOP, BlockProducts.BATCHED])
@pytest.mark.parametrize("name", VARIANTS)
def test_tangents_are_the_derivative_of_training(name: str, how: BlockProducts) -> None:
    """For SGD with decay, momentum and ascent."""
    settings, start, tangents = VARIANTS[name], initial_parameters(LOGISTIC, 0), directions(3)
    _, carried = train_with_tangents(LOGISTIC, start, blobs(), settings, tangents, how=how)
    expected = [central_difference(LOGISTIC, start, tangent, settings) for tangent in tangents]
    np.testing.assert_allclose(carried, expected, rtol=0, atol=2e-8)


@pytest.mark.parametrize("model", ["mlp", "cnn", "small-cnn", "vit-lite"])
def test_training_with_tangents_is_training_to_the_bit(model: str) -> None:
    """Parameters and loss are those of `train`, in float32, for each kind of layer there is."""
    settings = TaskSettings(num_clients=5, model=model)
    task, examples = make_task(settings), load_site(settings, 0).train
    few = examples.select(np.arange(20))
    training = TrainingSettings(batch_size=8, momentum=0.9, weight_decay=0.01, seed=3)
    start = initial_parameters(task, 0)
    tangents = directions(2, start.size).astype(np.float32)
    trained, carried = train_with_tangents(task, start, few, training, tangents)
    plain = train(task, start, few, training)
    np.testing.assert_array_equal(trained.parameters, plain.parameters)
    assert (trained.loss, trained.num_examples) == (plain.loss, plain.num_examples)
    assert carried.dtype == np.float32
    assert not np.array_equal(carried, tangents)


def test_augmented_batches_carry_the_same_derivative() -> None:
    """Augmentation draws from the seed, so the derivative is of the same augmented steps."""

    def jittered(inputs: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        return inputs + 0.1 * torch.randn(inputs.shape, generator=generator, dtype=inputs.dtype)

    task = replace(LOGISTIC, augment=jittered)
    settings = replace(SETTINGS, augment=True)
    start, (tangent,) = initial_parameters(task, 0), directions(1)
    _, carried = train_with_tangents(task, start, blobs(), settings, tangent[None])
    expected = central_difference(task, start, tangent, settings)
    np.testing.assert_allclose(carried[0], expected, rtol=0, atol=2e-8)


def test_on_a_quadratic_the_tangent_is_the_exact_difference() -> None:
    """Training is affine there: train(w + a) − train(w), also for a large a."""
    settings, start = replace(SETTINGS, learning_rate=0.1), initial_parameters(QUADRATIC, 0)
    (tangent,) = 10 * directions(1, 5)
    trained, carried = train_with_tangents(QUADRATIC, start, blobs(), settings, tangent[None])
    moved = train(QUADRATIC, start + tangent, blobs(), settings).parameters
    np.testing.assert_allclose(carried[0], moved - trained.parameters, rtol=0, atol=1e-12)


def test_nothing_that_is_passed_changes() -> None:
    """Start and tangents are read-only to the caller's eye, and may be so in fact."""
    start, tangents = initial_parameters(LOGISTIC, 0), directions(2)
    copies = start.copy(), tangents.copy()
    start.setflags(write=False)
    tangents.setflags(write=False)
    train_with_tangents(LOGISTIC, start, blobs(), SETTINGS, tangents)
    np.testing.assert_array_equal(start, copies[0])
    np.testing.assert_array_equal(tangents, copies[1])


def test_no_tangents_are_plain_training() -> None:
    """k = 0 is allowed and comes back as (0, d)."""
    start = initial_parameters(LOGISTIC, 0)
    trained, carried = train_with_tangents(LOGISTIC, start, blobs(), SETTINGS, np.zeros((0, DIMENSION)))
    assert carried.shape == (0, DIMENSION)
    np.testing.assert_array_equal(trained.parameters, train(LOGISTIC, start, blobs(), SETTINGS).parameters)


def test_a_frozen_weight_is_a_constant() -> None:
    """It has no entry, and the others are carried as if it were a part of the loss."""

    def build() -> nn.Module:
        model = nn.Linear(4, 3)
        model.bias.requires_grad_(False)
        return model

    task = replace(LOGISTIC, build_model=build)
    start, tangent = initial_parameters(task, 0), directions(1)[0, :12]
    _, carried = train_with_tangents(task, start, blobs(), SETTINGS, tangent[None])
    expected = central_difference(task, start, tangent, SETTINGS)
    np.testing.assert_allclose(carried, [expected], rtol=0, atol=2e-8)
    assert carried.shape == (1, 12)


def test_layers_that_pytorch_cannot_batch_are_done_row_by_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """As GroupNorm before PyTorch 2.14; it is tried once."""
    gradients, tried = torch.autograd.grad, []

    def unbatched(*arguments: Any, **named: Any) -> Any:
        if named.get("is_grads_batched"):
            tried.append(arguments)
            raise RuntimeError("The size of tensor a (2) must match the size of tensor b (64)")
        return gradients(*arguments, **named)

    monkeypatch.setattr(torch.autograd, "grad", unbatched)
    task = replace(
        LOGISTIC,
        build_model=lambda: nn.Sequential(
            nn.Linear(4, 6), nn.GroupNorm(2, 6), nn.Tanh(), nn.Linear(6, 3)
        ).double(),
    )
    start = initial_parameters(task, 0)
    tangents = directions(3, start.size)
    (_, loop), (_, rows) = (
        train_with_tangents(task, start, blobs(), SETTINGS, tangents, how=how)
        for how in (BlockProducts.LOOP, BlockProducts.BATCHED)
    )
    np.testing.assert_array_equal(rows, loop)
    assert len(tried) == 1


@pytest.mark.parametrize("how", [BlockProducts.LOOP, BlockProducts.BATCHED])
def test_parameters_that_share_a_derivative_are_not_mixed_up(how: BlockProducts) -> None:
    """Two weights that enter as their sum have one product between them; decay acts on each one's own tangent."""

    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Parameter(torch.ones(4, 3)), nn.Parameter(torch.zeros(4, 3))

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            outputs: torch.Tensor = inputs @ (self.one + self.two)
            return outputs

    task = replace(LOGISTIC, build_model=Sum)
    start, tangents = initial_parameters(task, 0), directions(2, 24)
    _, carried = train_with_tangents(task, start, blobs(), SETTINGS, tangents, how=how)
    expected = [central_difference(task, start, tangent, SETTINGS) for tangent in tangents]
    np.testing.assert_allclose(carried, expected, rtol=0, atol=2e-8)


NORMALISED = replace(LOGISTIC, build_model=lambda: nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3)))
REFUSED: dict[str, tuple[type[Exception], dict[str, Any]]] = {
    "another-optimizer": (ConfigurationError, {"settings": replace(SETTINGS, optimizer="adam")}),
    # the derivative without the clip was seen to be up to 18 % off
    "clipped-gradients": (ConfigurationError, {"settings": replace(SETTINGS, clip_norm=0.1)}),
    "running-statistics": (NumericalError, {"task": NORMALISED}),
    "another-length": (UpdateRefused, {"dimension": DIMENSION + 1}),
}


@pytest.mark.parametrize(("error", "changes"), REFUSED.values(), ids=REFUSED)
def test_what_has_another_derivative_is_refused(error: type[Exception], changes: dict[str, Any]) -> None:
    """Before anything is carried."""
    task = changes.get("task", LOGISTIC)
    start = initial_parameters(task, 0)
    tangents = directions(1, changes.get("dimension", start.size))
    with pytest.raises(error):
        train_with_tangents(task, start, blobs(), changes.get("settings", SETTINGS), tangents)


def test_fused_attention_is_refused() -> None:
    """It has no second derivative."""
    problem = tiny_problem("fused-attention", torch.float32)
    tangents = np.ones((1, problem.theta.size), dtype=np.float32)
    with pytest.raises(NumericalError):
        train_with_tangents(problem.task, problem.theta, problem.examples, SETTINGS, tangents)


def test_the_memory_of_vectors_is_known_beforehand() -> None:
    """k·d numbers of the task's dtype, twice with momentum; equal to what NumPy holds."""
    held = np.zeros((7, 11), dtype=np.float32).nbytes
    assert vector_bytes(dimension=11, num_units=7, dtype=torch.float32) == held
    assert vector_bytes(dimension=11, num_units=7, dtype=torch.float64) == 2 * held
    assert vector_bytes(dimension=11, num_units=7, dtype=torch.float32, momentum=True) == 2 * held
