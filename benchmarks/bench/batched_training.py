"""Local training of many models of one architecture at once, each with its own seed, by one vectorised step.

A step of a linear head or a small network costs more in calls than in arithmetic. Many retrained models, as
distributions need them, train the same examples in orders of their own; one call then does the step of all. Each
model goes the way that `train` would take it, to rounding.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import grad, vmap

from unlearning.errors import DataError
from unlearning.parameters import layout, outputs_with
from unlearning.tasks.task import Examples, Task
from unlearning.training import TrainingSettings, initial_parameters, local_seed, model_with, structure

Vectors = NDArray[np.floating]
"""Models, one a row (m, d)."""

_LAYERS = (nn.Sequential, nn.Flatten, nn.Linear, nn.ReLU)


def suits(task: Task, training: TrainingSettings) -> bool:
    """Return whether training many at once is the same and pays: a linear head or an MLP, plain SGD."""
    changed = training.augment or training.maximize or training.clip_norm
    if training.optimizer != "sgd" or changed or task.shard is not None or task.train is not None:
        return False
    return all(type(module) in _LAYERS for module in structure(task).modules())


def train_many(
    task: Task, models: Vectors, examples: Examples, settings: Sequence[TrainingSettings]
) -> Vectors:
    """Train each model (m, d) on the same examples, in the order of its own seed; the given ones stay.

    settings: one a model, alike but for the seed.

    Raises:
        DataError: there is no example to train on.
    """
    if len(examples) == 0:
        raise DataError("There is no example left to train on.")
    network = model_with(task, models[0])
    slots = layout(network)
    stacked = torch.from_numpy(np.array(models)).to(task.dtype)
    weights = {slot.name: stacked[:, slot.start : slot.stop].reshape(-1, *slot.shape) for slot in slots}
    momentum = {name: torch.zeros_like(weight) for name, weight in weights.items()}
    inputs, targets = examples.inputs.to(task.dtype), examples.targets

    def loss(own: dict[str, Tensor], batch: Tensor, labels: Tensor) -> Tensor:
        return task.loss(outputs_with(network, own, batch), labels)

    gradients = vmap(grad(loss))
    shared = settings[0]
    generators = [torch.Generator().manual_seed(own.seed) for own in settings]
    for _ in range(shared.epochs):
        orders = torch.stack([torch.randperm(len(examples), generator=each) for each in generators])
        for batch in torch.split(orders, shared.batch_size, dim=1):
            found = gradients(weights, inputs[batch], targets[batch])
            for name, weight in weights.items():
                step = found[name]
                if shared.weight_decay:
                    step = step + shared.weight_decay * weight
                if shared.momentum:
                    step = momentum[name].mul_(shared.momentum).add_(step)
                weight.sub_(step, alpha=shared.learning_rate)
    flat = [weights[slot.name].reshape(len(stacked), -1) for slot in slots]
    trained: Vectors = torch.cat(flat, dim=1).numpy()
    return trained


def train_federations(
    task: Task,
    data: Mapping[str, Examples],
    schedule: Callable[[int], TrainingSettings],
    *,
    rounds: int,
    seeds: Sequence[int],
) -> Vectors:
    """Return the models (m, d) of federated averaging with these seeds, all clients in every round.

    data: by client id; a client without examples takes no part.
    schedule: how clients train in a round, from 1; its seed is replaced.
    """
    taking_part = {client: examples for client, examples in sorted(data.items()) if len(examples)}
    total = sum(map(len, taking_part.values()))
    models: Vectors = np.stack([initial_parameters(task, seed) for seed in seeds])
    for number in range(1, rounds + 1):
        mean = np.zeros(models.shape, dtype=np.float64)
        for client, examples in taking_part.items():
            settings = [replace(schedule(number), seed=local_seed(seed, client, number)) for seed in seeds]
            mean += len(examples) / total * train_many(task, models, examples, settings)
        models = mean.astype(models.dtype)
    return models
