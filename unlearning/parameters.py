"""A model as one flat vector, and back.

The vector holds every floating-point tensor of `state_dict()` in its order: parameters, and buffers
such as a running mean. Integer buffers (a batch counter) are not part of it and stay as they are.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from unlearning.errors import UpdateRefused

Vector: TypeAlias = NDArray[np.floating[Any]]


@dataclass(frozen=True, slots=True)
class Slot:
    """Where one named tensor lies in the flat vector."""

    name: str
    shape: tuple[int, ...]
    start: int
    stop: int


def layout(model: nn.Module) -> tuple[Slot, ...]:
    """Return the names, shapes and positions of the flat vector's tensors."""
    slots: list[Slot] = []
    position = 0
    for name, tensor in model.state_dict().items():
        if tensor.is_floating_point():
            slots.append(Slot(name, tuple(tensor.shape), position, position + tensor.numel()))
            position += tensor.numel()
    return tuple(slots)


def flatten(model: nn.Module) -> Vector:
    """Return the model's floating-point tensors as one array of shape (d,), in the model's dtype."""
    tensors = [tensor for tensor in model.state_dict().values() if tensor.is_floating_point()]
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
