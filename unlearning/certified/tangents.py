"""Tangents carried through local training: how the trained model moves when its start is moved.

    w    the model's weights       H_b   Hessian of batch b's mean loss at w     η    learning rate
    a    a tangent (d,)            μ     weight decay                            β    momentum

A step of SGD, w ← w − η(∇ℓ_b(w) + μw), takes a tangent a at w to a − η(H_b a + μa). Carried through all steps,
tangents are multiplied by the derivative of the local training map, without that matrix. With momentum their
velocities are carried beside them.

Products with H_b share the batch's kept graph. One by one or as a block: see `BlockProducts`.

Source: Qiao et al., Hessian-Free Online Certified Unlearning (Eqs. 8 and 9), for the recursion.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import StrEnum
from functools import partial
from logging import getLogger

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from unlearning.curvature.kinds import CurvatureKind
from unlearning.curvature.local_loss import trainable_places, twice_differentiable
from unlearning.curvature.own_functions import check_own_functions
from unlearning.embeddings import differentiable_embeddings
from unlearning.errors import ConfigurationError, NumericalError
from unlearning.parameters import Vector, check_length, is_held
from unlearning.tasks.task import Examples, Task
from unlearning.training import Trained, TrainingSettings, model_with, task_of, train

_log = getLogger(__name__)

_BLOCK_BYTES = 64 * 2**20
_SMALL_DIMENSION = 20_000


class BlockProducts(StrEnum):
    """How k products with one kept graph are made.

    loop: one backward pass a vector; least memory, and faster for large models on a CPU.
    batched: one backward pass for a block of vectors; faster where a pass is mostly overhead (small models).
    auto: batched for small models, where it was measured to be faster on a CPU, and on a GPU; else loop.
    """

    AUTO = "auto"
    LOOP = "loop"
    BATCHED = "batched"


class Weights:
    """A model's trainable tensors and their places in the flat vector.

    Raises:
        NumericalError: the model keeps running statistics, which training changes without a derivative, or
            trains nothing.
    """

    def __init__(self, model: nn.Module) -> None:
        for name, module in model.named_modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm) and not is_held(module):
                raise NumericalError(
                    f"The layer {name!r} normalises by the batch and keeps running statistics, which no tangent "
                    "follows. Use GroupNorm."
                )
        self.dimension, places = trainable_places(model)
        if not places:
            raise NumericalError("The model has no trainable parameter, so no tangent. Unfreeze some.")
        self.tensors: tuple[Tensor, ...] = tuple(places)
        self.places: tuple[slice, ...] = tuple(places.values())
        self._can_batch = True

    def gradients(
        self, loss: Tensor, *, create_graph: bool = False, retain_graph: bool = False
    ) -> tuple[Tensor, ...]:
        """Compute ∇ `loss`, one tensor a trainable parameter; with the graph that products need, or keeping
        the loss's.
        """
        return torch.autograd.grad(
            loss,
            self.tensors,
            create_graph=create_graph,
            retain_graph=create_graph or retain_graph,
            allow_unused=True,
            materialize_grads=True,
        )

    def flat(self, parts: Sequence[Tensor]) -> Tensor:
        """Return one tensor a trainable parameter as a flat vector (d,), zero where nothing is trained."""
        first = self.tensors[0]
        whole = torch.zeros(self.dimension, dtype=first.dtype, device=first.device)
        for part, place in zip(parts, self.places, strict=True):
            whole[place] = part.detach().reshape(-1)
        return whole

    def products(self, gradients: Sequence[Tensor], block: Tensor) -> tuple[Tensor, ...]:
        """Compute H a for every row a of `block` (rows, d), a tensor (rows, ...) a trainable parameter.

        The graph of `gradients` is kept. Of a single row the tensors are as the parameters are. Not every PyTorch can
        batch every layer; row by row the products are the same.
        """
        shaped = [
            block[:, place].reshape(-1, *one.shape)
            for place, one in zip(self.places, self.tensors, strict=True)
        ]
        if len(block) > 1 and self._can_batch:
            try:
                return _products(gradients, self.tensors, shaped, batched=True)
            except RuntimeError as exc:
                # Of GroupNorm before PyTorch 2.14. Where there is no second derivative it is raised again below.
                _log.debug("Products are made row by row: %s", exc)
                self._can_batch = False
        rows = [
            _products(gradients, self.tensors, [vectors[row] for vectors in shaped], batched=False)
            for row in range(len(block))
        ]
        return rows[0] if len(rows) == 1 else tuple(map(torch.stack, zip(*rows, strict=True)))


class TangentBlock:
    """k tangents (k, d) of one model, moved in place as the model's optimiser steps."""

    def __init__(self, weights: Weights, tangents: Tensor, how: BlockProducts = BlockProducts.AUTO) -> None:
        self.weights, self.tangents = weights, tangents
        self._velocities: Tensor | None = None
        num_bytes = tangents.element_size() * weights.dimension
        self._rows = max(1, _BLOCK_BYTES // max(1, num_bytes)) if _is_batched(how, tangents) else 1

    def __len__(self) -> int:
        return len(self.tangents)

    def advance(
        self,
        gradients: Sequence[Tensor],
        *,
        learning_rate: float,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
        scales: Tensor | None = None,
    ) -> None:
        """Take a to a − η(s H a + s μ a) for every tangent; H from the graph of `gradients`, scales s (k,) or 1.

        With momentum β the velocity v ← βv + (H a + μ a) takes the place of the bracket, as in torch's SGD.
        """
        if momentum and self._velocities is None:
            self._velocities = torch.zeros_like(self.tangents)
        for start in range(0, len(self), self._rows):
            rows = slice(start, min(start + self._rows, len(self)))
            products = self.weights.products(gradients, self.tangents[rows])
            for place, part in zip(self.weights.places, products, strict=True):
                block = self.tangents[rows, place]
                # not in place: autograd may return one tensor for two parameters, or an expanded one
                change = part.reshape(len(block), -1)
                if weight_decay:
                    change = change.add(block, alpha=weight_decay)
                if scales is not None:
                    change = change * scales[rows, None]
                if self._velocities is not None:
                    change = self._velocities[rows, place].mul_(momentum).add_(change)
                block.sub_(change, alpha=learning_rate)


def vector_bytes(*, dimension: int, num_units: int, dtype: torch.dtype, momentum: bool = False) -> int:
    """Return the bytes that `num_units` vectors of a model of `dimension` numbers take, to be known
    beforehand.

    With momentum twice as many while training runs. Beside them come one batch's graph and a block of at
    most 64 MiB of vectors (or one vector) with its products.
    """
    itemsize = torch.empty(0, dtype=dtype).element_size()
    return dimension * num_units * itemsize * (2 if momentum else 1)


def check_memory(needed: int, limit: int, num_units: int) -> None:
    """Refuse vectors that would take more than `limit` bytes.

    Raises:
        ConfigurationError: they would.
    """
    if needed > limit:
        raise ConfigurationError(
            [
                f"Vectors for {num_units:,} forgettable units take {needed / 2**20:,.0f} MiB and the limit is "
                f"{limit / 2**20:,.0f} MiB. Declare fewer or larger units (a client, a group of samples: one vector "
                "each), or raise the limit."
            ]
        )


def train_with_tangents(
    task: Task,
    parameters: Vector,
    examples: Examples,
    settings: TrainingSettings,
    tangents: NDArray[np.floating],
    *,
    how: BlockProducts = BlockProducts.AUTO,
) -> tuple[Trained, NDArray[np.floating]]:
    """Return what `training.train` returns, bit for bit, and J a for each tangent a: shapes (k, d).

    J is the derivative of the trained parameters with respect to `parameters`. Nothing that is passed is
    changed. Entries that are not trained (frozen weights) are carried through as they are, and their effect on
    the others is not followed.

    Raises:
        ConfigurationError: the optimiser is not SGD, whose step has the derivative that is used here; or gradients are
            clipped, by a norm that depends on the weights too.
        DataError: there is no example to train on.
        NumericalError: the model has no second derivative, or keeps running statistics.
        UpdateRefused: `parameters` or `tangents` do not have the model's length.
    """
    if settings.optimizer != "sgd":
        raise ConfigurationError(
            [f"Tangents are carried through SGD only, got the optimizer {settings.optimizer!r}. Use sgd."]
        )
    if settings.clip_norm:
        raise ConfigurationError(
            [
                f"Tangents are not carried through clipped gradients, got clip_norm {settings.clip_norm:g}: the factor "
                "has a derivative of its own, which is not followed. Set clip_norm to 0."
            ]
        )
    model = model_with(task, parameters)
    check = partial(
        check_own_functions,
        task=task,
        parameters=parameters,
        examples=examples,
        kind=CurvatureKind.HESSIAN,
    )
    carrier = _Carrier(task, model, settings, tangents, how, check)
    watched = replace(task_of(task, model), loss=carrier.loss)
    with differentiable_embeddings(model):
        trained = train(watched, parameters, examples, settings)
    return trained, carrier.carry_tangents()


class _Carrier:
    """Watches `train` through its task: its model, and each batch's loss before its step.

    `train` calls the loss once a step, at the weights that the step starts from, so the products are those of
    exactly the step that follows, and training itself stays one function.
    """

    def __init__(
        self,
        task: Task,
        model: nn.Module,
        settings: TrainingSettings,
        tangents: NDArray[np.floating],
        how: BlockProducts,
        check: Callable[[Tensor], None],
    ) -> None:
        self._task, self._model, self._settings, self._how = task, model, settings, how
        self._check = check
        self._given = tangents
        self._block: TangentBlock | None = None

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        loss = self._task.loss(outputs, targets)
        if self._given.shape[:1] == (0,):
            return loss
        block = self._block
        if block is None:
            self._check(loss)
            block = self._initial()
        sign = -1.0 if self._settings.maximize else 1.0
        with twice_differentiable(self._task):
            gradients = block.weights.gradients(loss * sign, create_graph=True)
            block.advance(
                gradients,
                learning_rate=self._settings.learning_rate,
                weight_decay=self._settings.weight_decay,
                momentum=self._settings.momentum,
            )
        return loss

    def carry_tangents(self) -> NDArray[np.floating]:
        if self._block is None:
            return self._given.copy()
        carry_tangents: NDArray[np.floating] = (
            self._block.tangents.cpu().numpy().astype(self._given.dtype, copy=False)
        )
        return carry_tangents

    def _initial(self) -> TangentBlock:
        weights = Weights(self._model)
        for tangent in self._given:
            check_length(tangent, weights.dimension)
        first = weights.tensors[0]
        copied = torch.from_numpy(np.array(self._given)).to(first.device, first.dtype)
        self._block = TangentBlock(weights, copied, self._how)
        return self._block


def _products(
    gradients: Sequence[Tensor], inputs: Sequence[Tensor], vectors: Sequence[Tensor], *, batched: bool
) -> tuple[Tensor, ...]:
    """Compute H v, or with `batched` H v for every row of `vectors`; the graph of `gradients` is kept."""
    # the gradient of a parameter in which the loss is linear, or which is unused, is a constant
    varying = [pair for pair in zip(gradients, vectors, strict=True) if pair[0].requires_grad]
    if not varying:
        return tuple(torch.zeros_like(vector) for vector in vectors)
    products = torch.autograd.grad(
        [gradient for gradient, _ in varying],
        inputs,
        [vector for _, vector in varying],
        retain_graph=True,
        allow_unused=True,
        is_grads_batched=batched,
    )
    return tuple(
        torch.zeros_like(vector) if product is None else product
        for product, vector in zip(products, vectors, strict=True)
    )


def _is_batched(how: BlockProducts, tangents: Tensor) -> bool:
    if how is BlockProducts.AUTO:
        return tangents.is_cuda or math.prod(tangents.shape[1:]) <= _SMALL_DIMENSION
    return how is BlockProducts.BATCHED
