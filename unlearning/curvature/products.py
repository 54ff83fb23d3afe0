"""Products of a vector with the curvature of the mean loss over a data set.

An iterative solver asks for many products at the same parameters. The graph of a micro-batch is therefore
kept from one product to the next where memory allows, which saves a forward pass and, for the Hessian, the
first gradient. What does not fit the budget is built again each time, and the micro-batches are made smaller
where even one does not fit. After many products the derivative within a kept graph is recorded, which saves
another forward pass.
"""

import logging
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unlearning.curvature.kinds import (
    BATCH_CURVATURE,
    BatchCurvature,
    CurvatureKind,
    OutputCurvatureOfBatch,
)
from unlearning.curvature.local_loss import LocalLoss, exact_kernels
from unlearning.curvature.own_functions import check_own_functions
from unlearning.errors import NumericalError
from unlearning.parameters import Vector, accumulate
from unlearning.tasks.task import Examples, Task

_log = logging.getLogger(__name__)

DEFAULT_MEMORY_BUDGET_BYTES = 2**30
PREFERRED_BATCH_SIZE = {"cpu": 64, "cuda": 512}  # a CPU gains nothing from larger ones, a GPU does
RECORD_AFTER = 16
"""Products with one graph before its derivative is recorded: about when a CNN's recording would have paid."""
RECORD_FROM_BYTES = 4 * 2**20
"""Recording a smaller graph takes longer than hundreds of products with it."""
RECORDING_GRAPHS = 2
"""What a recording holds, in graphs of the same micro-batch: 1.2 to 1.8 were measured."""


class ProductPath(StrEnum):
    """How many micro-batches' graphs are kept between products: all, some, or none."""

    KEPT = "kept"
    MIXED = "mixed"
    REBUILT = "rebuilt"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """The micro-batches, and how many of them are kept and may be recorded."""

    batches: tuple[slice, ...]
    num_kept: int
    num_recordable: int

    @property
    def path(self) -> ProductPath:
        if self.num_kept == len(self.batches):
            return ProductPath.KEPT
        return ProductPath.MIXED if self.num_kept else ProductPath.REBUILT


class CurvatureProduct:
    """v ↦ C v + l2·v + damping·v, with C the curvature of the *mean* loss over `examples`.

    C and l2 have zero rows for what is not trainable (buffers, frozen weights); the damping is on the
    whole diagonal, so the damped matrix is regular. `l2` is what training calls weight decay.

    memory_budget_bytes: for the tensors that the graphs hold. Above it come a few vectors of the model's
        size and, while a product runs, about one more micro-batch's graph.
    micro_batch_size: how many examples go through the model at once; None: 64 on a CPU and 512 on a
        GPU, fewer where their graph exceeds the budget.

    Raises:
        DataError: there is no example.
        NumericalError: the model has no such curvature, or a setting is out of range; see `LocalLoss`.
        UpdateRefused: `parameters` does not have the model's length.
    """

    def __init__(
        self,
        task: Task,
        parameters: Vector,
        examples: Examples,
        *,
        kind: CurvatureKind,
        damping: float = 0.0,
        l2: float = 0.0,
        memory_budget_bytes: int = DEFAULT_MEMORY_BUDGET_BYTES,
        micro_batch_size: int | None = None,
    ) -> None:
        if micro_batch_size is not None and micro_batch_size < 1:
            raise NumericalError(f"micro_batch_size must be 1 or more, got {micro_batch_size}.")
        self.kind, self.damping, self.l2 = CurvatureKind(kind), damping, l2
        self.num_products = 0
        self._local = LocalLoss(task, parameters, examples)
        check_own_functions(self._local.loss_of_few(), task, parameters, examples, self.kind)
        self._plan = self._make_plan(memory_budget_bytes, micro_batch_size)
        self._kept: list[BatchCurvature] = []
        self._products_with_kept = 0
        self.num_recorded = 0
        """How many micro-batches' derivatives are recordings."""
        self._sum = self._local.zeros()

    @property
    def num_examples(self) -> int:
        """How many examples the mean is taken over."""
        return len(self._local)

    @property
    def dimension(self) -> int:
        """d, the length of a vector."""
        return self._local.dimension

    @property
    def path(self) -> ProductPath:
        """Whether the graphs of all, some or none of the micro-batches are kept."""
        return self._plan.path

    @property
    def num_micro_batches(self) -> int:
        """How many pieces the examples go through the model in."""
        return len(self._plan.batches)

    def __call__(self, vector: Vector, out: Vector | None = None) -> Vector:
        """Return the product, shape (d,), in the task's dtype; written into `out` and returned where given.

        Raises:
            UpdateRefused: `vector` or `out` does not have the model's length.
        """
        local, parts = self._local, self._local.split(vector)
        self._sum.zero_()
        with exact_kernels(local.device):
            for index, batch in enumerate(self._plan.batches):
                keep = index < self._plan.num_kept
                local.add(self._sum, self._graph(index, batch, keep).product(parts, keep=keep))
        if self.l2:
            local.add(self._sum, parts, self.l2)
        product = np.empty(self.dimension, dtype=self._dtype) if out is None else out
        np.copyto(product, self._sum.cpu().numpy())
        if self.damping:
            accumulate(product, self.damping, vector)
        self.num_products += 1
        self._products_with_kept += 1
        if self._products_with_kept == RECORD_AFTER:
            self._record()
        return product

    def release(self) -> None:
        """Free the kept graphs; the next product builds them again."""
        self._kept.clear()
        self._products_with_kept = self.num_recorded = 0

    def _record(self) -> None:
        """Record the derivatives of as many kept graphs as memory allows; what fails for one fails for all."""
        self.num_recorded = 0
        with exact_kernels(self._local.device):
            for graph in self._kept[: self._plan.num_recordable]:
                if not (isinstance(graph, OutputCurvatureOfBatch) and graph.record()):
                    break
                self.num_recorded += 1
        _log.info("%d of %d kept derivatives are recorded.", self.num_recorded, len(self._kept))

    @property
    def _dtype(self) -> np.dtype[Any]:
        return torch.empty(0, dtype=self._local.task.dtype).numpy().dtype

    def _graph(self, index: int, batch: slice, keep: bool) -> BatchCurvature:
        if index < len(self._kept):
            return self._kept[index]
        graph = BATCH_CURVATURE[self.kind](self._local, batch)
        if keep:
            self._kept.append(graph)
        return graph

    def _make_plan(self, budget: int, asked_size: int | None) -> _Plan:
        fixed, per_example = self._graph_bytes()
        preferred = PREFERRED_BATCH_SIZE.get(self._local.device.type, PREFERRED_BATCH_SIZE["cpu"])
        fitting = max(1, (budget - fixed) // max(1, per_example))
        size = min(len(self._local), asked_size or min(preferred, fitting))
        batch_bytes = fixed + size * per_example
        batches = tuple(self._local.batches(size))
        total = len(batches) * fixed + len(self._local) * per_example
        # one graph's room is left for the batch that is being rebuilt
        num_kept = len(batches) if total <= budget else max(0, budget // batch_bytes - 1)
        spare = max(0, budget - num_kept * batch_bytes)
        num_recordable = min(num_kept, spare // max(1, RECORDING_GRAPHS * batch_bytes))
        if batch_bytes < RECORD_FROM_BYTES:
            num_recordable = 0
        plan = _Plan(batches=batches, num_kept=num_kept, num_recordable=num_recordable)
        reduced = asked_size is None and fitting < min(preferred, len(self._local))
        _log.info(
            "%s products over %d examples, %s path: the graphs of %d of %d micro-batches are kept; one of %d "
            "examples holds %.1f MB, the budget is %.1f MB.%s",
            self.kind,
            len(self._local),
            plan.path,
            num_kept,
            len(batches),
            size,
            batch_bytes / 1e6,
            budget / 1e6,
            f" Micro-batches of {preferred} examples do not fit it." if reduced else "",
        )
        return plan

    def _graph_bytes(self) -> tuple[int, int]:
        """Return what a micro-batch's graph holds: a fixed part, and so much for each example, in bytes."""
        one = self._measured_bytes(slice(0, 1))
        if len(self._local) == 1:
            return 0, one
        two = self._measured_bytes(slice(0, 2))
        per_example = max(0, two - one)
        return max(0, one - per_example), per_example

    def _measured_bytes(self, batch: slice) -> int:
        """Return the storages that the graph of `batch` holds beside the model's parameters, in bytes."""
        held: dict[int, Tensor] = {}
        # The tensors are held until they are counted, so no address is used twice.
        with (
            exact_kernels(self._local.device),
            torch.autograd.graph.saved_tensors_hooks(
                lambda saved: _remember(held, saved), lambda saved: saved
            ),
        ):
            BATCH_CURVATURE[self.kind](self._local, batch)
        for tensor in (*self._local.model.parameters(), *self._local.model.buffers()):
            held.pop(tensor.untyped_storage().data_ptr(), None)
        bytes_held = sum(tensor.untyped_storage().nbytes() for tensor in held.values())
        if self.kind is CurvatureKind.HESSIAN:  # its graph ends in a whole gradient, which is kept too
            bytes_held += sum(one.numel() * one.element_size() for one in self._local.trainable)
        return bytes_held


def _remember(held: dict[int, Tensor], saved: Tensor) -> Tensor:
    # detached: a graph whose node holds its own output with its history would never be freed
    detached = saved.detach()
    held.setdefault(detached.untyped_storage().data_ptr(), detached)
    return detached


def relative_damping(damping: float, largest: float) -> dict[str, float]:
    """Return the estimate of the largest eigenvalue (weight decay included, damping not), and λ as a multiple of it.

    λ is a bias wherever it is not small beside the eigenvalues that matter, so its size alone says nothing.
    """
    found = {"largest eigenvalue (estimate from below)": largest}
    return {**found, "damping relative to it": damping / largest} if largest > 0 else found
