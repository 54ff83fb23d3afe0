"""What unlearning costs by the papers' closed formulas, beside what is measured on the wire.

Source: PUF, Appendix B, cost table.

    P   parameters of the model         B   bytes of one parameter
    C_u targets                         C_r retained clients that take part
    C = C_u + C_r                       R   rounds of recovery
    F   training FLOPs of one example   N   examples of one client
    E   local epochs

              communication (bytes)     computation (FLOPs)
PUF-Special   2 P B C_u                 F N E C_u
PUF-Regular   2 P B C                   F N E C
recovery      2 P B C_r R               F N E C_r R

The factor 2 counts both directions. Message headers and evaluation are not in the formulas.
"""

from dataclasses import dataclass

import torch
from torch.utils.flop_counter import FlopCounterMode

from unlearning.errors import DataError
from unlearning.tasks.task import Examples, Task
from unlearning.training import build


@dataclass(frozen=True, slots=True, kw_only=True)
class CostSymbols:
    """The formulas' symbols; N may be a mean over clients."""

    num_parameters: int
    bytes_per_parameter: int
    num_targets: int
    num_retained: int
    flops_per_example: float
    examples_per_client: float
    epochs: int


@dataclass(frozen=True, slots=True)
class Cost:
    """Bytes on the wire in both directions, and floating-point operations at the clients."""

    communication_bytes: int
    computation_flops: float


def puf_special_cost(symbols: CostSymbols) -> Cost:
    """One round of the targets: 2PB·C_u bytes and F·N·E·C_u FLOPs."""
    return _rounds(symbols, symbols.num_targets)


def puf_regular_cost(symbols: CostSymbols) -> Cost:
    """One round of targets and retained clients: 2PB·C bytes and F·N·E·C FLOPs."""
    return _rounds(symbols, symbols.num_targets + symbols.num_retained)


def recovery_cost(symbols: CostSymbols, rounds: int) -> Cost:
    """`rounds` ordinary rounds of the retained clients: 2PB·C_r·R bytes and F·N·E·C_r·R FLOPs."""
    return _rounds(symbols, symbols.num_retained * rounds)


def training_flops(task: Task, examples: Examples) -> float:
    """The FLOPs of one forward and backward pass, an example, counted on `examples` as one batch.

    PyTorch's counter counts matrix products, convolutions and attention, a multiply-add as two.

    Raises:
        DataError: there is no example to count on.
    """
    if len(examples) == 0:
        raise DataError("FLOPs are counted on at least one example, got none.")
    model = build(task, seed=0)
    with torch.enable_grad(), FlopCounterMode(display=False) as counter:
        loss = task.loss(model(examples.inputs.to(task.dtype)), examples.targets)
        loss.backward()  # type: ignore[no-untyped-call]
    return float(counter.get_total_flops()) / len(examples)


def _rounds(symbols: CostSymbols, participations: int) -> Cost:
    return Cost(
        communication_bytes=2 * symbols.num_parameters * symbols.bytes_per_parameter * participations,
        computation_flops=(
            symbols.flops_per_example * symbols.examples_per_client * symbols.epochs * participations
        ),
    )
