"""HF-online: training that carries, for each forgettable unit, the vector whose addition forgets it.

    w_t     the model before step t           b    size of batch B_t, m of them belong to unit u
    η       learning rate of step t           g_B, H_B   gradient and Hessian of B_t's mean loss at w_t
    a_u     the unit's vector, 0 at first     g_u, H_u   the same of u's examples in B_t
    ℓ with its L2 term μ/2 ‖w‖²

fixed (the paper)        a_u ← (I − ηH_B) a_u + η (m/b) g_u
    equals, to first order, retraining with w ← w − (η/b) Σ_{B∖u} ∇ℓ
renormalised (default)   a_u ← (I − ηH_{B∖u}) a_u + η m/(b−m) (g_u − g_B)
    equals, to first order, retraining with w ← w − η/(b−m) Σ_{B∖u} ∇ℓ; a batch that is u's alone is left out
as published code        a_u ← (I − ηH_B)(a_u + η (m/b) g_u): the fresh gradient is multiplied once too often

Deletion is w + Σ_{u∈U} a_u. With fixed weighting the vector of a group is the sum of its members' vectors, so one
vector a unit is enough, whatever its size; renormalised that holds to first order.

Source: Qiao et al., Hessian-Free Online Certified Unlearning, Algorithms 1 and 3.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.certified.unit_vectors import UnitVectors
from unlearning.certified.sensitivity import Weighting
from unlearning.certified.tangents import (
    BlockProducts,
    TangentBlock,
    Weights,
    check_memory,
    vector_bytes,
)
from unlearning.curvature.local_loss import exact_kernels
from unlearning.errors import ConfigurationError, DataError
from unlearning.parameters import Vector, flatten
from unlearning.runtime.devices import computing_device, inputs_for, targets_for
from unlearning.tasks.task import Examples, Task
from unlearning.training import TrainingSettings, model_with

DEFAULT_MEMORY_LIMIT_BYTES = 2**30


@dataclass(frozen=True, slots=True)
class BatchStep:
    """One step of SGD: the positions of its examples and its learning rate."""

    positions: NDArray[np.intp]
    learning_rate: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OnlineSettings:
    """How the vectors are carried.

    l2: training's weight decay, μ.
    weighting: what retraining would do with a batch that has lost examples.
    as_published_code: the published code's recursion instead of the paper's; fixed weighting only.
    memory_limit_bytes: for the vectors.

    Raises:
        ConfigurationError: the published recursion is asked for with renormalised batches.
    """

    l2: float = 0.0
    weighting: Weighting = Weighting.RENORMALISED
    as_published_code: bool = False
    memory_limit_bytes: int = DEFAULT_MEMORY_LIMIT_BYTES
    products: BlockProducts = BlockProducts.AUTO

    def __post_init__(self) -> None:
        if self.as_published_code and self.weighting is not Weighting.FIXED:
            raise ConfigurationError(
                ["as_published_code exists for fixed weighting only; set weighting to fixed."]
            )


@dataclass(frozen=True, slots=True)
class OnlineTrained:
    """The trained model (d,) and each unit's vector."""

    parameters: Vector
    vectors: UnitVectors


def fixed_batches(
    num_examples: int, settings: TrainingSettings, *, learning_rate_decay: float = 1.0
) -> tuple[BatchStep, ...]:
    """Return the batches that `training.train` would draw, to be kept; η is multiplied by the decay after
    each epoch.
    """
    generator = torch.Generator().manual_seed(settings.seed)
    return tuple(
        BatchStep(batch.numpy(), settings.learning_rate * learning_rate_decay**epoch)
        for epoch in range(settings.epochs)
        for batch in torch.split(torch.randperm(num_examples, generator=generator), settings.batch_size)
    )


def train_online(
    task: Task,
    parameters: Vector,
    examples: Examples,
    plan: Sequence[BatchStep],
    units: Mapping[str, NDArray[np.intp]],
    settings: OnlineSettings,
) -> OnlineTrained:
    """Train from `parameters` (d,) along `plan`, and carry a vector for each of `units`.

    units: the positions of each unit's examples; no example belongs to two.

    Raises:
        ConfigurationError: the vectors would take more memory than the limit.
        DataError: a position is none of the examples', or belongs to two units.
        NumericalError: the model keeps running statistics.
        UpdateRefused: `parameters` does not have the model's length.
    """
    return _carry(_Trajectory(task, parameters, examples, settings), plan, units)


def repair(
    task: Task,
    parameters: Vector,
    retained: Examples,
    plan: Sequence[BatchStep],
    units: Mapping[str, NDArray[np.intp]],
    vectors: UnitVectors,
    settings: OnlineSettings,
    *,
    add_as_published: bool = False,
) -> OnlineTrained:
    """Fine-tune after deletions on what is `retained`, with the vectors of the units that remain kept up to date.

    The stored vectors are carried on through the new steps, which is the derivative of both trainings together;
    `add_as_published` starts new ones at zero and adds them to the stored, which forgets that
    fine-tuning also wears off what was learnt before.
    units: the positions among `retained` of each unit in `vectors`, in any order.

    Source: Qiao et al., Hessian-Free Online Certified Unlearning, Algorithm 3.

    Raises:
        ConfigurationError: the vectors would take more memory than the limit.
        DataError: the units are not those of `vectors`, or a position is wrong; see `train_online`.
        NumericalError: the model keeps running statistics.
        UpdateRefused: `parameters` does not have the model's length.
    """
    if set(units) != set(vectors.units):
        raise DataError(
            f"Repairing needs the positions of the {len(vectors)} units that have vectors, got {len(units)} units. "
            "Leave out the forgotten, and nobody else."
        )
    ordered = {unit: units[unit] for unit in vectors.units}
    if add_as_published:
        fresh = train_online(task, parameters, retained, plan, ordered, settings)
        return OnlineTrained(
            fresh.parameters, UnitVectors(vectors.units, vectors.vectors + fresh.vectors.vectors)
        )
    return _carry(_Trajectory(task, parameters, retained, settings), plan, ordered, vectors.vectors)


def retrained_on_batches(
    task: Task,
    parameters: Vector,
    examples: Examples,
    plan: Sequence[BatchStep],
    forgotten: NDArray[np.intp],
    settings: OnlineSettings,
) -> Vector:
    """Return exact retraining (d,): the same start and batches, without the examples at the positions
    `forgotten`.

    With nothing forgotten it is plain training along `plan`.

    Raises:
        UpdateRefused: `parameters` does not have the model's length.
    """
    trajectory = _Trajectory(task, parameters, examples, settings)
    with exact_kernels(trajectory.device):
        for step in plan:
            left = step.positions[~np.isin(step.positions, forgotten)]
            if len(left) == 0:
                continue
            share = 1.0 if settings.weighting is Weighting.RENORMALISED else len(left) / len(step.positions)
            gradients = trajectory.weights.gradients(trajectory.loss(left))
            trajectory.step(gradients, step.learning_rate * share)
    return flatten(trajectory.model)


class _Trajectory:
    """The model on its way, in eval mode, and the mean losses of sets of examples at the present weights."""

    def __init__(self, task: Task, parameters: Vector, examples: Examples, settings: OnlineSettings) -> None:
        self.task, self.examples, self.settings = task, examples, settings
        self.device = computing_device()
        self.model = model_with(task, parameters).to(self.device).eval()
        self.weights = Weights(self.model)

    def loss(self, positions: NDArray[np.intp]) -> Tensor:
        """Return the mean loss of the examples at `positions`, without the L2 term."""
        inputs, targets = self.examples.batch(positions)
        outputs = self.model(inputs_for(self.task, inputs, self.device))
        return self.task.loss(outputs, targets_for(self.task, targets, self.device))

    def step(self, gradients: Sequence[Tensor], learning_rate: float) -> None:
        """Step W ← w − η(g + μw), in the order of operations of torch's SGD."""
        with torch.no_grad():
            for tensor, gradient in zip(self.weights.tensors, gradients, strict=True):
                tensor.sub_(gradient.detach().add(tensor, alpha=self.settings.l2), alpha=learning_rate)


def _carry(
    trajectory: _Trajectory,
    plan: Sequence[BatchStep],
    units: Mapping[str, NDArray[np.intp]],
    start: NDArray[np.floating] | None = None,
) -> OnlineTrained:
    """Train along `plan` and carry the units' vectors, from `start` (k, d) or from zero."""
    settings, weights, dtype = trajectory.settings, trajectory.weights, trajectory.task.dtype
    owner = _owners(units, len(trajectory.examples))
    needed = vector_bytes(dimension=weights.dimension, num_units=len(units), dtype=dtype)
    check_memory(needed, settings.memory_limit_bytes, len(units))
    block = TangentBlock(
        weights,
        torch.zeros(len(units), weights.dimension, dtype=dtype, device=trajectory.device)
        if start is None
        else torch.from_numpy(np.array(start)).to(trajectory.device, dtype),
        settings.products,
    )
    with exact_kernels(trajectory.device):
        for step in plan:
            loss = trajectory.loss(step.positions)
            # Some layers (GroupNorm) have other kernels where the gradient's own graph is wanted. The model steps by
            # the plain ones, so that carrying vectors changes no bit of it.
            plain = trajectory.weights.gradients(loss, retain_graph=len(block) > 0)
            if len(block):
                gradients = trajectory.weights.gradients(loss, create_graph=True)
                _advance(trajectory, block, gradients, step, owner)
            trajectory.step(plain, step.learning_rate)
    return OnlineTrained(flatten(trajectory.model), UnitVectors(tuple(units), block.tangents.cpu().numpy()))


def _advance(
    trajectory: _Trajectory,
    block: TangentBlock,
    gradients: Sequence[Tensor],
    step: BatchStep,
    owner: NDArray[np.intp],
) -> None:
    """Advance one step of the recursion in the module's docstring, for all units at once.

    The whole block is multiplied with H_B. What the units in the batch add is computed from their own
    examples, before it where the old a_u enters: (b−m) H_{B∖u} = b H_B − m H_u.
    """
    settings, size = trajectory.settings, len(step.positions)
    direct = dict(_direct_terms(trajectory, block, gradients, step, owner))
    if settings.as_published_code:
        for unit, term in direct.items():
            block.tangents[unit] += term
    scales = None
    if settings.weighting is Weighting.RENORMALISED and direct:
        scales = torch.ones(len(block), dtype=block.tangents.dtype, device=block.tangents.device)
        for unit, members in _members(step, owner):
            left = size - len(members)
            scales[unit] = size / left if left else 0.0
    block.advance(gradients, learning_rate=step.learning_rate, weight_decay=settings.l2, scales=scales)
    if not settings.as_published_code:
        for unit, term in direct.items():
            block.tangents[unit] += term


def _direct_terms(
    trajectory: _Trajectory,
    block: TangentBlock,
    gradients: Sequence[Tensor],
    step: BatchStep,
    owner: NDArray[np.intp],
) -> Iterator[tuple[int, Tensor]]:
    """Yield what each unit in the batch adds to its vector beside the product with H_B, (d,)."""
    weights, settings = trajectory.weights, trajectory.settings
    eta, size = step.learning_rate, len(step.positions)
    renormalised = settings.weighting is Weighting.RENORMALISED
    w = weights.flat(weights.tensors)
    whole = weights.flat(gradients) if renormalised else None
    for unit, members in _members(step, owner):
        count = len(members)
        if whole is not None and count == size:  # retraining leaves the step out, L2 term and all
            yield unit, eta * (whole + settings.l2 * w)
            continue
        own = weights.gradients(trajectory.loss(members), create_graph=renormalised)
        if whole is None:
            yield unit, eta * count / size * (weights.flat(own) + settings.l2 * w)
            continue
        vector = block.tangents[unit]
        product = weights.flat(weights.products(own, vector[None]))
        trained = weights.flat([vector[place] for place in weights.places])
        curved = product + settings.l2 * trained
        yield unit, eta * count / (size - count) * (weights.flat(own) - whole + curved)


def _members(step: BatchStep, owner: NDArray[np.intp]) -> Iterator[tuple[int, NDArray[np.intp]]]:
    """Yield the units with examples in the batch, and those examples' positions."""
    owners = owner[step.positions]
    for unit in np.unique(owners[owners >= 0]):
        yield int(unit), step.positions[owners == unit]


def _owners(units: Mapping[str, NDArray[np.intp]], num_examples: int) -> NDArray[np.intp]:
    """Return the number of the unit that each example belongs to, −1 for none."""
    owner = np.full(num_examples, -1, dtype=np.intp)
    for number, (name, positions) in enumerate(units.items()):
        if len(positions) and not 0 <= np.min(positions) <= np.max(positions) < num_examples:
            raise DataError(f"Unit {name!r} names positions outside the {num_examples} examples.")
        if (owner[positions] >= 0).any() or len(np.unique(positions)) != len(positions):
            raise DataError(
                f"Unit {name!r} names an example twice, or one of another unit. Units must not overlap."
            )
        owner[positions] = number
    return owner
