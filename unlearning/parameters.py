"""A model as one flat vector, and back.

The vector holds every floating-point tensor of `state_dict()` in its order: parameters, and buffers
such as a running mean (`unlearning.buffers`). Integer buffers (a batch counter) are not part of it and stay as they
are. So do buffers that are built with values that are not finite, as the mask of causal attention: no training gives
such values (`hold_constants`). A parameter that the model has under several names (tied weights) is in the vector once,
under the first of them.

Of a model with frozen parameters (`requires_grad` is false) it holds the others only. The frozen ones, and all buffers,
stay at home: the task makes them, the same on every machine. So running statistics are the task's too and no training
moves them: layers that have some normalise by them in training also (`hold_statistics`).
"""

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.parameter import is_lazy
from xxhash import xxh3_128

from unlearning.errors import AppError, UpdateRefused
from unlearning.runtime.archive import bytes_of
from unlearning.tasks.inputs import Inputs, arguments_of, as_outputs

Vector: TypeAlias = NDArray[np.floating[Any]]
Models: TypeAlias = Mapping[str, tuple[int, Vector]]
"""By client, its number of examples and its local model (d,)."""


@dataclass(frozen=True, slots=True)
class Slot:
    """Where one named tensor lies in the flat vector."""

    name: str
    shape: tuple[int, ...]
    start: int
    stop: int
    is_buffer: bool = False


CHUNK = 2**16
"""Numbers that are computed with at once where a vector is long."""
_MARK = "flower-unlearning"

TRAVELLING_BUFFERS = "travelling_buffers"
"""An attribute of a model: the names of buffers that are in the vector also where parameters are frozen."""

_CONSTANTS = "constant_buffers"
"""An attribute of a model: the names of buffers that are not in the vector (`hold_constants`)."""


def has_frozen(model: nn.Module) -> bool:
    """Return whether some parameter is not trained."""
    return any(not parameter.requires_grad for parameter in model.parameters())


def travelling(model: nn.Module) -> dict[str, Tensor]:
    """Return the tensors that the flat vector holds, by name and in its order."""
    state = model.state_dict(keep_vars=True)
    left_out = {*_repeated_names(model), *getattr(model, _CONSTANTS, ())}
    found = {n: tensor for n, tensor in state.items() if tensor.is_floating_point() and n not in left_out}
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
    goes = {id(tensor) for tensor in travelling(model).values()}
    state = model.state_dict(keep_vars=True)
    return {name: tensor.detach() for name, tensor in state.items() if id(tensor) not in goes}


def _repeated_names(model: nn.Module) -> frozenset[str]:
    """Return the names under which a parameter, or a buffer of a module that is used twice, comes once more.

    A buffer that two modules share is not among them: moving the model to a device makes two of it.
    """
    first = {name for name, _ in model.named_parameters()}
    for prefix, module in model.named_modules():
        buffers = module.named_buffers(prefix, recurse=False, remove_duplicate=False)
        first.update(name for name, _ in buffers)
    every = (model.named_parameters, model.named_buffers)
    return frozenset(name for named in every for name, _ in named(remove_duplicate=False)) - first


def refuse_odd_parameters(model: nn.Module) -> None:
    """Refuse parameters without a shape or of complex numbers, and two in one memory, which a device would part.

    Raises:
        AppError: there are such; names them.
    """
    spans: list[tuple[int, int, str]] = []
    for name, parameter in model.named_parameters():
        if is_lazy(parameter):
            raise AppError(
                f"The parameter {name} of the model has no shape before a first batch. Give the layer its width "
                "(Linear instead of LazyLinear), or call the model once where it is built.",
                code="lazy",
                parameter=name,
            )
        if parameter.is_complex():
            raise AppError(
                f"The parameter {name} of the model has complex numbers, and a model travels as real ones. Make it of "
                "real ones in one more dimension of size 2, and use torch.view_as_complex of it.",
                code="complex",
                parameter=name,
            )
        last = sum(
            (size - 1) * stride for size, stride in zip(parameter.shape, parameter.stride(), strict=True)
        )
        if parameter.numel() and parameter.data_ptr():
            start = parameter.data_ptr()
            spans.append((start, start + (last + 1) * parameter.element_size(), name))
    spans.sort()
    for (_, stop, one), (start, _, other) in pairwise(spans):
        if start < stop:
            raise AppError(
                f"The parameters {one} and {other} of the model lie in the same memory and are two parameters. Tie "
                "weights by giving both modules the same torch.nn.Parameter."
            )


def hold_constants(model: nn.Module) -> None:
    """Keep buffers out of the vector that have values which are not finite, now that the model is built."""
    found = [
        name
        for name, tensor in travelling(model).items()
        if not isinstance(tensor, nn.Parameter) and not tensor.isfinite().all()
    ]
    if found:
        model.__dict__[_CONSTANTS] = (*getattr(model, _CONSTANTS, ()), *found)


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
    """Return the whole `state_dict()`, marked with what of it the flat vector leaves out, and with what is tied."""
    state = model.state_dict()
    goes = travelling(model)
    names = slots_by_name(model)
    mark: dict[str, Any] = {"travelling": list(goes)} if has_frozen(model) else {}
    if constants := getattr(model, _CONSTANTS, ()):
        mark["constants"] = list(constants)
    if len(names) > len(goes):
        mark["tied"] = {name: slot.name for name, slot in names.items() if name not in goes}
    if mark:
        metadata: dict[str, Any] = getattr(state, "_metadata")  # noqa: B009 - torch's, which its types do not name
        metadata[_MARK] = mark
    return state


def parts_of(state: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the tensors of a saved state that the flat vector holds, and all others where parameters are frozen.

    A tied tensor comes once where its copies are alike; a copy that is not is one of the others.
    """
    mark = getattr(state, "_metadata", {}).get(_MARK, {})
    tied: Mapping[str, str] = mark.get("tied", {})
    once = {n: tensor for n, tensor in state.items() if n not in tied or not tensor.equal(state[tied[n]])}
    if "travelling" not in mark:
        constants = mark.get("constants", ())
        return {n: one for n, one in once.items() if one.is_floating_point() and n not in constants}, {}
    goes = frozenset(map(str, mark["travelling"]))
    return (
        {name: tensor for name, tensor in once.items() if name in goes},
        {name: tensor for name, tensor in once.items() if name not in goes},
    )


def layout(model: nn.Module) -> tuple[Slot, ...]:
    """Return the names, shapes and positions of the flat vector's tensors."""
    slots: list[Slot] = []
    position = 0
    for name, tensor in travelling(model).items():
        is_buffer = not isinstance(tensor, nn.Parameter)
        slots.append(Slot(name, tuple(tensor.shape), position, position + tensor.numel(), is_buffer))
        position += tensor.numel()
    return tuple(slots)


def slots_by_name(model: nn.Module) -> dict[str, Slot]:
    """Return the slot of each name in the model: tied weights have one slot, and each of their names leads to it."""
    slots = {slot.name: slot for slot in layout(model)}
    by_tensor = {id(tensor): slots[name] for name, tensor in travelling(model).items()}
    state = model.state_dict(keep_vars=True)
    return {name: by_tensor[id(tensor)] for name, tensor in state.items() if id(tensor) in by_tensor}


def size_of_vector(model: nn.Module) -> int:
    """Return d, the length of the flat vector."""
    return sum(tensor.numel() for tensor in travelling(model).values())


def flatten(model: nn.Module) -> Vector:
    """Return the tensors that travel as one array of shape (d,), in the model's dtype."""
    tensors = travelling(model).values()
    return torch.cat([tensor.detach().reshape(-1).cpu() for tensor in tensors]).numpy()


def outputs_with(model: nn.Module, weights: Mapping[str, Tensor], inputs: Inputs) -> Tensor:
    """Return the model's outputs with `weights` in the place of its own, by the names of `named_parameters`.

    torch's `functional_call` alone leaves its weights in a module that the model has under two names.
    """
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    given = {
        place: weights[names[id(parameter)]]
        for prefix, module in model.named_modules()  # each module once
        for place, parameter in module.named_parameters(prefix, recurse=False, remove_duplicate=False)
        if names[id(parameter)] in weights
    }
    positional, named = arguments_of(inputs)
    return as_outputs(model, functional_call(model, given, positional, named, tie_weights=False))


def load(model: nn.Module, vector: Vector) -> None:
    """Write `vector` (d,) into the model, in place.

    Raises:
        UpdateRefused: the vector has another length than the model.
    """
    slots = layout(model)
    check_length(vector, size_of_vector(model))
    state = model.state_dict()
    with torch.no_grad():
        for slot in slots:
            into, own = state[slot.name], vector[slot.start : slot.stop]
            if not into.is_contiguous():
                into.copy_(torch.from_numpy(np.array(own.reshape(slot.shape))))
                continue
            for part in parts(own.size):  # copies stay in the cache; torch warns of what cannot be written to
                into.view(-1)[part].copy_(torch.from_numpy(np.array(own[part])))


def weighted_sum(terms: Sequence[tuple[float, Vector]]) -> Vector:
    """Compute Σ weight · vector over `terms`, of which there is one at least, in float64 and in their order.

    Summing in one fixed order makes runs reproducible whatever order replies arrive in. The result has the first
    vector's dtype. It takes no room beside the result: the vectors, which may lie in files, are read in chunks.
    """
    (share, first), *others = terms
    found: Vector = np.empty(first.shape, first.dtype)
    # Used again for each chunk, which costs less than new arrays.
    room = np.empty((2, min(CHUNK, len(first))))
    for part in parts(len(first)):
        total, term = room[:, : part.stop - part.start]
        total[:] = first[part]
        total *= share
        for weight, vector in others:
            term[:] = vector[part]
            term *= weight
            total += term
        found[part] = total
    return found


def add_weighted(start: Vector, terms: Mapping[str, tuple[float, Vector]]) -> Vector:
    """`start` + Σ weight · vector over `terms`, summed in the order of the keys as `weighted_sum` does."""
    return weighted_sum([(1.0, start), *(terms[key] for key in sorted(terms))])


def weighted_mean(models: Models) -> Vector:
    """Compute Σ (n_i / Σ n_j) θ_i over (n_i, θ_i) by client, summed in float64 in the order of client ids.

    Source: McMahan et al., FedAvg, Algorithm 1.
    """
    total = sum(count for count, _ in models.values())
    return weighted_sum([(models[key][0] / total, models[key][1]) for key in sorted(models)])


def in_chunks(compute: Callable[..., NDArray[np.float64]], first: Vector, *others: Vector) -> Vector:
    """Return what `compute` makes of vectors (d,), element by element in float64, in the dtype of the first.

    It gets a chunk of each at a time, so it takes no room beside the result.
    """
    found: Vector = np.empty(first.shape, first.dtype)
    for part in parts(len(first)):
        found[part] = compute(*(vector[part].astype(np.float64) for vector in (first, *others)))
    return found


def accumulate(total: Vector, weight: float, vector: Vector) -> None:
    """Add `weight` · `vector` to `total` (d,), in place and in chunks."""
    for part in parts(total.size):
        total[part] += weight * vector[part].astype(np.float64)


def dot(left: Vector, right: Vector) -> float:
    """Compute ⟨left, right⟩ in float64, without a float64 copy of the whole vectors."""
    if left.dtype == right.dtype == np.float64:
        return float(np.dot(left, right))
    total = 0.0
    for part in parts(left.size):
        one = left[part].astype(np.float64)
        total += float(np.dot(one, one if right is left else right[part].astype(np.float64)))
    return total


def norm(vector: Vector) -> float:
    """Compute ‖vector‖ in float64, without a float64 copy of the whole vector; infinite where the squares overflow."""
    with np.errstate(over="ignore"):
        return math.sqrt(dot(vector, vector))


def distance(one: Vector, other: Vector) -> float:
    """Compute ‖one − other‖ in float64, without a float64 copy of the whole vectors."""
    differences = (one[part].astype(np.float64) - other[part] for part in parts(one.size))
    return math.sqrt(sum(float(difference @ difference) for difference in differences))


def parts(stop: int, start: int = 0) -> Iterator[slice]:
    """Yield a vector's chunks from `start` to `stop`, to do in the cache what would else be passes through memory."""
    for begin in range(start, stop, CHUNK):
        yield slice(begin, min(begin + CHUNK, stop))


def check_length(vector: Vector, expected: int) -> None:
    """Refuse a vector that does not have the model's length.

    Raises:
        UpdateRefused: it is not one-dimensional or has another length.
    """
    if vector.ndim != 1 or vector.size != expected:
        raise UpdateRefused(
            f"The model has {expected:,} parameters, got an array of shape {vector.shape}. "
            "Check that every machine runs the same model and number of classes.",
            code="wrong-length",
            expected=expected,
        )


def check_finite(vector: Vector) -> None:
    """Refuse a vector with NaN or infinity.

    Raises:
        UpdateRefused: a value is not finite.
    """
    if count := count_not_finite(vector):
        raise UpdateRefused(
            f"{count:,} of {vector.size:,} values are not finite.", code="not-finite", count=count
        )


def count_not_finite(vector: Vector) -> int:
    """Return how many values of `vector` (d,) are NaN or infinite."""
    return sum(int(np.count_nonzero(~np.isfinite(vector[part]))) for part in parts(vector.size))


def content_hash(vector: Vector) -> str:
    """Return SHA-256 (hex) of the dtype, the length and the little-endian bytes of `vector`."""
    return _digest(hashlib.sha256(), vector)


def fingerprint(vector: Vector) -> str:
    """Return XXH3 (128 bits, hex) of the same bytes as `content_hash`, for far less time.

    It names the models of one sender. It is no proof: two models with the same fingerprint can be constructed.
    """
    return _digest(xxh3_128(), vector)


def _digest(digest: Any, vector: Vector) -> str:
    little = np.ascontiguousarray(vector, dtype=vector.dtype.newbyteorder("<"))
    digest.update(f"{little.dtype.str}:{little.size}:".encode())
    digest.update(bytes_of(little))
    return str(digest.hexdigest())
