"""What the closed cost formulas are made of; each method's own is its `cost`, the papers' in PUF's Appendix B.

P   parameters of the model         B     bytes of one parameter
C_u targets                         C_r   retained clients that take part
C_p targets that keep a part        C     C_u + C_r
F   training FLOPs of one example   N     examples of one client
E   local epochs                    P_c   parameters of the classifier head

communication  2 P B for each trip of the model to a client and back; headers and evaluation are not counted
computation    F N E for each of these trips
recovery       2 P B (C_r + C_p) R bytes and F N E (C_r + C_p) R FLOPs in R rounds, whatever the method
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from unlearning.errors import DataError
from unlearning.runtime.devices import inputs_for, targets_for
from unlearning.tasks.inputs import outputs_of
from unlearning.tasks.task import Examples, Task
from unlearning.training import initial_parameters, model_with

GRADIENTS_PER_PRODUCT = 2.0
"""What a product with the curvature costs, in gradients."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Bytes on the wire in both directions, floating-point operations at the clients, bytes stored."""

    communication_bytes: int
    computation_flops: float
    storage_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkDone:
    """How much work an unlearning was, as far as only the method knows; 0 where it counts none.

    rounds: training rounds that were repeated. products: of a solver. vectors: that are kept for deletions.
    """

    rounds: int = 0
    products: int = 0
    vectors: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CostSymbols:
    """The formulas' symbols; N may be a mean over clients.

    training_rounds: that there have been. work: of an unlearning that has finished; None for one that is planned.
    """

    num_parameters: int
    bytes_per_parameter: int
    num_targets: int
    num_retained: int
    flops_per_example: float
    examples_per_client: float
    epochs: float
    num_partial: int = 0
    num_head_parameters: int = 0
    num_classes: int = 0
    training_rounds: int = 0
    work: WorkDone | None = None

    @property
    def model_bytes(self) -> int:
        """Compute P·B."""
        return self.num_parameters * self.bytes_per_parameter

    @property
    def head_bytes(self) -> int:
        """Compute P_c·B."""
        return self.num_head_parameters * self.bytes_per_parameter

    @property
    def num_clients(self) -> int:
        """Compute C = C_u + C_r."""
        return self.num_targets + self.num_retained

    @property
    def num_staying(self) -> int:
        """Compute C_r + C_p: all that have something to train on afterwards."""
        return self.num_retained + self.num_partial

    @property
    def repeated_rounds(self) -> int:
        """Return the training rounds that were repeated; all there have been, where the method has counted none."""
        return (self.work.rounds if self.work else 0) or self.training_rounds

    def trips(
        self, count: int, *, epochs: float | None = None, storage_bytes: int = 0, second_vectors: int = 0
    ) -> Cost:
        """Compute 2 P B · count bytes and F N E · count FLOPs: the model goes to a client and back, trained.

        second_vectors: how many times a client sends one more vector, P B bytes.
        """
        work = self.flops_per_example * self.examples_per_client * (self.epochs if epochs is None else epochs)
        return Cost(self.model_bytes * (2 * count + second_vectors), work * count, storage_bytes)


def recovery_cost(symbols: CostSymbols, rounds: int) -> Cost:
    """Compute what `rounds` ordinary rounds of all that stay cost."""
    return symbols.trips(symbols.num_staying * rounds)


def solver_epochs(num_products: int) -> float:
    """Compute 1 + c·k passes over a client's data: the gradient, and each of k products at c gradients."""
    return 1 + GRADIENTS_PER_PRODUCT * num_products


def training_flops(task: Task, examples: Examples) -> float:
    """Count the FLOPs of one forward and backward pass, an example, counted on `examples` as one batch.

    By PyTorch's formulas: matrix products, convolutions and attention, a multiply-add as two.

    Raises:
        DataError: there is no example to count on.
    """
    if len(examples) == 0:
        raise DataError("FLOPs are counted on at least one example, got none.")
    model = model_with(task, initial_parameters(task, seed=0))
    inputs, targets = examples.batch(slice(None))
    here = torch.device("cpu")
    with torch.enable_grad(), FlopCounter() as counter:
        outputs = outputs_of(model, inputs_for(task, inputs, here))
        loss = task.loss(outputs, targets_for(task, targets, here))
        loss.backward()  # type: ignore[no-untyped-call]
    return float(counter.total) / len(examples)


class FlopCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A context that adds up matrix products, convolutions and attention, forward and backward, in `total`.

    PyTorch's `FlopCounterMode` counts the same. At its first operation it imports PyTorch's compiler, to be left alone
    by it: 1.3 s of processor time and 70 MiB of a ServerApp that compiles nothing.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        # Here, because it imports Triton, a seventh of a second in the process of each message.
        from torch.utils.flop_counter import flop_registry

        self._formulas = flop_registry
        self.total = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Say that nothing here need be kept from the compiler; it is not there."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Tensor | tuple[Tensor, ...]:
        """Run the operation and count it."""
        given = kwargs or {}
        result: Tensor | tuple[Tensor, ...] = func(*args, **given)
        formula = self._formulas.get(func._overloadpacket)
        if formula is not None:
            self.total += formula(*args, **given, out_val=result)
        return result
