"""Local training: one function for every task, client and method."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Annotated, TypeAlias

import torch
from pydantic import Field, NonNegativeFloat, PositiveFloat
from torch import nn

from unlearning.certified.private_samples import PrivateSteps, train_privately
from unlearning.errors import AppError, DataError, UpdateRefused
from unlearning.local_layers import freeze_local
from unlearning.local_training import LocalTraining
from unlearning.optimizers import Adam, Optimizer, Sgd, restore, state_of
from unlearning.own_training import run_own_training
from unlearning.parameters import (
    Vector,
    at_home,
    count_not_finite,
    flatten,
    has_frozen,
    hash_of_tensors,
    hold_constants,
    hold_statistics,
    layout,
    load,
    refuse_odd_parameters,
    size_of_vector,
)
from unlearning.runtime.devices import computing_device, drawing, inputs_for, targets_for
from unlearning.runtime.stores import Arrays
from unlearning.structures import from_template, template, without_weights
from unlearning.tasks.batches import Shuffled, data_loader
from unlearning.tasks.own_code import call_own, name_of
from unlearning.tasks.task import Examples, Task
from unlearning.training_step import RecordedStep, Step, where_steps_can_be_recorded


@dataclass(frozen=True, kw_only=True)
class TrainingSettings(LocalTraining):
    """How a client trains.

    maximize: climb the loss instead of descending it.
    clip_norm: the gradient is scaled to this Euclidean norm where it is longer; 0 for no bound.
    proximal_mu: the weight of FedProx's term, half the squared distance from the weights that training starts from.
    seed: decides the order of examples, the augmentation and dropout.
    sample_noise: the noise multiplier of training with differential privacy for single samples; 0 for training without.
        sample_clip_norm: to which each example's gradient is then shortened.
    """

    maximize: bool = False
    clip_norm: NonNegativeFloat = 0.0
    proximal_mu: NonNegativeFloat = 0.0
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] = 0
    sample_noise: NonNegativeFloat = 0.0
    sample_clip_norm: PositiveFloat = 1.0


@dataclass(frozen=True, slots=True)
class Trained:
    """The outcome of local training: the new model (d,), how many examples, their mean loss.

    optimizer: what the optimiser has gathered (`unlearning.optimizers`); empty where that is not kept.
    local: the local layers' values by name (`unlearning.local_layers`), which stay at the site.
    """

    parameters: Vector
    num_examples: int
    loss: float
    optimizer: Arrays = field(default_factory=dict)
    local: Arrays = field(default_factory=dict)


def local_seed(seed: int, client_id: str, server_round: int) -> int:
    """Return a seed for one client's work in one round: the same in simulation and in a deployment."""
    digest = hashlib.sha256(f"{seed}:{server_round}:{client_id}".encode()).digest()
    return int.from_bytes(digest[:4], "big") % (2**31)


def initial_parameters(task: Task, seed: int) -> Vector:
    """Return the flat vector (d,) that training starts from, the same for the same seed: untrained or pre-trained.

    Raises:
        DataError: the pre-trained weights cannot be loaded.
    """
    model = _untrained(task, seed)
    _load_pretrained(task, model)
    return flatten(model)


def starting_parameters(task: Task, seed: int) -> Vector:
    """Return `initial_parameters` for a new federation, which nothing could be learnt from if one were not finite.

    Raises:
        AppError: one is not; names its parameter. DataError: as `initial_parameters`.
    """
    found = initial_parameters(task, seed)
    if not count_not_finite(found):
        return found
    name, count = next(
        (slot.name, count)
        for slot in layout(structure(task))
        if (count := count_not_finite(found[slot.start : slot.stop]))
    )
    raise AppError(
        f"The model of {task.name} is built with {count:,} values of {name} that are not finite, so no answer could "
        "be accepted. Initialise it where it is built (torch.empty does not).",
        code="unusable-start",
        parameter=name,
    )


def untrained_parameters(task: Task, seed: int) -> Vector:
    """Return random weights (d,), not pre-trained ones: a fresh head, or a point to measure distances from."""
    return flatten(_untrained(task, seed))


def structure(task: Task) -> nn.Module:
    """Return the model's modules with the names, shapes and ties of their tensors, and no weights.

    All tensors are on torch's meta device, so what this model computes cannot be read. One that computes is made by
    `model_with`.
    """
    made = _template(task)
    return without_weights(_untrained(task, seed=0) if made is None else made)


def _untrained(task: Task, seed: int) -> nn.Module:
    """Return the model as its builder makes it, with random weights; the global random states are left as they were.

    Raises:
        AppError: it makes none, nothing of it would be trained, a parameter has no shape or shares another's memory,
            or the local layers are not what they can be.
    """
    with drawing(seed, computing_device()):
        model = call_own(task.build_model, nn.Module)
    refuse_odd_parameters(model)
    # Not `to`, which drops the imaginary part of complex buffers.
    model = model.double() if task.dtype == torch.float64 else model.float()
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise AppError(
            f"No parameter of the model of {task.name} has requires_grad; nothing would be trained.",
            code="nothing-trained",
        )
    hold_constants(model)
    hold_statistics(model)
    freeze_local(task, model)
    return model


def _load_pretrained(task: Task, model: nn.Module) -> None:
    if task.load_pretrained is not None:
        with torch.random.fork_rng(devices=[]):
            task.load_pretrained(model)


def model_with(task: Task, parameters: Vector) -> nn.Module:
    """Return the model with `parameters` (d,) and the frozen part that the task makes, in training mode.

    The frozen part is that of the seed 0, pre-trained where the task has such weights: the same on every machine.

    Raises:
        UpdateRefused: `parameters` does not have the model's length.
    """
    made = _template(task)
    model = _frozen_base(task) if made is None else from_template(made)
    shards, rest = divmod(parameters.size, size_of_vector(model) + 1)
    if parameters.ndim == 1 and shards and not rest and task.shard is None:
        raise UpdateRefused(
            f"It has the length of {shards} shard(s) of {task.name}, which SISA trains, and not of one model. Give the "
            "task that they learn together: in the library `learnt.learns(task)`.",
            code="shards",
        )
    load(model, parameters)
    return model


def task_of(task: Task, model: nn.Module) -> Task:
    """Return `task` with this very model, whose frozen weights stay as they are, in the place of the one it builds."""
    return replace(task, build_model=_ThisModel(model), load_pretrained=None, local_layers=())


@dataclass(frozen=True, eq=False)
class _ThisModel:
    model: nn.Module

    def __call__(self) -> nn.Module:
        return self.model


def _template(task: Task) -> nn.Module | None:
    if isinstance(task.build_model, _ThisModel):
        return None
    return _template_of(replace(task, load_pretrained=None))  # with local layers each message has its own


@lru_cache(maxsize=4)
def _template_of(task: Task) -> nn.Module | None:
    return template(_untrained(task, seed=0))


@lru_cache(maxsize=4)
def frozen_part(task: Task) -> str:
    """Return the hash of what of the model stays at home; empty where no parameter is frozen."""
    return hash_of_tensors(at_home(_frozen_base(task)))


def check_frozen_part(task: Task, expected: str) -> None:
    """Refuse to work on a model whose frozen part is another than the server's.

    expected: the server's hash; empty where it names none.

    Raises:
        AppError: the two differ.
    """
    if expected and frozen_part(task) != expected:
        raise AppError(
            f"The frozen part of the model of {task.name} has the SHA-256 {frozen_part(task)[:16]}… here and "
            f"{expected[:16]}… at the server, so updates would not fit. Bring the files and packages that it is made "
            "from to the same version.",
            code="other-frozen-part",
            here=frozen_part(task),
            server=expected,
        )


def _frozen_base(task: Task) -> nn.Module:
    model = _untrained(task, seed=0)
    if has_frozen(model):
        _load_pretrained(task, model)
    return model


AfterStep: TypeAlias = Callable[[nn.Module], bool]
"""May change the model in place after an optimiser step; whether training ends here."""


def train(
    task: Task,
    parameters: Vector,
    examples: Examples,
    settings: TrainingSettings,
    after_step: AfterStep | None = None,
    kept: Arrays | None = None,
) -> Trained:
    """Train from `parameters` (d,) on `examples`; neither is changed.

    The reported loss is the mean over all steps' batches. The last batch of an epoch may be smaller.

    kept: what an optimiser of the same kind had gathered, perhaps nothing, to go on with; None to start again.

    Raises:
        DataError: there is no example to train on.
        AppError: the loss, the task's own training or its Dataset does not do what it promises.
    """
    if len(examples) == 0:
        raise DataError("There is no example left to train on.")
    if settings.sample_noise and (task.train is not None or settings.proximal_mu):
        raise AppError(
            "No noise is added in an app's own training function, nor to a proximal term. Training with privacy for "
            "single samples needs the built-in training of FedAvg.",
            code="own-training",
        )
    device = computing_device()
    model = model_with(task, parameters)
    del parameters  # where the caller does not keep it, its room is that of the gradients
    model.to(device).train()
    optimizer = None if task.train is not None else _optimizer(model, settings)
    if kept and optimizer is not None:
        restore(optimizer, kept)
    # A model of the user's own may have dropout, and own training mix examples by NumPy.
    with drawing(settings.seed, device):
        if task.train is None:
            assert optimizer is not None
            if settings.sample_noise:
                loss = _private_epochs(task, model, examples, settings, optimizer)
            else:
                loss = _epochs(task, model, examples, settings, optimizer, after_step)
        else:
            if settings.proximal_mu:
                raise AppError(
                    f"The training function {name_of(task.train)} has no proximal term, and this run's strategy asks "
                    f"for one of {settings.proximal_mu:g}. Choose another strategy, or the built-in training.",
                    code="no-proximal-term",
                )
            generator = torch.Generator().manual_seed(settings.seed)
            loading, pin = examples.source.loading, device.type == "cuda"
            loader = data_loader(examples, settings.batch_size, generator, loading, pin=pin)
            loss = run_own_training(task, model, loader, settings, after_step)
    gathered = state_of(optimizer) if kept is not None and optimizer is not None else {}
    del optimizer
    model.zero_grad()  # their room is the answer's
    return Trained(flatten(model), len(examples), loss, gathered)


def _epochs(
    task: Task,
    model: nn.Module,
    examples: Examples,
    settings: TrainingSettings,
    optimizer: Optimizer,
    after_step: AfterStep | None,
) -> float:
    """Run the local epochs on `model`, in place; the mean loss over all steps' batches."""
    device = next(model.parameters()).device
    generator = torch.Generator().manual_seed(settings.seed)
    order = Shuffled(len(examples), settings.batch_size, generator)
    batches = examples.batches(order, pin=device.type == "cuda")
    with where_steps_can_be_recorded(device):
        step = Step(task, model, optimizer, settings.clip_norm, settings.proximal_mu)
        do = RecordedStep(step, settings.batch_size) if step.can_be_recorded else step
        seen = 0
        for _ in range(settings.epochs):
            for inputs, targets in batches:
                if settings.augment and task.augment is not None:
                    inputs = task.augment(inputs, generator)
                do(inputs_for(task, inputs, device), targets_for(task, targets, device))
                seen += len(targets)
                if after_step is not None and after_step(model):
                    return step.loss.item() / seen
        return step.loss.item() / seen


def _private_epochs(
    task: Task,
    model: nn.Module,
    examples: Examples,
    settings: TrainingSettings,
    optimizer: Optimizer,
) -> float:
    """Run the local epochs with differential privacy for single samples, in place; the mean loss, without noise."""
    return train_privately(
        task,
        model,
        examples,
        steps=PrivateSteps.of(len(examples), settings.batch_size, settings.epochs),
        clip_norm=settings.sample_clip_norm,
        noise_multiplier=settings.sample_noise,
        optimizer=optimizer,
        augment=task.augment if settings.augment else None,
    )


def _optimizer(model: nn.Module, settings: TrainingSettings) -> Optimizer:
    weights, rate = model.parameters(), settings.learning_rate
    decay, climbs = settings.weight_decay, settings.maximize
    if settings.optimizer == "sgd":
        return Sgd(weights, lr=rate, momentum=settings.momentum, weight_decay=decay, maximize=climbs)
    decoupled = settings.optimizer == "adamw"
    return Adam(weights, lr=rate, weight_decay=decay, decoupled=decoupled, maximize=climbs)
