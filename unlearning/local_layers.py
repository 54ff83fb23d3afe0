"""Layers that each site trains for itself and keeps, such as a head per client (`Task.local_layers`).

Everywhere but in ordinary local training they are frozen, so what travels, is averaged and unlearned is the shared part
alone. At a site the task loads that site's values of them (`at_site`); elsewhere they are as `build_model` makes them.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import nn

from unlearning.errors import AppError
from unlearning.parameters import TRAVELLING_BUFFERS, has_frozen, layout
from unlearning.runtime.stores import Arrays
from unlearning.tasks.task import Task


def freeze_local(task: Task, model: nn.Module) -> None:
    """Freeze the task's local layers in its model, in place; running statistics of the shared part travel as ever.

    Raises:
        AppError: they are none of the model's, all of it, or more than parameters of their own that are trained.
    """
    if not task.local_layers:
        return
    for problem in _problems(task, model):
        raise AppError(f"local_layers of {task.name}: {problem}", code="local-layers")
    if not has_frozen(model):
        model.__dict__[TRAVELLING_BUFFERS] = tuple(slot.name for slot in layout(model) if slot.is_buffer)
    for name, parameter in model.named_parameters():
        if name.startswith(task.local_layers):
            parameter.requires_grad_(False)


def _problems(task: Task, model: nn.Module) -> Iterator[str]:
    every = dict(model.named_parameters(remove_duplicate=False))
    local = {name: one for name, one in every.items() if name.startswith(task.local_layers)}
    own = {id(one) for one in local.values()}
    for prefix in task.local_layers:
        if not any(name.startswith(prefix) for name in local):
            yield f"no parameter's name begins with {prefix!r}; there are {', '.join(list(every)[:6])}."
    if not any(one.requires_grad and id(one) not in own for one in every.values()):
        yield "they are all that is trained, so nothing would be learnt together. Name fewer."
    for name, one in local.items():
        if not one.requires_grad:
            yield f"{name} has no requires_grad. Let build_model make a new model each time, and train it."
    for name, one in every.items():
        if id(one) in own and name not in local:
            yield f"{name} is one of them too, by another name. Do not tie a local weight to a shared one."
    for slot in layout(model):
        if slot.is_buffer and slot.name.startswith(task.local_layers):
            yield f"{slot.name} is a running statistic, which is no parameter. Take LayerNorm or GroupNorm there."


def at_site(task: Task, values: Arrays) -> Task:
    """Return the task with a site's values of its local layers, by name; without any, as it is."""
    return replace(task, load_pretrained=partial(_load, task.load_pretrained, values)) if values else task


def _load(load_pretrained: Callable[[nn.Module], None] | None, values: Arrays, model: nn.Module) -> None:
    if load_pretrained is not None:
        load_pretrained(model)
    state = model.state_dict()
    for name, value in values.items():
        if name in state and state[name].shape == value.shape:  # else of another version of the app
            state[name].copy_(torch.tensor(value))
