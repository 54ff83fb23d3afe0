"""Local training and evaluation, against closed forms and for what they must not touch."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tests.tasks import initial_model, noise
from tests.waiting import WAIT_S
from unlearning.errors import DataError
from unlearning.evaluation import evaluate, evaluate_and_predict, predict
from unlearning.local_training import OptimizerName
from unlearning.parameters import flatten
from unlearning.tasks import Examples, TaskSettings, load_site, make_task
from unlearning.tasks.task import PerExample
from unlearning.training import TrainingSettings, initial_parameters, train

DIGITS = TaskSettings(num_clients=5, model="mlp")
TASK = make_task(DIGITS)
EXACT = make_task(TaskSettings(dataset="npz", num_classes=3, input_shape="4", dtype="float64"))
DROPPING = replace(TASK, build_model=lambda: nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 10)))
BLOBS = noise(12, num_inputs=4, num_classes=3)
NONE = np.zeros(0, dtype=np.intp)


def digits() -> Examples:
    return load_site(DIGITS, 0).train


def log_probabilities(vector: NDArray[np.float64], inputs: NDArray[np.float64]) -> NDArray[np.float64]:
    """Of logistic regression, from its definition; `vector` is the weight (3, 4), then the bias (3,)."""
    logits = inputs @ vector[:12].reshape(3, 4).T + vector[12:]
    return np.asarray(logits - np.log(np.exp(logits).sum(axis=1, keepdims=True)))


def test_one_step_of_sgd_equals_the_closed_form() -> None:
    """θ − η ((p − y)ᵀx/n + wd θ) on logistic regression in float64; the loss is the one before the step."""
    examples, start = BLOBS, initial_parameters(EXACT, 1).astype(np.float64)
    settings = TrainingSettings(learning_rate=0.3, weight_decay=0.1, batch_size=12)
    trained = train(EXACT, start, examples, settings)

    inputs, labels = examples.inputs.numpy(), examples.targets.numpy()
    log_p = log_probabilities(start, inputs)
    error = np.exp(log_p) - np.eye(3)[labels]
    gradient = np.concatenate([(error.T @ inputs / 12).ravel(), error.mean(axis=0)])
    expected = start - 0.3 * (gradient + 0.1 * start)
    np.testing.assert_allclose(trained.parameters, expected, rtol=0, atol=1e-14)
    assert trained.loss == pytest.approx(-log_p[np.arange(12), labels].mean(), abs=1e-14)
    assert trained.num_examples == 12


def test_momentum_carries_the_last_step_on() -> None:
    """Two full-batch steps: θ₂ = θ₁ − η (g₁ + μ g₀), with g from steps without momentum."""
    examples, start = BLOBS, initial_parameters(EXACT, 1)
    step = TrainingSettings(learning_rate=0.3, batch_size=12)
    first = train(EXACT, start, examples, step).parameters
    second = train(EXACT, first, examples, step).parameters
    both = train(EXACT, start, examples, replace(step, epochs=2, momentum=0.9)).parameters
    np.testing.assert_allclose(both, second + 0.9 * (first - start), rtol=0, atol=1e-14)


class HalfUsed(nn.Module):
    """Its second layer takes no part from the second step on, and a third never does."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.later, self.never = nn.Linear(4, 3), nn.Linear(4, 3), nn.Linear(4, 3)
        self.calls = 0

    def forward(self, inputs: Tensor) -> Tensor:
        self.calls += 1
        outputs: Tensor = self.first(inputs)
        return outputs + self.later(inputs) if self.calls == 1 else outputs


@pytest.mark.parametrize("build_model", [EXACT.build_model, HalfUsed])
@pytest.mark.parametrize(
    ("optimizer", "changes"),
    [
        (torch.optim.SGD, {}),
        (torch.optim.SGD, {"momentum": 0.9}),
        (torch.optim.SGD, {"momentum": 0.9, "weight_decay": 0.1, "maximize": True}),
        (torch.optim.Adam, {}),
        (torch.optim.Adam, {"weight_decay": 0.1, "maximize": True}),
        (torch.optim.AdamW, {"weight_decay": 0.1}),
        (torch.optim.AdamW, {"weight_decay": 0.1, "maximize": True}),
    ],
)
def test_an_optimizer_is_torch_s_own_to_the_bit(
    build_model: Callable[[], nn.Module], optimizer: Callable[..., Any], changes: dict[str, Any]
) -> None:
    """Against the optimiser class, also for weights without a gradient."""
    task, examples = replace(EXACT, build_model=build_model), BLOBS
    name: OptimizerName = {torch.optim.Adam: "adam", torch.optim.AdamW: "adamw"}.get(optimizer, "sgd")
    settings = TrainingSettings(learning_rate=0.3, batch_size=12, epochs=4, optimizer=name, **changes)
    start = initial_parameters(task, 1)
    model = initial_model(task, 1)
    optimizer = optimizer(model.parameters(), lr=0.3, **changes, **({} if name == "sgd" else {"fused": True}))
    generator = torch.Generator().manual_seed(0)
    for _ in range(4):
        order = torch.randperm(12, generator=generator)
        optimizer.zero_grad()
        task.loss(model(examples.inputs[order]), examples.targets[order]).backward()
        optimizer.step()
    np.testing.assert_array_equal(train(task, start, examples, settings).parameters, flatten(model))


@pytest.mark.slow
def test_a_client_that_trains_imports_nothing_heavy_beside_torch() -> None:
    """A deployment starts a process for each message; each of these takes it up to a second and more.

    It pays for scikit-learn and torchvision only if its data need them.
    """
    program = """
import sys
from unlearning.tasks import TaskSettings, load_site, make_task
make_task(TaskSettings())
print({"sklearn", "torchvision", "scipy"} & sys.modules.keys() or "nothing before data is read")
import client.handlers
from unlearning.training import TrainingSettings, initial_parameters, train
settings = TaskSettings(num_clients=5, model="mlp")
task = make_task(settings)
for name in ("sgd", "adam"):
    training = TrainingSettings(clip_norm=1.0, optimizer=name)
    train(task, initial_parameters(task, 0), load_site(settings, 0).train, training)
heavy = {"torch._dynamo", "sympy", "triton", "torchvision", "sklearn", "matplotlib"}
heavy |= {"scipy.linalg", "scipy.stats", "scipy.optimize"}
print(heavy & sys.modules.keys() or "nothing after training")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=WAIT_S)
    expected = ["nothing before data is read", "nothing after training"]
    assert done.stdout.splitlines() == expected, done.stdout + done.stderr


@pytest.mark.parametrize(("optimizer", "rate"), [("sgd", 0.5), ("adam", 0.003), ("adamw", 0.003)])
def test_training_lowers_the_loss(optimizer: OptimizerName, rate: float) -> None:
    """On digits, with each optimizer, the loss on the training data falls to less than half."""
    examples, start = digits(), initial_parameters(TASK, 0)
    settings = TrainingSettings(epochs=5, optimizer=optimizer, learning_rate=rate)
    trained = train(TASK, start, examples, settings)
    before = evaluate(TASK, start, examples)
    after = evaluate(TASK, trained.parameters, examples)
    assert after.loss.mean() < before.loss.mean() / 2
    assert after.score.mean() > before.score.mean() + 0.3


def test_the_seed_decides_the_outcome() -> None:
    """Same seed, same bits; another seed, another order of examples and another model."""
    examples, start = digits(), initial_parameters(TASK, 0)
    first, again, other = (
        train(TASK, start, examples, TrainingSettings(seed=seed)).parameters for seed in (1, 1, 2)
    )
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_dropout_follows_the_seed_alone() -> None:
    """It draws from torch's global state, whose past must not matter, and which stays as it was."""
    start, trained = initial_parameters(DROPPING, 0), []
    for past in (5, 6):
        torch.manual_seed(past)
        before = torch.get_rng_state()
        trained.append(train(DROPPING, start, digits(), TrainingSettings(seed=1)).parameters)
        assert torch.equal(torch.get_rng_state(), before)
    assert np.array_equal(*trained)


def test_what_training_is_given_is_not_changed() -> None:
    """Neither the vector nor the examples."""
    examples, start = digits(), initial_parameters(TASK, 0)
    inputs, vector = examples.inputs.clone(), start.copy()
    train(TASK, start, examples, TrainingSettings())
    assert np.array_equal(start, vector)
    assert torch.equal(examples.inputs, inputs)


def test_augmentation_is_used_only_when_asked_for() -> None:
    """A task whose augmentation blanks every input: with it, the weights of the first layer stay."""

    def blank(inputs: Tensor, generator: torch.Generator) -> Tensor:
        return torch.zeros_like(inputs)

    task, examples = replace(EXACT, augment=blank), BLOBS
    start = initial_parameters(task, 0)
    augmented = train(task, start, examples, TrainingSettings(augment=True)).parameters
    plain = train(task, start, examples, TrainingSettings(augment=False)).parameters
    assert np.array_equal(augmented[:12], start[:12])
    assert not np.array_equal(plain[:12], start[:12])


def test_nothing_to_train_on_is_refused() -> None:
    with pytest.raises(DataError):
        train(TASK, initial_parameters(TASK, 0), digits().select(NONE), TrainingSettings())


def test_measures_equal_their_definition() -> None:
    """Loss, correctness and true-class probability of every example, in order, whatever the batches."""
    examples, vector = BLOBS, initial_parameters(EXACT, 3).astype(np.float64)
    measured = evaluate(EXACT, vector, examples, batch_size=5)
    labels = examples.targets.numpy()
    log_p = log_probabilities(vector, examples.inputs.numpy())
    own = log_p[np.arange(12), labels]
    np.testing.assert_allclose(measured.loss, -own, rtol=0, atol=1e-14)
    np.testing.assert_allclose(measured.confidence, np.exp(own), rtol=0, atol=1e-14)
    assert measured.score.tolist() == (log_p.argmax(axis=1) == labels).astype(float).tolist()
    assert 0 < measured.score.mean() < 1


def test_one_pass_gives_the_bits_of_two() -> None:
    """Measures, and the outputs of the chosen examples in their order, are those of each pass alone."""
    examples, vector = digits(), initial_parameters(TASK, 3)
    chosen = np.random.default_rng(0).permutation(len(examples))[:70]
    measured, outputs = evaluate_and_predict(TASK, vector, examples, chosen, batch_size=50)
    alone = evaluate(TASK, vector, examples, batch_size=50)
    for name in ("loss", "score", "confidence"):
        assert np.array_equal(getattr(measured, name), getattr(alone, name))
    assert np.array_equal(outputs, predict(TASK, vector, examples, batch_size=50)[chosen])
    assert outputs.shape == (70, 10)


def test_evaluation_is_in_eval_mode() -> None:
    """Dropout is off: two evaluations agree."""
    vector = initial_parameters(DROPPING, 0)
    first, again = (evaluate(DROPPING, vector, digits()).loss for _ in range(2))
    assert np.array_equal(first, again)


def test_measuring_nothing_gives_nothing() -> None:
    vector, nothing = initial_parameters(TASK, 0), digits().select(NONE)
    measured = evaluate(TASK, vector, nothing)
    assert len(measured) == len(measured.score) == len(measured.confidence) == 0
    both, outputs = evaluate_and_predict(TASK, vector, nothing, NONE)
    assert len(both) == len(outputs) == 0


def test_building_a_model_leaves_the_global_random_state_alone() -> None:
    """The same seed gives the same model, and what is drawn afterwards is as if none was built."""
    before = torch.get_rng_state()
    initial_model(TASK, 1)
    assert torch.equal(torch.get_rng_state(), before)
    assert np.array_equal(initial_parameters(TASK, 1), initial_parameters(TASK, 1))
    assert not np.array_equal(initial_parameters(TASK, 1), initial_parameters(TASK, 2))


@pytest.mark.parametrize(("channels_last", "convolves"), [(True, True), (True, False), (False, True)])
def test_the_channels_come_last_only_where_the_task_says_so_and_the_model_convolves(channels_last, convolves):
    lie_in_order: list[bool] = []

    class Noting(nn.Flatten):
        def forward(self, inputs: Tensor) -> Tensor:
            lie_in_order.append(inputs.is_contiguous())
            return super().forward(inputs)

    first = [nn.Conv2d(3, 3, 1)] if convolves else []
    evaluate_pictures(lambda: nn.Sequential(*first, Noting(), nn.Linear(48, 10)), channels_last=channels_last)
    assert lie_in_order == [not (channels_last and convolves)]


def test_a_users_network_that_views_its_features_is_measured() -> None:
    """As the network of Flower's quickstart with PyTorch does: `view` fails on features in another memory order."""

    class Viewing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convolution, self.head = nn.Conv2d(3, 4, 2), nn.Linear(36, 10)

        def forward(self, inputs: Tensor) -> Tensor:
            return self.head(self.convolution(inputs).view(-1, 36))

    assert len(evaluate_pictures(Viewing)) == 5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_buffer_of_complex_numbers_keeps_its_imaginary_part(dtype: torch.dtype) -> None:
    """As of rotary positions: a quarter turn of (1, 0) is (0, 1), by the whole model and beside frozen weights."""

    class Turning(nn.Module):
        def __init__(self, is_frozen: bool) -> None:
            super().__init__()
            self.trained = nn.Parameter(torch.zeros(2))
            self.frozen = nn.Parameter(torch.zeros(2), requires_grad=not is_frozen)
            self.register_buffer("turn", torch.tensor([1j]), persistent=False)

        def forward(self, inputs: Tensor) -> Tensor:
            turned = torch.view_as_complex(inputs) * self.turn[0]
            return torch.view_as_real(turned) + self.trained + self.frozen

    examples = Examples(torch.tensor([[1.0, 0.0]]), torch.tensor([1]), np.asarray(["0"]))
    for is_frozen in (False, True):
        task = replace(TASK, build_model=lambda frozen=is_frozen: Turning(frozen), dtype=dtype)
        assert predict(task, initial_parameters(task, 0), examples).tolist() == [[0.0, 1.0]]


def evaluate_pictures(build_model: Callable[[], nn.Module], *, channels_last: bool = False) -> PerExample:
    pictures = torch.rand(5, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    examples = Examples(pictures, torch.arange(5), np.asarray([str(i) for i in range(5)]))
    task = replace(TASK, build_model=build_model, channels_last=channels_last)
    return evaluate(task, initial_parameters(task, 0), examples)


def test_the_answer_takes_the_gradients_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """A site holds two models at once: parameters and gradients, then parameters and the answer."""
    with_gradients: list[bool] = []

    def watched(model: nn.Module) -> NDArray[np.float64]:
        with_gradients.append(any(parameter.grad is not None for parameter in model.parameters()))
        return np.asarray(flatten(model))

    start = initial_parameters(TASK, 1)
    monkeypatch.setattr("unlearning.training.flatten", watched)
    train(TASK, start, digits(), TrainingSettings())
    assert with_gradients == [False]
