"""A model as one flat vector, and back.

The vector holds every floating-point tensor of `state_dict()` in its order: parameters, and buffers
such as a running mean (`unlearning.buffers`). Integer buffers (a batch counter) are not part of it and stay as they
are.

Of a model with frozen parameters (`requires_grad` is false) it holds the others only. The frozen ones, and all buffers,
stay at home: the task makes them, the same on every machine. So running statistics are the task's too and no training
moves them: layers that have some normalise by them in training also (`hold_statistics`).
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from unlearning.errors import UpdateRefused

Vector: TypeAlias = NDArray[np.floating[Any]]


@dataclass(frozen=True, slots=True)
class Slot:
    """Where one named tensor lies in the flat vector."""

    name: str
    shape: tuple[int, ...]
    start: int
    stop: int
    is_buffer: bool = False


_MARK = "flower-unlearning"

TRAVELLING_BUFFERS = "travelling_buffers"
"""An attribute of a model: the names of buffers that are in the vector also where parameters are frozen."""


def has_frozen(model: nn.Module) -> bool:
    """Return whether some parameter is not trained."""
    return any(not parameter.requires_grad for parameter in model.parameters())


def travelling(model: nn.Module) -> dict[str, Tensor]:
    """Return the tensors that the flat vector holds, by name and in its order."""
    state = model.state_dict(keep_vars=True)
    found = {name: tensor for name, tensor in state.items() if tensor.is_floating_point()}
    if not has_frozen(model):
        return found
    also = getattr(model, TRAVELLING_BUFFERS, ())
    return {
        name: tensor
        for name, tensor in found.items()
        if name in also or (isinstance(tensor, nn.Parameter) and tensor.requires_grad)
    }


def at_home(model: nn.Module) -> dict[str, Tensor]:
    """Return by name the tensors that the task makes on every machine; none where no parameter is frozen."""
    if not has_frozen(model):
        return {}
    goes = travelling(model)
    return {name: tensor for name, tensor in model.state_dict().items() if name not in goes}


def hold_statistics(model: nn.Module) -> None:
    """Let layers with running statistics normalise by these in training also, where parameters are frozen."""
    if not has_frozen(model):
        return
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._NormBase) and module.running_mean is not None:
            module.eval()
            # `model.train()` sets every module's mode by its own `train`
            module.__dict__["train"] = partial(_as_it_is, module)


def is_held(module: nn.Module) -> bool:
    """Return whether `hold_statistics` has set it."""
    return "train" in module.__dict__


def _as_it_is(module: nn.Module, mode: bool = True) -> nn.Module:  # noqa: ARG001 - as Module.train
    return module


def hash_of_tensors(tensors: Mapping[str, Tensor]) -> str:
    """Return SHA-256 (hex) of names, shapes, dtypes and bytes, in the order of names; empty where there is none."""
    if not tensors:
        return ""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        values = tensor.detach().cpu().contiguous()
        digest.update(f"{name}:{values.dtype}:{tuple(values.shape)}:".encode())
        digest.update(values.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def state_to_save(model: nn.Module) -> dict[str, Any]:
    """Return the whole `state_dict()`, frozen part and all, marked with which tensors the flat vector holds."""
    state = model.state_dict()
    if has_frozen(model):
        metadata: dict[str, Any] = getattr(state, "_metadata")  # noqa: B009 - torch's, which its types do not name
        metadata[_MARK] = {"travelling": list(travelling(model))}
    return state


def travelling_names(state: Mapping[str, Tensor]) -> frozenset[str] | None:
    """Return which tensors of a saved state the flat vector holds; None for all that are floating-point."""
    found = getattr(state, "_metadata", {}).get(_MARK)
    return None if found is None else frozenset(map(str, found["travelling"]))


def layout(model: nn.Module) -> tuple[Slot, ...]:
    """Return the names, shapes and positions of the flat vector's tensors."""
    slots: list[Slot] = []
    position = 0
    for name, tensor in travelling(model).items():
        is_buffer = not isinstance(tensor, nn.Parameter)
        slots.append(Slot(name, tuple(tensor.shape), position, position + tensor.numel(), is_buffer))
        position += tensor.numel()
    return tuple(slots)


def flatten(model: nn.Module) -> Vector:
    """Return the tensors that travel as one array of shape (d,), in the model's dtype."""
    tensors = travelling(model).values()
    return torch.cat([tensor.detach().reshape(-1).cpu() for tensor in tensors]).numpy()


def load(model: nn.Module, vector: Vector) -> None:
    """Write `vector` (d,) into the model, in place.

    Raises:
        UpdateRefused: the vector has another length than the model.
    """
    slots = layout(model)
    check_length(vector, slots[-1].stop if slots else 0)
    state = model.state_dict()
    source = torch.from_numpy(np.array(vector))  # a copy: what comes from a message is read-only
    with torch.no_grad():
        for slot in slots:
            state[slot.name].copy_(source[slot.start : slot.stop].reshape(slot.shape))


def add_weighted(start: Vector, terms: Mapping[str, tuple[float, Vector]]) -> Vector:
    """`start` + Σ weight · vector over `terms`, summed in float64 in the order of the keys.

    Summing in one fixed order makes runs reproducible whatever order replies arrive in.
    """
    total = start.astype(np.float64)
    for key in sorted(terms):
        weight, vector = terms[key]
        total += weight * vector.astype(np.float64)
    return total.astype(start.dtype)


def weighted_mean(models: Mapping[str, tuple[int, Vector]]) -> Vector:
    """Compute Σ (n_i / Σ n_j) θ_i over (n_i, θ_i) by client, summed in float64 in the order of client ids.

    Source: McMahan et al., FedAvg, Algorithm 1.
    """
    total = sum(count for count, _ in models.values())
    start = np.zeros_like(next(iter(models.values()))[1])
    return add_weighted(start, {key: (count / total, model) for key, (count, model) in models.items()})


def check_length(vector: Vector, expected: int) -> None:
    """Refuse a vector that does not have the model's length.

    Raises:
        UpdateRefused: it is not one-dimensional or has another length.
    """
    if vector.ndim != 1 or vector.size != expected:
        raise UpdateRefused(
            f"The model has {expected:,} parameters, got an array of shape {vector.shape}. "
            "Check that every machine runs the same model and number of classes."
        )


def check_finite(vector: Vector) -> None:
    """Refuse a vector with NaN or infinity.

    Raises:
        UpdateRefused: a value is not finite.
    """
    finite = np.isfinite(vector)
    if not finite.all():
        raise UpdateRefused(f"{int((~finite).sum()):,} of {vector.size:,} values are not finite.")


def content_hash(vector: Vector) -> str:
    """Return SHA-256 (hex) of the dtype, the length and the little-endian bytes of `vector`."""
    little = np.ascontiguousarray(vector, dtype=vector.dtype.newbyteorder("<"))
    digest = hashlib.sha256(f"{little.dtype.str}:{little.size}:".encode())
    digest.update(little.tobytes())
    return digest.hexdigest()
