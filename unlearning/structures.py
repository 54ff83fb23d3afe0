"""Models made of another's modules: their structure alone, or again with room for weights and none drawn.

A builder draws every weight, which takes longer than all else of making a model whose weights come from elsewhere.
"""

from collections import OrderedDict
from collections.abc import Callable
from copy import deepcopy
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from unlearning.parameters import has_frozen, travelling

_INNER = ("_parameters", "_buffers", "_modules")
_SIMPLE = (int, float, complex, str, bytes, type(None), type, torch.dtype)


def without_weights(model: nn.Module) -> nn.Module:
    """Return the model's modules with all tensors on torch's meta device; what is given stays as it is."""
    return _remade(model, _without_numbers, lambda value: value)


def template(model: nn.Module) -> nn.Module | None:
    """Return what `from_template` makes models of; None where such a copy may differ from a model that is built.

    It differs where modules hold more than numbers, text and plain functions beside their tensors: a hook, a closure
    or a tensor in another place may refer to the module that it was made in. The tensors that the flat vector holds
    are on torch's meta device, the others have their values.
    """
    if has_frozen(model) or not _is_plain(model):
        return None
    goes = {id(tensor) for tensor in travelling(model).values()}

    def other(tensor: Tensor) -> Tensor:
        return _without_numbers(tensor) if id(tensor) in goes else tensor.detach().clone()

    return _remade(model, other, _own)


def from_template(made: nn.Module) -> nn.Module:
    """Return a new model. The tensors that the flat vector holds have room, and any values."""

    def other(tensor: Tensor) -> Tensor:
        if not tensor.is_meta:
            return tensor.detach().clone()
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)

    return _remade(made, other, _own)


def _without_numbers(tensor: Tensor) -> Tensor:
    # `empty_like` of a tensor that is on the meta device imports SymPy: a second, and 40 MB
    return tensor.detach() if tensor.is_meta else torch.empty_like(tensor, device="meta")


def _remade(
    model: nn.Module, other: Callable[[Tensor], Tensor], attribute: Callable[[Any], Any]
) -> nn.Module:
    """Return modules of the same types and ties, with `other` of each tensor and `attribute` of all else they hold."""
    made: nn.Module = _copy_of(model, {}, other, attribute)
    return made


def _copy_of(
    part: Any, copies: dict[int, Any], other: Callable[[Tensor], Tensor], attribute: Callable[[Any], Any]
) -> Any:
    # No function in a function: one that calls itself holds what it has made until a garbage collection
    if part is None or id(part) in copies:
        return copies.get(id(part))
    if isinstance(part, Tensor):
        made = other(part)
        is_parameter = isinstance(part, nn.Parameter)
        copies[id(part)] = nn.Parameter(made, part.requires_grad) if is_parameter else made
        return copies[id(part)]
    own = copies[id(part)] = object.__new__(type(part))
    for name, value in vars(part).items():
        if name in _INNER:
            value = {key: _copy_of(one, copies, other, attribute) for key, one in value.items()}
        else:
            value = attribute(value)
        own.__dict__[name] = value
    return own


def _own(value: Any) -> Any:
    """Return a copy of what a plain module holds; most of it cannot change, or is empty."""
    if isinstance(value, _SIMPLE):
        return value
    return deepcopy(value) if value or isinstance(value, tuple | frozenset) else value.copy()


def _is_plain(model: nn.Module) -> bool:
    """Return whether nothing in a model refers to its modules from outside, and no two tensors share memory."""
    tensors = {id(one): one for kind in (model.parameters(), model.buffers()) for one in kind}.values()
    places = [one.untyped_storage().data_ptr() for one in tensors if one.numel()]
    return (
        len({*places}) == len(places)
        and all(map(_is_plain_tensor, tensors))
        and all(
            _is_simple(value)
            for module in model.modules()
            for name, value in vars(module).items()
            if name not in _INNER
        )
    )


def _is_plain_tensor(tensor: Tensor) -> bool:
    return (
        type(tensor) in (Tensor, nn.Parameter)
        and tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
        and (isinstance(tensor, nn.Parameter) or not tensor.requires_grad)
        and not tensor._backward_hooks
        and not vars(tensor)
    )


def _is_simple(value: Any) -> bool:
    if type(value) in (dict, OrderedDict):
        return all(_is_simple(one) for pair in value.items() for one in pair)
    if type(value) in (list, set) or isinstance(value, tuple | frozenset):
        return all(map(_is_simple, value))
    if isinstance(value, FunctionType):
        return value.__closure__ is None
    if isinstance(value, BuiltinFunctionType):
        return isinstance(value.__self__, ModuleType | type | None)
    return isinstance(value, _SIMPLE)
