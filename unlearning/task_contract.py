"""What a task promises of its outputs, targets and loss, looked at on a few examples before anything is learnt."""

import math
import random
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from unlearning.buffers import buffer_positions
from unlearning.errors import AppError, FlowerUnlearningError
from unlearning.runtime.devices import drawing, inputs_for, targets_for
from unlearning.tasks.checks import FEW
from unlearning.tasks.inputs import Inputs, each, outputs_of, versions
from unlearning.tasks.own_code import is_ours, name_of
from unlearning.tasks.task import Examples, Task
from unlearning.training import model_with, untrained_parameters

TOLERANCE = 1e-3
"""By which a batch's loss may differ from the mean of its examples' own, as a share of the larger; rounding is 1e-6."""
_DRAWS = 64
"""How often a loss that draws random numbers is computed to see whether it is a mean over examples."""


def check_task(task: Task, examples: Examples, model: nn.Module | None = None) -> None:
    """Refuse a task whose model, loss or measures do not fit its examples, or that promises classes and has none.

    model: in eval mode; None for the untrained one.

    Raises:
        AppError: says which, with the shapes.
    """
    if not len(examples):
        return
    inputs, targets = few_batch(task, examples, torch.device("cpu"))
    model = model or model_with(task, untrained_parameters(task, seed=0)).eval()
    with torch.no_grad():
        outputs = _run(f"The model of {task.name}", outputs_of, model, inputs)
        if not outputs.ndim or len(outputs) != len(targets):
            raise AppError(
                f"The model of {task.name} returns outputs of shape {tuple(outputs.shape)} for {len(targets)} "
                "examples; let its forward return a row per example.",
                code="no-row-per-example",
            )
        if task.score_name == "accuracy":
            _check_classes(task, examples, outputs)
        if task.train is None:
            _run(f"The task's loss {name_of(task.loss)}", task.loss, outputs, targets)
        _run(
            f"The task's per_example {name_of(task.per_example)}", task.per_example, outputs.double(), targets
        )


def couples_examples(task: Task, examples: Examples, model: nn.Module | None = None) -> bool:
    """Return whether a batch's loss is not the mean of its examples' own, by more than `TOLERANCE`.

    So is a contrastive loss, a maximum, a sum, or class weights with torch's `reduction="mean"`.

    model: in eval mode; None for the untrained one. This project's own losses are not looked at.
    """
    if is_ours(task.loss) or task.train is not None or len(examples) < 2:
        return False
    model = model or model_with(task, untrained_parameters(task, seed=0)).eval()
    device = next(model.parameters()).device
    inputs, targets = few_batch(task, examples, device)

    def loss_of(which: slice) -> float:
        given = each(lambda one: one[which].clone(), inputs)
        return float(task.loss(outputs_of(model, given), targets[which]))

    def gap(seed: int) -> float:
        with drawing(seed, device), torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a standard deviation of one example, for instance
            whole = loss_of(slice(None))
            singles = [loss_of(slice(number, number + 1)) for number in range(len(targets))]
        mean = sum(singles) / len(singles)
        return (whole - mean) / max(abs(whole), abs(mean), TOLERANCE)

    # A batch draws other numbers than its examples alone: only the mean over many draws is the same.
    count = _DRAWS if draws_numbers(task, examples, model) else 1
    try:
        gaps = np.array([gap(seed) for seed in range(count)])
    except (RuntimeError, ValueError, IndexError):  # what needs a batch
        return True
    return not abs(gaps.mean()) <= max(TOLERANCE, 5 * gaps.std() / math.sqrt(count))


def draws_numbers(task: Task, examples: Examples, model: nn.Module) -> bool:
    """Return whether a model in eval mode, or its loss, draws from a global random state; these are left as they were.

    So does a variational autoencoder, or dropout that is never switched off.
    """
    device = next(model.parameters()).device
    inputs, targets = few_batch(task, examples, device)
    with drawing(0, device), torch.no_grad():
        before = _random_states(device)
        task.loss(outputs_of(model, each(torch.clone, inputs)), targets)
        return before != _random_states(device)


def _random_states(device: torch.device) -> list[Any]:
    of_torch = torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()
    of_numpy: Any = np.random.get_state()
    return [random.getstate(), of_torch.tolist(), of_numpy[1].tolist(), of_numpy[2:]]


def coupled_loss(task: Task) -> str:
    """Say that a task's loss is no mean over examples, and what to do."""
    return (
        f"the loss of {task.name} ({name_of(task.loss)}) of a batch is not the mean of its examples' own losses. Let "
        "it be one: no pairs, maximum or sum over a batch, and class weights as (weights[targets] * losses).mean()."
    )


def refuse_coupled(task: Task, examples: Examples, titles: Iterable[str]) -> None:
    """Refuse to prepare for methods, by their titles, that need a loss which is a mean over examples.

    Raises:
        AppError: the task's is none.
    """
    needing = list(titles)
    if needing and couples_examples(task, examples):
        raise AppError(
            f"{' and '.join(needing)} cannot be prepared for: {coupled_loss(task)}", code="coupled-loss"
        )


def unhidden(task: Task, examples: Examples | None = None) -> list[str]:
    """Say what of a task gets past the noise of training with privacy for single samples, in one sentence each.

    examples: a few, to see whether the loss of a batch is the mean of its examples' own; None where there are none.
    """
    wrong = []
    if task.train is not None:
        wrong.append(
            f"privacy: the training function {name_of(task.train)} is the app's own, and no noise is added in it. "
            "Leave it out; the built-in training adds it."
        )
    wrong += unhidden_statistics(task)
    if examples is not None and couples_examples(task, examples):
        wrong.append(f"privacy: {coupled_loss(task)}")
    return wrong


def unhidden_statistics(task: Task) -> list[str]:
    """Say in one sentence that a model has running statistics, which no noise of private training hides."""
    if not buffer_positions(task).size:
        return []
    return [
        f"privacy: the model of {task.name} has running statistics (batch normalisation), which no noise hides. "
        "Use group or layer normalisation, and persistent=False for a buffer that is constant."
    ]


def writes_on_inputs(task: Task, examples: Examples, model: nn.Module) -> bool:
    """Return whether the forward of a model in eval mode changes its inputs in place."""
    inputs, _ = few_batch(task, examples, next(model.parameters()).device)
    before = versions(inputs)
    with torch.no_grad():
        outputs_of(model, inputs)
    return versions(inputs) != before


def few_of(examples: Examples) -> Examples:
    """Return a few examples from all over the set."""
    return examples.select(np.unique(np.linspace(0, len(examples) - 1, FEW).astype(np.intp)))


def few_batch(task: Task, examples: Examples, here: torch.device) -> tuple[Inputs, Tensor]:
    """Return inputs and targets of a few examples, as model and loss take them."""
    inputs, targets = few_of(examples).batch(slice(0, FEW))
    return inputs_for(task, inputs, here), targets_for(task, targets, here)


def _check_classes(task: Task, examples: Examples, outputs: Tensor) -> None:
    """Refuse what has no class an example, where classes are promised."""
    wanted = (len(outputs), task.num_classes)
    labels = examples.targets if examples.source.loading is None else examples.batch(slice(0, FEW))[1]
    has_labels = examples.has_labels and int(labels.min()) >= 0 and int(labels.max()) < task.num_classes
    if has_labels and tuple(outputs.shape) == wanted:
        return
    raise AppError(
        f"The score of {task.name} is named accuracy, which promises classes: targets (n,) of whole numbers from 0 to "
        f"{task.num_classes - 1} and outputs (n, {task.num_classes}). Here are targets of shape {tuple(labels.shape)} "
        f"and dtype {str(labels.dtype).removeprefix('torch.')}, and outputs of shape {tuple(outputs.shape)} for "
        f"{len(outputs)} examples. Correct num_classes, the model or the targets; or name the score otherwise "
        "(binary-accuracy), and no class can be forgotten.",
        code="no-classes",
    )


def _run(who: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Return what a user's function makes of a few examples.

    Raises:
        AppError: it raised; says who.
    """
    try:
        return function(*arguments)
    except FlowerUnlearningError:
        raise
    except Exception as exc:
        said = " ".join(str(exc).split())[:300].rstrip(".")
        raise AppError(
            f"{who} cannot work on this site's examples: it raised {type(exc).__name__}: {said}.",
            code="raised",
        ) from exc
