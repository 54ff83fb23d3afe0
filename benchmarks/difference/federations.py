"""Small federations that forget, and what an observer of both models finds in the change."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import scipy
from numpy.typing import NDArray
from torch import nn

from benchmarks.data import prepare_for, sites_and_test
from benchmarks.difference.linear_record import (
    FoundRecord,
    Matrix,
    estimated_gram,
    record_of_change,
)
from unlearning.errors import NumericalError
from unlearning.evaluation import predict
from unlearning.local import Learnt, begin, learn, retained, unlearn
from unlearning.local.deletion import Unlearned
from unlearning.parameters import Vector
from unlearning.requests import Granularity, Target
from unlearning.tasks import TaskSettings, make_task
from unlearning.tasks.task import Examples, Task
from unlearning.training import TrainingSettings, model_with
from unlearning.verification.difference.membership import rise_of_loss

CLIENT = "0"
ROUNDS, RECOVERY = 8, 3
TRAINING = TrainingSettings(learning_rate=0.1, epochs=3, batch_size=16)
LINEAR = ("hf-online", "exact-ridge")
L2 = 1.0


@dataclass(frozen=True, slots=True)
class Federation:
    """A trained federation: what is learnt, by whom, the test data, and the model with what is kept for a method."""

    task: Task
    sites: Mapping[str, Examples]
    test: Examples
    learnt: Learnt

    @property
    def learns(self) -> Task:
        """What is learnt in the place of the task."""
        return self.learnt.learns(self.task)


def federation(method: str, dataset: str = "digits", data_dir: str = "") -> Federation:
    """Return the federation that `method` forgets in, prepared for where it needs that."""
    return _trained(settings_for(method, dataset, data_dir), prepare_for(method))


@cache
def _trained(settings: TaskSettings, prepare: str) -> Federation:
    task, (sites, test) = make_task(settings), sites_and_test(settings)
    start = begin(task, replace(TRAINING, seed=settings.seed), prepare)
    return Federation(task, sites, test, learn(task, sites, start, rounds=ROUNDS))


def settings_for(method: str, dataset: str = "digits", data_dir: str = "") -> TaskSettings:
    """Return five clients with 120 unevenly mixed examples each: an MLP, or the linear layer that a method needs."""
    return TaskSettings(
        dataset=dataset,
        data_dir=data_dir,
        model="logistic" if method in LINEAR else "mlp",
        num_clients=5,
        partition="dirichlet",
        alpha=0.5,
        max_examples=600,
    )


def forget(given: Federation, method: str, target: Target) -> tuple[Unlearned, Vector]:
    """Return the deletion, and the model after the rounds of recovery."""
    done = unlearn(method, given.task, given.learnt, given.sites, [target])
    left = retained(given.sites, [target])
    return done, learn(given.task, left, done.learnt, rounds=RECOVERY).parameters


def posteriors(given: Federation, model: Vector, examples: Examples) -> NDArray[np.float64]:
    """Return the probabilities (n, classes) that a model gives."""
    outputs = predict(given.learns, model, examples)
    found: NDArray[np.float64] = scipy.special.softmax(outputs, axis=1)
    return found


def rises(given: Federation, after: Vector, examples: Examples) -> NDArray[np.float64]:
    """Return by how much the loss of each example has risen (n,)."""
    before = posteriors(given, given.learnt.parameters, examples)
    return rise_of_loss(before, posteriors(given, after, examples), examples.targets.numpy())


def first_layer(task: Task, model: Vector) -> Matrix:
    """Return weight and bias (D, k) of a model's first layer, a dense one."""
    weighted = (one for one in model_with(task, model).modules() if list(one.parameters(recurse=False)))
    first = next(weighted)
    assert isinstance(first, nn.Linear), "the models here begin with one"
    both = np.column_stack([first.weight.detach().numpy(), first.bias.detach().numpy()])
    return both.T.astype(np.float64)


def flat(examples: Examples) -> Matrix:
    """Return the inputs (n, D − 1)."""
    return examples.inputs.flatten(1).numpy().astype(np.float64)


def records(given: Federation, method: str, after: Vector) -> dict[str, FoundRecord | None]:
    """Return what those who hold both models find of a record, by what they know beside these."""
    before, now = (first_layer(given.learns, model) for model in (given.learnt.parameters, after))
    if method != "exact-ridge":
        return {"models": _found(now - before)}
    size = sum(map(len, given.sites.values()))
    inputs = np.concatenate([flat(one) for one in given.sites.values()])
    grams = {
        "sums": estimated_gram(inputs, size, L2),
        "similar data": estimated_gram(flat(given.test), size, L2),
    }
    return {name: _found(gram @ (now - before)) for name, gram in grams.items()}


def _found(change: Matrix) -> FoundRecord | None:
    try:
        return record_of_change(change)
    except NumericalError:
        return None


def error(found: FoundRecord | None, forgotten: Examples) -> float:
    """Return the relative error to the nearest of the forgotten records; 1 where there is none, as of a guess of 0."""
    if found is None or not np.isfinite(found.features).all():
        return 1.0
    inputs = flat(forgotten)
    return float(min(np.linalg.norm(inputs - found.features, axis=1) / np.linalg.norm(inputs, axis=1)))


def samples(examples: Examples) -> Target:
    """Return the deletion of these examples of the client."""
    return Target(Granularity.SAMPLE, CLIENT, frozenset(map(str, examples.ids.tolist())))
