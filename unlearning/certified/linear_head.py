"""A model that is one linear layer on fixed features: what the constants of logistic regression are derived for.

The features are the inputs themselves, or what a network makes of them of which nothing is trained. They are fixed
where the same example has the same features in every step: nothing below the layer may be trained, be moved by
training, draw at random or look at the rest of the batch.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from unlearning.errors import DataError, NumericalError
from unlearning.evaluation import EVALUATION_BATCH
from unlearning.parameters import is_held, layout
from unlearning.runtime.devices import computing_device, inputs_for
from unlearning.tasks.batches import InOrder
from unlearning.tasks.inputs import one_tensor
from unlearning.tasks.task import Examples, Task
from unlearning.training import initial_parameters, model_with, structure

_WITHOUT_EFFECT = (nn.Flatten, nn.Identity)
_INPUTS_AT_ONCE = 1024
_ONE = "feature_norm bounds the norm of one"
_SAME_FEATURES = 1e-3
"""Of the largest feature: rounding stays below it, dropout and the statistics of another batch do not."""


@dataclass(frozen=True, slots=True)
class LinearHead:
    """The layer that is trained, and what is below it, in order; nothing of that is trained."""

    layer: nn.Linear
    below: nn.Sequential

    @property
    def is_whole_model(self) -> bool:
        """Whether its features are the inputs themselves."""
        return all(type(module) in _WITHOUT_EFFECT for module in self.below)


def linear_head(task: Task) -> LinearHead:
    """Return the one linear layer that the task trains, at the end of its model.

    Raises:
        NumericalError: the model is something else; says what.
    """
    return _head_of(structure(task).train(), task)


def linear_layer(task: Task) -> nn.Linear | None:
    """Return the layer of a model that is one linear layer on the inputs and nothing else; None for another model."""
    try:
        head = linear_head(task)
    except NumericalError:
        return None
    return head.layer if head.is_whole_model else None


def feature_norm(task: Task, examples: Examples) -> float:
    """Return the largest ‖(x, 1)‖ of what the linear layer is given, the 1 for its bias.

    Where the model has no such layer, of the inputs.

    Raises:
        DataError: what is below the layer gives the same examples other features in another batch.
    """
    try:
        head: LinearHead | None = _head_of(model_with(task, initial_parameters(task, seed=0)).train(), task)
    except NumericalError:
        head = None
    largest = 0.0
    with torch.no_grad():
        for features in _features(task, head, examples):
            flat = features.reshape(len(features), -1).double()
            largest = max(largest, float(torch.sqrt(flat.square().sum(dim=1) + 1).max()))
    return largest


def _features(task: Task, head: LinearHead | None, examples: Examples) -> Iterator[Tensor]:
    if head is None or head.is_whole_model:
        batches = examples.batches(InOrder(len(examples), _INPUTS_AT_ONCE))
        yield from (one_tensor(inputs, _ONE) for inputs, _ in batches)
        return
    device = computing_device()
    below = head.below.to(device)
    for number, (inputs, _) in enumerate(examples.batches(InOrder(len(examples), EVALUATION_BATCH))):
        given = one_tensor(inputs_for(task, inputs, device), _ONE)
        features = below(given)
        if number == 0:
            _check_fixed(task, features, below(given[: len(given) // 2].flip(0)).flip(0))
        yield features


def _check_fixed(task: Task, features: Tensor, of_half: Tensor) -> None:
    """Compare the first features (n, f) with those that the first half had in a batch of their own."""
    close = _SAME_FEATURES * float(features.abs().max())
    if features.ndim != 2 or not torch.allclose(of_half, features[: len(of_half)], rtol=0.0, atol=close):
        raise DataError(
            f"What stands below the linear layer of {task.name} gives the same examples other features in another "
            "batch (it draws at random, or looks at the whole batch), or not one vector an example. No norm can be "
            "declared of them: leave feature_norm out, or let the network give each example one vector that stays."
        )


def _head_of(model: nn.Module, task: Task) -> LinearHead:
    chain = list(_chain(model))
    while chain and type(chain[-1]) in _WITHOUT_EFFECT:
        chain.pop()
    why = _why_not(model, chain)
    if why:
        raise NumericalError(
            f"The model of {task.name} is not one linear layer on fixed features ({why}), so its loss is not known to "
            "be convex."
        )
    layer = chain[-1]
    assert isinstance(layer, nn.Linear)
    return LinearHead(layer, nn.Sequential(*chain[:-1]))


def _chain(model: nn.Module) -> Iterator[nn.Module]:
    """Yield the modules that are applied one after the other, those of inner chains too."""
    if type(model) is not nn.Sequential or _has_hooks(model):
        yield model
        return
    for module in model:
        yield from _chain(module)


def _why_not(model: nn.Module, chain: list[nn.Module]) -> str:
    """Return what keeps the chain from ending in a linear layer on fixed features; empty: nothing."""
    if not chain or type(chain[-1]) is not nn.Linear or _has_hooks(chain[-1]):
        return "it is neither a plain torch.nn.Linear nor a torch.nn.Sequential that ends in one"
    *below, layer = chain
    own = {"weight", "bias"} if layer.bias is not None else {"weight"}
    parameters = dict(layer.named_parameters())
    if parameters.keys() != own or not all(one.requires_grad for one in parameters.values()):
        return "its last layer has other parameters than weight and bias, or a part of it is not trained"
    ids = {id(one) for one in parameters.values()}
    if any(id(one) in ids for module in below for one in module.parameters()):
        return "its last layer's weights are also below it"
    state = model.state_dict(keep_vars=True)
    others = [slot.name for slot in layout(model) if id(state[slot.name]) not in ids]
    if others:
        more = f" and {len(others) - 1} more" if len(others) > 1 else ""
        return f"{others[0]}{more} below the last layer are trained, or moved by training"
    for module in nn.Sequential(*below).modules():
        if module.training and _is_random(module):
            return f"its {type(module).__name__} draws at random while the last layer is trained"
        if isinstance(module, nn.modules.batchnorm._NormBase) and not is_held(module):
            return f"its {type(module).__name__} normalises by the batch"
    return ""


def _is_random(module: nn.Module) -> bool:
    if isinstance(module, nn.modules.dropout._DropoutNd):
        return module.p > 0
    if isinstance(module, nn.MultiheadAttention | nn.RNNBase):
        return module.dropout > 0
    return isinstance(module, nn.RReLU | nn.FractionalMaxPool2d | nn.FractionalMaxPool3d)


def _has_hooks(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks)
