"""What a task promises is looked at on a few examples before anything is learnt."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.raising import raises
from tests.tasks import tiny_classification
from unlearning.errors import AppError, DataError, UnsupportedRequest
from unlearning.local import begin, learn, unlearn
from unlearning.requests import Granularity, Target
from unlearning.task_contract import check_task, couples_examples
from unlearning.tasks.checks import check_examples
from unlearning.tasks.losses import binary_cross_entropy, binary_measures
from unlearning.tasks.own_code import name_of
from unlearning.tasks.task import Examples, numbered
from unlearning.training import TrainingSettings

TASK = tiny_classification(lambda: nn.Linear(2, 2))
TRAINING = TrainingSettings(epochs=5, batch_size=4, learning_rate=0.3, weight_decay=0.1)
CLIENT = Target(Granularity.CLIENT, "a")


def rows(count: int = 9, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def examples(targets: torch.Tensor | None = None, seed: int = 0) -> Examples:
    inputs = rows(seed=seed)
    return Examples(inputs, (inputs[:, 0] > 0).long() if targets is None else targets, numbered(9))


def scalar_model() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 1), nn.Flatten(0))


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.layer(inputs), inputs


LABELS = (rows()[:, 0] > 0).long()
BROKEN = {
    "floats as classes": (TASK, LABELS.double(), "no-classes"),
    "one logit for two classes": (replace(TASK, build_model=lambda: nn.Linear(2, 1)), LABELS, "no-classes"),
    "no dimension for classes": (replace(TASK, build_model=scalar_model), LABELS, "no-classes"),
    "a class that is not there": (TASK, LABELS + 1, "no-classes"),
    "several labels as classes": (TASK, functional.one_hot(LABELS, 2), "no-classes"),
    "rows that are mixed up": (
        replace(TASK, build_model=lambda: nn.Sequential(nn.Linear(2, 2), nn.Flatten(0), nn.Unflatten(0, (-1, 1)))),
        LABELS,
        "no-row-per-example",
    ),
    "two outputs": (replace(TASK, build_model=Pair), LABELS, "no-tensor"),
    "another number of inputs": (replace(TASK, build_model=lambda: nn.Linear(3, 2)), LABELS, "raised"),
    "a loss for other targets": (
        replace(TASK, loss=lambda outputs, targets: functional.binary_cross_entropy(outputs, targets)),
        LABELS,
        "raised",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", BROKEN)
def test_what_does_not_fit_is_refused_before_anything_is_learnt(what):
    """By its cause; a class that would match no example could not be forgotten."""
    task, targets, code = BROKEN[what]
    data = {"a": examples(targets), "b": examples(targets)}
    with pytest.raises(AppError) as caught:
        learn(task, data, begin(task, TRAINING))
    assert caught.value.code == code
    assert "\n" not in str(caught.value)


def test_what_fits_passes():
    """Classes; and labels, whose score has another name."""
    check_task(TASK, examples())
    labels = replace(TASK, score_name="share of labels", num_classes=0, loss=binary_cross_entropy)
    check_task(replace(labels, per_example=binary_measures), examples(functional.one_hot(LABELS, 2)))


def contrastive(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(outputs @ outputs.T, torch.arange(len(outputs)))


COUPLED = {
    "pairs": contrastive,
    "maximum": lambda outputs, targets: functional.cross_entropy(outputs, targets, reduction="none").max(),
    "sum": lambda outputs, targets: functional.cross_entropy(outputs, targets, reduction="sum"),
    "weights": nn.CrossEntropyLoss(weight=torch.tensor([1.0, 9.0], dtype=torch.float64)),
}


@pytest.mark.parametrize("what", COUPLED)
def test_a_loss_that_couples_examples_is_recognised_and_no_derivative_taken(what):
    """At admission, and by `prepare` before the first round."""
    task, data = replace(TASK, loss=COUPLED[what]), {"a": examples(), "b": examples(seed=1)}
    assert couples_examples(task, data["a"])
    learnt = learn(task, data, begin(task, replace(TRAINING, epochs=1)))
    for method in ("newton-cg", "hf-kcu", "hf-kcu-influence"):
        with pytest.raises(UnsupportedRequest) as caught:
            unlearn(method, task, learnt, data, [CLIENT])
        assert caught.value.code == "coupled-loss"
    with pytest.raises(AppError) as refused:
        learn(task, data, begin(task, TRAINING, "hf-online"))
    assert refused.value.code == "coupled-loss"


def test_a_loss_of_ones_own_that_is_a_mean_is_not_refused():
    """The same weights, taken as a mean of the examples' own losses."""
    weights = torch.tensor([1.0, 9.0], dtype=torch.float64)

    def weighted(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return (weights[targets] * functional.cross_entropy(outputs, targets, reduction="none")).mean()

    assert not couples_examples(replace(TASK, loss=weighted), examples())


def test_a_loss_with_class_weights_is_where_the_outputs_are():
    """As on an accelerator, which the weights of a module do not reach by themselves."""
    given = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 9.0]))
    task = replace(TASK, loss=given)
    assert name_of(task.loss) == "torch.nn.modules.loss.CrossEntropyLoss"
    task.loss(torch.zeros(3, 2), LABELS[:3])
    there = torch.device("meta")
    assert task.loss(torch.zeros(3, 2, device=there), LABELS[:3].to(there)).device == there
    assert given.weight.device == there


class Weighted(nn.Module):
    """Learns how much each output counts, as losses of several tasks do."""

    def __init__(self) -> None:
        super().__init__()
        self.shares = nn.Parameter(torch.zeros(2, dtype=torch.float64))

    def forward(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(outputs * self.shares.exp(), targets)


def test_parameters_of_a_loss_are_refused():
    """Nothing would train them, and none of them would travel; a training loop of one's own may do as it likes."""
    with raises(AppError, "loss-parameters"):
        replace(TASK, loss=Weighted())
    replace(TASK, loss=Weighted().requires_grad_(False))
    replace(TASK, loss=Weighted(), train=lambda *_: 0.0)


@pytest.mark.parametrize("outputs", [1, 3])
def test_labels_are_forgotten_as_retraining_forgets_them(outputs):
    """One logit and several; Newton's step goes more than half of the way to the model that never had the client."""
    task = replace(
        TASK,
        score_name="share of labels",
        num_classes=0,
        build_model=lambda: nn.Linear(2, outputs),
        loss=binary_cross_entropy,
        per_example=binary_measures,
    )
    kinds = {"a": [1.0, -1.0], "b": [1.0, 0.0], "c": [1.0, 0.5]}
    data = {
        client: examples((rows(seed=n) @ torch.tensor(sign).double() > 0)[:, None].repeat(1, outputs).double(), n)
        for n, (client, sign) in enumerate(kinds.items())
    }  # fmt: skip
    learnt = learn(task, data, begin(task, TRAINING), rounds=10)
    rest = {client: data[client] for client in ("b", "c")}
    retrained = learn(task, rest, begin(task, TRAINING), rounds=10).parameters
    unlearned = unlearn("newton-cg", task, learnt, data, [CLIENT]).parameters
    before, after = (np.linalg.norm(model - retrained) for model in (learnt.parameters, unlearned))
    assert after < before / 2, (after, before)
    sharded = learn(task, data, begin(task, TRAINING, "sisa shards=2"), rounds=2)
    without = learn(task, rest, begin(task, TRAINING, "sisa shards=2"), rounds=2)
    exact = unlearn("sisa", task, sharded, data, [CLIENT])
    assert np.array_equal(exact.parameters, without.parameters)
    assert_mean_of_shards(exact.learnt.learns(task), exact.parameters, data["b"])


def assert_mean_of_shards(task, parameters, some):
    """The outputs of an ensemble that tells no classes apart are the mean of its shards'."""
    from unlearning.training import model_with

    ensemble = model_with(task, parameters).eval()
    with torch.no_grad():
        voting = [
            model(some.inputs) for model, vote in zip(ensemble.shards, ensemble.votes, strict=True) if vote
        ]
        assert torch.allclose(ensemble(some.inputs), torch.stack(voting).mean(dim=0))


def test_several_tensors_are_refused_where_one_is_perturbed():
    """`Examples.inputs` is one tensor; what reads several takes batches."""
    both = Examples({"x": rows(), "y": rows()}, LABELS, numbered(9))
    with pytest.raises(DataError) as caught:
        _ = both.inputs
    assert caught.value.code == "many-tensors"
    assert set(both.select(np.array([3, 1])).batch(slice(None))[0]) == {"x", "y"}


def test_tensors_of_different_lengths_are_refused():
    """Each needs a row per example."""
    with pytest.raises(DataError):
        Examples({"x": rows(), "y": rows(8)}, LABELS, numbered(9))


def test_no_examples_need_no_texts_as_names():
    """A comprehension over no rows gives an array of floats, as in the app that `new` writes."""
    check_examples(Examples(rows(0), LABELS[:0], np.array([])), "a test set")
