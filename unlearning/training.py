"""Local training and evaluation: the same two functions for every task, client and method."""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Literal, Protocol, TypeAlias

import numpy as np
import torch
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt
from torch import nn
from torch.optim.sgd import sgd

from unlearning.errors import DataError
from unlearning.parameters import Vector, flatten, load
from unlearning.tasks.task import Examples, PerExample, Task

OptimizerName: TypeAlias = Literal["sgd", "adam", "adamw"]

EVALUATION_BATCH = 128
"""On a processor the activations of larger batches leave the cache: 512 take 1.1 to 1.9 times as long."""


@dataclass(frozen=True, kw_only=True)
class LocalTraining:
    """Local training; the sentence below a field is its row in docs/configuration.md (`make docs`)."""

    epochs: Annotated[int, Field(ge=1, alias="local-epochs")] = 1
    """passes over the client's examples"""
    batch_size: PositiveInt = 32
    """examples a step"""
    optimizer: OptimizerName = "sgd"
    """`sgd`, `adam`, `adamw`; its state begins anew with every local training. PGA, MoDe, gradient ascent, NegGrad+ and
    FedOSD unlearn by SGD in any case, FedQUIT by Adam; `prepare="hf-online"` needs `sgd`"""
    learning_rate: PositiveFloat = 0.1
    """in round 1"""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """SGD momentum"""
    weight_decay: NonNegativeFloat = 0.0
    """L2 penalty"""
    augment: bool = False
    """crop and flip in ordinary rounds (never in an unlearning round)"""


@dataclass(frozen=True, kw_only=True)
class TrainingSettings(LocalTraining):
    """How a client trains.

    maximize: climb the loss instead of descending it.
    clip_norm: the gradient is scaled to this Euclidean norm where it is longer; 0 for no bound.
    seed: decides the order of examples, the augmentation and dropout.
    """

    maximize: bool = False
    clip_norm: float = 0.0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Trained:
    """The outcome of local training: the new model (d,), how many examples, their mean loss."""

    parameters: Vector
    num_examples: int
    loss: float


def local_seed(seed: int, client_id: str, server_round: int) -> int:
    """Return a seed for one client's work in one round: the same in simulation and in a deployment."""
    digest = hashlib.sha256(f"{seed}:{server_round}:{client_id}".encode()).digest()
    return int.from_bytes(digest[:4], "big") % (2**31)


def initial_parameters(task: Task, seed: int) -> Vector:
    """Return the flat vector (d,) that training starts from, the same for the same seed: untrained or
    pre-trained.

    Raises:
        DataError: the pre-trained weights cannot be loaded.
    """
    model = build(task, seed)
    if task.load_pretrained is not None:
        with torch.random.fork_rng(devices=[]):
            task.load_pretrained(model)
    return flatten(model)


def build(task: Task, seed: int) -> nn.Module:
    """Return a fresh model of the task's dtype; torch's global random state is left as it was."""
    with torch.random.fork_rng(devices=[]):
        _seed_torch(seed)
        return task.build_model().to(task.dtype)


AfterStep: TypeAlias = Callable[[nn.Module], bool]
"""May change the model in place after an optimiser step; whether training ends here."""


def train(
    task: Task,
    parameters: Vector,
    examples: Examples,
    settings: TrainingSettings,
    after_step: AfterStep | None = None,
) -> Trained:
    """Train from `parameters` (d,) on `examples`; neither is changed.

    The reported loss is the mean over all steps' batches. The last batch of an epoch may be smaller.

    Raises:
        DataError: there is no example to train on.
    """
    if len(examples) == 0:
        raise DataError("There is no example left to train on.")
    device = _device()
    model = build(task, settings.seed)
    load(model, parameters)
    model.to(device).train()
    # A model of the user's own may have dropout, which draws from torch's global random state.
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        _seed_torch(settings.seed)
        loss = _epochs(task, model, examples, settings, device, after_step)
    return Trained(flatten(model), len(examples), loss)


def _epochs(
    task: Task,
    model: nn.Module,
    examples: Examples,
    settings: TrainingSettings,
    device: torch.device,
    after_step: AfterStep | None,
) -> float:
    """Run the local epochs on `model`, in place; the mean loss over all steps' batches."""
    optimizer = _optimizer(model, settings)
    generator = torch.Generator().manual_seed(settings.seed)
    total, seen = 0.0, 0
    for _ in range(settings.epochs):
        order = torch.randperm(len(examples), generator=generator)
        for batch in torch.split(order, settings.batch_size):
            inputs = examples.inputs[batch]
            if settings.augment and task.augment is not None:
                inputs = task.augment(inputs, generator)
            model.zero_grad()
            outputs = model(inputs.to(device=device, dtype=task.dtype))
            loss = task.loss(outputs, examples.targets[batch].to(device))
            loss.backward()  # type: ignore[no-untyped-call]
            if settings.clip_norm:
                nn.utils.clip_grad_norm_(model.parameters(), settings.clip_norm)
            optimizer.step()
            total += loss.item() * len(batch)
            seen += len(batch)
            if after_step is not None and after_step(model):
                return total / seen
    return total / seen


def evaluate(
    task: Task, parameters: Vector, examples: Examples, batch_size: int = EVALUATION_BATCH
) -> PerExample:
    """Return the model's measures on every example, in order, without augmentation and in eval mode.

    In double precision from the model's outputs on: in single precision every loss below 1e-7 is 0 and every confidence
    above 1 − 6e-8 is 1, and the examples that a model knows best cannot be told apart.
    """
    return _per_example(
        task.per_example(outputs.double(), targets)
        for outputs, targets in _outputs(task, parameters, examples, batch_size)
    )


def predict(task: Task, parameters: Vector, examples: Examples, batch_size: int = EVALUATION_BATCH) -> Vector:
    """Return the model's outputs on every example, in order: shape (n, classes, ...), float64, in eval
    mode.
    """
    parts = [outputs.double().cpu() for outputs, _ in _outputs(task, parameters, examples, batch_size)]
    return torch.cat(parts).numpy() if parts else np.zeros(0)


def evaluate_and_predict(
    task: Task, parameters: Vector, examples: Examples, batch_size: int = EVALUATION_BATCH
) -> tuple[PerExample, Vector]:
    """Return what `evaluate` and `predict` give, in one pass over the examples."""
    measures, parts = [], []
    for outputs, targets in _outputs(task, parameters, examples, batch_size):
        measures.append(task.per_example(outputs.double(), targets))
        parts.append(outputs.double().cpu())
    return _per_example(measures), torch.cat(parts).numpy() if parts else np.zeros(0)


def _outputs(
    task: Task, parameters: Vector, examples: Examples, batch_size: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield the model's outputs and the targets, batch by batch, on the device."""
    device = _device()
    model = build(task, seed=0)
    load(model, parameters)
    # With the channels last a processor evaluates the small networks here in half of the time.
    layout = torch.channels_last if examples.inputs.ndim == 4 else torch.preserve_format
    model.to(device).to(memory_format=layout).eval()
    for start in range(0, len(examples), batch_size):
        inputs = examples.inputs[start : start + batch_size].to(device=device, dtype=task.dtype)
        with torch.inference_mode():
            outputs = model(inputs.to(memory_format=layout))
        yield outputs, examples.targets[start : start + batch_size].to(device)


def _per_example(batches: Iterable[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]) -> PerExample:
    """Return loss, score and confidence of all batches, one after another."""
    columns = [[values.double().cpu() for values in column] for column in zip(*batches, strict=True)]
    return PerExample(*(torch.cat(column).numpy() for column in columns or [[torch.zeros(0)]] * 3))


def _seed_torch(seed: int) -> None:
    if torch.cuda.is_available():
        torch.manual_seed(seed)
    else:  # torch.manual_seed notes the call stack three times, for devices that are not there
        torch.default_generator.manual_seed(seed)


def _device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


class _Optimizer(Protocol):
    """What an epoch needs of an optimiser."""

    def step(self) -> object:
        """Move the weights along their gradients."""


def _optimizer(model: nn.Module, settings: TrainingSettings) -> _Optimizer:
    rate, decay, climbs = settings.learning_rate, settings.weight_decay, settings.maximize
    match settings.optimizer:
        case "sgd":
            return _Sgd(model, settings)
        case "adam":
            return torch.optim.Adam(model.parameters(), lr=rate, weight_decay=decay, maximize=climbs)
        case "adamw":
            return torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=decay, maximize=climbs)


class _Sgd:
    """`torch.optim.SGD`, bit for bit, by torch's function instead of its class.

    The first use of the class imports torch's compiler: 1.3 s of processor time in every process, and a
    deployment starts one for each message.
    """

    def __init__(self, model: nn.Module, settings: TrainingSettings) -> None:
        self._settings = settings
        self._weights = list(model.parameters())
        self._momentum: list[torch.Tensor | None] = [None] * len(self._weights)

    @torch.no_grad()
    def step(self) -> None:
        gradients = {
            index: weight.grad for index, weight in enumerate(self._weights) if weight.grad is not None
        }
        momentum = [self._momentum[index] for index in gradients]
        sgd(
            [self._weights[index] for index in gradients],
            list(gradients.values()),
            momentum,  # filled by the first step
            weight_decay=self._settings.weight_decay,
            momentum=self._settings.momentum,
            lr=self._settings.learning_rate,
            dampening=0.0,
            nesterov=False,
            maximize=self._settings.maximize,
        )
        for index, buffer in zip(gradients, momentum, strict=True):
            self._momentum[index] = buffer
