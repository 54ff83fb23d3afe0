"""Training of the user's own in place of the built-in loop: a Trainer, DP-SGD, whatever trains a `torch.nn.Module`.

    def train(model, loader, settings) -> float

`model` is on its device with the weights to start from; it is trained in place. `loader` is a `DataLoader` of
(inputs, targets), shuffled at each iteration by the settings' seed. `settings` are `TrainingSettings`; `epochs`,
`learning_rate` and the rest mean what they say, for methods change them (MoDe's rates, FedEraser's short training). The
mean loss is returned. The global random states of torch, NumPy and Python are seeded before, and put back afterwards.

A function that takes `after_step` as well promises more: it calls `after_step(model)` after every optimiser step and
ends where that is true, climbs where `settings.maximize` says so, and bounds gradients by `settings.clip_norm`. Then
methods remain that climb the loss or project (PGA, gradient ascent).
"""

import inspect
import math
from collections.abc import Callable
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn

from unlearning.errors import AppError, FlowerUnlearningError
from unlearning.parameters import at_home, travelling
from unlearning.tasks.own_code import name_of
from unlearning.tasks.task import Task

AFTER_STEP = "after_step"


def takes_after_step(function: Callable[..., Any]) -> bool:
    """Return whether an own training promises to call something after each step."""
    try:
        return AFTER_STEP in inspect.signature(function).parameters
    except (TypeError, ValueError):  # some callables of C have no signature
        return False


def run_own_training(
    task: Task, model: nn.Module, loader: Any, settings: Any, after_step: Callable[[nn.Module], bool] | None
) -> float:
    """Train `model` in place by the task's own function; return the mean loss.

    Raises:
        AppError: it raises, returns no finite number, changes what it may not, or cannot do what is asked.
    """
    assert task.train is not None
    name = name_of(task.train)
    beside = {}
    if after_step is not None:
        if not takes_after_step(task.train):
            raise AppError(
                f"The training function {name} does not take `{AFTER_STEP}`, and this method works between its steps. "
                "Choose a method that needs updates only.",
                code="no-after-step",
                function=name,
            )
        beside = {AFTER_STEP: after_step}
    trained, kept = set(travelling(model)), {key: one.clone() for key, one in at_home(model).items()}
    try:
        loss = task.train(model, loader, settings, **beside)
    except FlowerUnlearningError:
        raise
    except Exception as exc:
        said = " ".join(str(exc).split())[:300].rstrip(".")
        raise AppError(
            f"The training function {name} raised {type(exc).__name__}: {said}.", code="raised", function=name
        ) from exc
    _check_loss(name, loss)
    _check_kept(name, model, trained, kept)
    return float(loss)


def _check_loss(name: str, loss: Any) -> None:
    """Refuse what is no finite number, or takes the model for what was asked."""
    single = isinstance(loss, Tensor) and loss.numel() == 1
    if isinstance(loss, bool) or not (isinstance(loss, Real) or single):
        raise AppError(
            f"The training function {name} must return the mean loss, a number, and returned {type(loss).__name__}.",
            code="no-loss",
            function=name,
        )
    if not math.isfinite(float(loss)):
        raise AppError(
            f"The training function {name} returned the loss {float(loss)}: the training has diverged. Lower the "
            "learning rate, or look for what makes the loss infinite.",
            code="diverged",
            function=name,
        )


def _check_kept(name: str, model: nn.Module, trained: set[str], kept: dict[str, Tensor]) -> None:
    """Refuse a training that has changed the frozen part, or which parameters are trained."""
    if set(travelling(model)) != trained:
        raise AppError(
            f"The training function {name} has changed which parameters have requires_grad; leave that as build_model "
            "makes it, and undo what a library wraps around the model.",
            code="changed-requires-grad",
            function=name,
        )
    now = at_home(model)
    fixed = {key: one for key, one in kept.items() if not key.endswith("num_batches_tracked")}
    changed = [key for key, one in fixed.items() if not torch.equal(one, now[key].to(one.device))]
    if changed:
        more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
        raise AppError(
            f"The training function {name} has changed the frozen part of the model ({changed[0]}{more}), which "
            "stays as the task makes it. Give its optimiser the parameters with requires_grad only.",
            code="changed-frozen-part",
            function=name,
        )
