"""Training with differential privacy for single samples, against gradients one by one, and against an attacker."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.raising import raises
from tests.tasks import tiny_classification
from tests.unit.unlearning.certified.test_private_training import shown_by
from unlearning.certified import private_samples
from unlearning.certified.private_samples import (
    PrivateSteps,
    add_clipped,
    single_gradients,
    train_privately,
)
from unlearning.certified.private_training import least_noise_multiplier, spent_epsilon
from unlearning.errors import AppError
from unlearning.optimizers import Sgd
from unlearning.tasks.losses import cross_entropy
from unlearning.tasks.task import Examples, Task
from unlearning.training import TrainingSettings, initial_parameters, train


class Recurrent(nn.Module):
    """A GRU, for which torch has no rule to compute the gradients of many examples at once."""

    def __init__(self) -> None:
        super().__init__()
        self.gru, self.head = nn.GRU(2, 4, batch_first=True), nn.Linear(4, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.gru(inputs.unsqueeze(1))[0][:, -1])


class Tied(nn.Module):
    """Two layers with the same weights."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 3)
        self.second.weight = self.first.weight

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(torch.tanh(self.second(torch.tanh(self.first(inputs)))))


def data(count: int = 12) -> Examples:
    inputs = torch.randn(count, 2, generator=torch.Generator().manual_seed(3))
    return Examples(inputs, torch.arange(count) % 3, np.array([f"s{number}" for number in range(count)]))


def of(build: Callable[[], nn.Module]) -> tuple[Task, nn.Module]:
    torch.manual_seed(0)
    task = tiny_classification(build, num_classes=3)
    return task, build().to(task.dtype)


@pytest.mark.parametrize("build", [lambda: nn.Linear(2, 3), Recurrent, Tied])
def test_each_gradient_is_that_of_the_example_alone(build: Callable[[], nn.Module]):
    """Computed by autograd, one after another, in float64."""
    task, model = of(build)
    inputs, targets = data().batch(slice(None))
    losses, gradients = single_gradients(task, model, inputs.to(task.dtype), targets)
    dense = build().double()
    dense.load_state_dict({name: value.double() for name, value in model.state_dict().items()})
    for row in range(len(targets)):
        dense.zero_grad()
        loss = cross_entropy(dense(inputs[row : row + 1].double()), targets[row : row + 1])
        loss.backward()
        assert float(losses[row]) == pytest.approx(loss.item(), rel=1e-5)
        for one, weight in zip(gradients, dense.parameters(), strict=True):
            np.testing.assert_allclose(one[row].detach().numpy(), weight.grad.numpy(), atol=1e-5)


def test_one_sample_more_changes_a_sum_by_at_most_the_clip_norm_whatever_it_is(monkeypatch):
    """Also in chunks, also where it is huge or not finite, and gradients that are short stay as they are."""
    task, model = of(lambda: nn.Linear(2, 3))
    inputs, targets = data(5).batch(slice(None))

    def summed(more: list[list[float]], clip_norm: float) -> np.ndarray:
        sums = [torch.zeros_like(weight, dtype=torch.float64) for weight in model.parameters()]
        every = torch.cat([inputs, torch.tensor(more).reshape(-1, 2)])
        add_clipped(task, model, every.double(), torch.cat([targets, targets[: len(more)]]), clip_norm, sums)
        return torch.cat([one.flatten() for one in sums]).numpy()

    for chunk in (2**21, 1):
        monkeypatch.setattr(private_samples, "_CHUNK_NUMBERS", chunk)
        for value in (1.0, 1e30, math.nan, math.inf):
            moved = np.linalg.norm(summed([[value, -value]], 0.3) - summed([], 0.3))
            assert moved <= 0.3 * (1 + 1e-9)
    whole = cross_entropy(model(inputs.double()), targets) * len(targets)
    exact = torch.cat([one.flatten() for one in torch.autograd.grad(whole, list(model.parameters()))])
    np.testing.assert_allclose(summed([], 1e6), exact.numpy(), rtol=1e-5, atol=1e-6)


def test_the_noise_is_z_times_the_clip_norm_over_the_expected_batch():
    """Of gradients that are zero nothing else is left."""
    task, model = of(lambda: nn.Linear(2, 4_000))
    before = [weight.detach().clone() for weight in model.parameters()]
    examples = data().with_targets(torch.zeros(12, dtype=torch.int64))
    silent = replace(task, loss=lambda outputs, _: outputs.sum() * 0, num_classes=4_000)
    train_privately(
        silent,
        model,
        examples,
        steps=PrivateSteps(count=1, sampling=0.5),
        clip_norm=0.4,
        noise_multiplier=3.0,
        optimizer=Sgd(model.parameters(), lr=1.0, momentum=0.0, weight_decay=0.0, maximize=False),
    )
    moved = torch.cat([(old - new).flatten() for old, new in zip(before, model.parameters(), strict=True)])
    assert float(moved.detach().std()) == pytest.approx(3.0 * 0.4 / 6, rel=0.03)


def test_each_sample_is_drawn_by_itself_and_every_training_draws_others(monkeypatch: pytest.MonkeyPatch):
    examples, steps = data(300), PrivateSteps(count=200, sampling=0.1)
    task, _ = of(lambda: nn.Linear(2, 3))
    sizes = []

    def counted(task: Task, model: nn.Module, inputs: Tensor, *rest: Any) -> float:
        sizes.append(len(inputs))
        return add_clipped(task, model, inputs, *rest)

    monkeypatch.setattr(private_samples, "add_clipped", counted)

    def run(key: bytes | None) -> np.ndarray:
        model = nn.Linear(2, 3).double()
        torch.nn.init.zeros_(model.weight), torch.nn.init.zeros_(model.bias)
        sizes.clear()
        train_privately(
            task,
            model,
            examples,
            steps=steps,
            clip_norm=1.0,
            noise_multiplier=0.1,
            optimizer=Sgd(model.parameters(), lr=0.1, momentum=0.0, weight_decay=0.0, maximize=False),
            key=key,
        )
        return model.weight.detach().numpy().copy()

    first = run(None)
    assert np.mean(sizes) == pytest.approx(30, abs=1.5)
    assert np.std(sizes) == pytest.approx(math.sqrt(300 * 0.1 * 0.9), rel=0.2)
    assert not np.allclose(first, run(None))
    np.testing.assert_array_equal(run(b"k" * 32), run(b"k" * 32))


def summed(examples: Examples, key: bytes, task: Task, build: Callable[[], nn.Module]) -> np.ndarray:
    """Train one step on all examples, without noise; return the sum of their gradients, each shortened to CLIP."""
    torch.manual_seed(0)
    model = build().to(task.dtype)
    before = [weight.detach().clone() for weight in model.parameters()]
    train_privately(
        task,
        model,
        examples,
        steps=PrivateSteps(count=1, sampling=1.0),
        clip_norm=CLIP,
        noise_multiplier=0.0,
        optimizer=Sgd(model.parameters(), lr=1.0, momentum=0.0, weight_decay=0.0, maximize=False),
        key=key,
        augment=task.augment,
    )
    moved = [(old - new).flatten() for old, new in zip(before, model.parameters(), strict=True)]
    return torch.cat(moved).detach().numpy() * len(examples)


def neighbours_mixed(inputs: Tensor, _: torch.Generator) -> Tensor:
    """As mixup does."""
    return (inputs + inputs.flip(0)) / 2


def test_an_augmentation_that_mixes_examples_puts_none_into_anothers_gradient():
    """One sample less changes the sum by at most the clip norm; mixed it changed all of them."""
    task, _ = of(lambda: nn.Linear(2, 3))
    whole = data(12)
    strong = Examples(whole.inputs * 50, whole.targets, whole.ids)
    mixing = replace(task, augment=neighbours_mixed)
    with_it, without = (
        summed(one, b"k" * 32, mixing, lambda: nn.Linear(2, 3))
        for one in (strong, strong.select(np.arange(11)))
    )
    assert np.linalg.norm(with_it - without) <= CLIP * (1 + 1e-6)


def test_what_dropout_and_augmentation_draw_is_not_known_by_the_seed_of_the_run():
    """By a seed that the server knows one sample more would change what the others' gradients are."""

    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(2, 64), nn.Dropout(0.5), nn.Linear(64, 3))

    task, _ = of(build)
    for augment in (None, lambda inputs, generator: inputs + torch.randn(inputs.shape, generator=generator)):
        own = replace(task, augment=augment)
        first, other, again = (summed(data(), key * 32, own, build) for key in (b"k", b"l", b"k"))
        assert np.linalg.norm(first - other) > 1e-3
        np.testing.assert_array_equal(first, again)


def test_an_augmentation_that_makes_more_of_one_example_is_refused():
    task, _ = of(lambda: nn.Linear(2, 3))
    own = replace(task, augment=lambda inputs, _: torch.cat([inputs, inputs]))
    with raises(AppError, "augment"):
        summed(data(), b"k" * 32, own, lambda: nn.Linear(2, 3))


def test_steps_are_those_of_the_passes():
    assert PrivateSteps.of(100, 10, 2) == PrivateSteps(count=20, sampling=0.1)
    assert PrivateSteps.of(5, 32, 3) == PrivateSteps(count=3, sampling=1.0)


def test_it_learns_where_noise_is_small():
    task, _ = of(lambda: nn.Linear(2, 3))
    inputs = torch.randn(300, 2, generator=torch.Generator().manual_seed(1))
    examples = Examples(inputs, (inputs[:, 0] > 0).long(), np.array([f"s{number}" for number in range(300)]))
    settings = TrainingSettings(
        epochs=5, batch_size=30, learning_rate=0.5, sample_noise=0.5, sample_clip_norm=1.0
    )
    trained = train(task, initial_parameters(task, 0), examples, settings)
    assert trained.loss < 0.6


def test_a_training_function_of_the_app_gets_no_noise_and_is_refused():
    task, _ = of(lambda: nn.Linear(2, 3))
    own = replace(task, train=lambda *_: 0.0)
    with pytest.raises(AppError, match="built-in training"):
        train(own, initial_parameters(own, 0), data(), TrainingSettings(sample_noise=1.0))


RUNS, DELTA, CLIP = 800, 0.05, 1.0  # the noise has no seed: with 400 runs the control fails once in 36


def attacked(share: float) -> tuple[float, float]:
    """Return the ε that is certified for one sample, and what an attacker has shown (95 %) with a share of the noise.

    Two shadow sites, with a sample and without. Its gradient is the only one that touches one weight, and it is always
    drawn; the attacker looks at how far that weight has moved.
    """
    steps = PrivateSteps(count=3, sampling=1.0)
    noise = least_noise_multiplier(steps.with_noise(0.0), epsilon=1.0, delta=DELTA)
    task, _ = of(lambda: nn.Linear(2, 3))
    mild = torch.zeros(4, 2)
    mild[:, 1] = 0.5
    strong = torch.tensor([[100.0, 0.0]])

    def moved(*, with_it: bool) -> float:
        inputs = torch.cat([mild, strong]) if with_it else mild
        examples = Examples(
            inputs,
            torch.zeros(len(inputs), dtype=torch.int64),
            np.array([f"s{n}" for n in range(len(inputs))]),
        )
        model = nn.Linear(2, 3, bias=False).double()
        nn.init.zeros_(model.weight)
        train_privately(
            task,
            model,
            examples,
            steps=steps,
            clip_norm=CLIP,
            noise_multiplier=share * noise,
            optimizer=Sgd(
                model.parameters(), lr=len(inputs) * 1e-3, momentum=0.0, weight_decay=0.0, maximize=False
            ),
        )
        direction = np.array([2.0, -1.0, -1.0]) / math.sqrt(6)
        return float(model.weight.detach().numpy()[:, 0] @ direction) * 1e3

    with_it = np.array([moved(with_it=True) for _ in range(RUNS)])
    without = np.array([moved(with_it=False) for _ in range(RUNS)])
    certified = spent_epsilon([steps.with_noise(noise)], delta=DELTA)
    return certified, shown_by(with_it, without, cut=3 * CLIP)


@pytest.mark.slow
@pytest.mark.long
def test_an_attacker_with_shadow_sites_shows_less_than_is_certified_and_more_with_half_the_noise():
    """The second is the control: the attack would have found it.

    In the gate test_noisy_fine_tuning.py attacks the noise of a deletion.
    """
    certified, shown = attacked(1.0)
    assert shown < certified <= 1.0
    certified, shown = attacked(0.5)
    assert shown > certified
