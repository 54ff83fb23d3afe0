"""What unlearning costs by the papers' closed formulas, beside what is measured on the wire.

Source: PUF, Appendix B, cost table; the rows marked * are ours, by the same way of counting.

    P   parameters of the model         B     bytes of one parameter
    C_u targets                         C_r   retained clients that take part
    C = C_u + C_r                       P_c   parameters of the classifier head
    F   training FLOPs of one example   N     examples of one client
    E   local epochs                    k     products of a solver, each c times the cost of a gradient
    R_ret   rounds of training that are repeated           E_cal   epochs of a calibration (may be 0.5)
    E_asc   epochs of ascent                               R_d, R_m   MoDe's degradation, guidance rounds
    S       shards, of which P counts all    C_s   retained clients of the touched ones    L   slices
    V       clients that may be forgotten by a vector, C where that is not known

                     communication (bytes)     computation (FLOPs)            storage (bytes)
puf-special          2 P B C_u                 F N E C_u                      P B
puf-regular          2 P B C                   F N E C                        P B
not                  0                         0                              P B
fedau                2 P_c B                   0                              P B
fedau-learning *     2 P_c B                   0                              C P_c B
sisa *               2 P B C_s R_ret           F N E C_s R_ret / S            L P B
hf-online *          0                         0                              V P B
pga                  2 P B                     F N E_asc C_u                  C P B
federaser            2 P B C_r R_ret           F N E_cal C_r R_ret            C R_ret P B
mode                 2 P B (C_r R_d + C R_m)   F N E (C_r R_d + C R_m)        2 P B
gradient-ascent *    2 P B C_u                 F N E_asc C_u                  P B
hf-kcu * (both)      2 P B C_u                 F N (1 + c k) C_u              P B
newton-cg *          2 P B C_r (1 + k)         F N (1 + c k) C_r              P B
retrain *            2 P B C_r R_ret           F N E C_r R_ret                P B
natural *            0                         0                              P B
recovery (all)       2 P B C_r R               F N E C_r R                    0

hf-online pays in training instead: every training message carries V vectors more, 2 P B (1 + V) a client and round.
The factor 2 counts both directions. Message headers and evaluation are not in the formulas.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from unlearning.errors import DataError
from unlearning.tasks.task import Examples, Task
from unlearning.training import build

TOLERANCE = 0.01
"""A difference between formula and measurement above this share is explained."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostSymbols:
    """The formulas' symbols; N may be a mean over clients. What a method's formula lacks is left out."""

    num_parameters: int
    bytes_per_parameter: int
    num_targets: int
    num_retained: int
    flops_per_example: float
    examples_per_client: float
    epochs: float
    num_head_parameters: int = 0
    repeated_rounds: int = 0
    calibration_epochs: float = 0.5
    ascent_epochs: float = 1.0
    degradation_rounds: int = 6
    guidance_rounds: int = 10
    num_products: int = 0
    gradients_per_product: float = 2.0
    num_shards: int = 1
    num_slices: int = 1
    num_vectors: int = 0

    @property
    def model_bytes(self) -> int:
        """P·B."""
        return self.num_parameters * self.bytes_per_parameter

    @property
    def num_clients(self) -> int:
        """C = C_u + C_r."""
        return self.num_targets + self.num_retained


@dataclass(frozen=True, slots=True)
class Cost:
    """Bytes on the wire in both directions, floating-point operations at the clients, bytes stored."""

    communication_bytes: int
    computation_flops: float
    storage_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Comparison:
    """A formula's bytes beside the measured ones; `ratio` is measured / formula, None if that is 0 or unknown."""

    formula_bytes: int
    measured_bytes: int | None
    ratio: float | None
    explanation: str


def formula_cost(method: str, symbols: CostSymbols) -> Cost:
    """What the unlearning phase of `method` (its registered name) costs by the table above; no recovery.

    Raises:
        DataError: there is no closed formula for this method.
    """
    try:
        formula = FORMULAS[method]
    except KeyError:
        raise DataError(
            f"There is no closed cost formula for {method!r}; there is one for {', '.join(sorted(FORMULAS))}."
        ) from None
    return formula(symbols)


def with_parameters(method: str, parameters: Mapping[str, Any], symbols: CostSymbols) -> CostSymbols:
    """`symbols` with what the method's own validated parameters say: products, epochs, rounds, shards.

    The solvers' number of products is their most; a retraining of 0 rounds keeps the symbols' own.
    """
    own = {name: value for name, value in parameters.items() if isinstance(value, int | float)}
    changes: dict[str, float] = {
        symbol: own[name] for name, symbol in _PARAMETERS.get(method, {}).items() if own.get(name)
    }
    if method == "federaser" and "calibration_ratio" in own:
        changes["calibration_epochs"] = own["calibration_ratio"] * symbols.epochs
    return replace(symbols, **changes)  # type: ignore[arg-type] # every value is of its symbol's type


def recovery_cost(symbols: CostSymbols, rounds: int) -> Cost:
    """`rounds` ordinary rounds of the retained clients: 2PB·C_r·R bytes and F·N·E·C_r·R FLOPs."""
    return _rounds(symbols, symbols.num_retained * rounds)


def puf_special_cost(symbols: CostSymbols) -> Cost:
    """One round of the targets: 2PB·C_u bytes and F·N·E·C_u FLOPs."""
    return _storing(_rounds(symbols, symbols.num_targets), symbols.model_bytes)


def puf_regular_cost(symbols: CostSymbols) -> Cost:
    """One round of targets and retained clients: 2PB·C bytes and F·N·E·C FLOPs."""
    return _storing(_rounds(symbols, symbols.num_clients), symbols.model_bytes)


def compare(
    formula_bytes: int, measured_bytes: int | None, *, num_messages: int, why: str = ""
) -> Comparison:
    """Formula beside measurement, with what they differ by, in words, where that is more than 1 %.

    num_messages: how many messages to clients the measured bytes belong to.
    why: the reason where it is known, in words; else the messages' headers are named.
    """
    if measured_bytes is None:
        return Comparison(formula_bytes, None, None, "not measured")
    ratio = measured_bytes / formula_bytes if formula_bytes else None
    if measured_bytes == formula_bytes or (ratio is not None and abs(ratio - 1) <= TOLERANCE):
        return Comparison(formula_bytes, measured_bytes, ratio, "")
    difference = measured_bytes - formula_bytes
    if difference > 0 and num_messages:
        words = (
            f"{difference / num_messages:,.0f} bytes for each message and its answer are not in the formula: "
            + (why or "it counts model vectors only, and messages carry settings and names too")
        )
    elif difference < 0:
        words = f"{-difference:,} bytes fewer than in the formula: " + (
            why or "fewer clients answered than it counts, or they sent less than a model"
        )
    else:
        words = "the formula counts no message, but some were exchanged"
    return Comparison(formula_bytes, measured_bytes, ratio, words)


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


def _rounds(symbols: CostSymbols, participations: int, epochs: float | None = None) -> Cost:
    """`participations` trips of the model to a client and back, each with so many local epochs."""
    return Cost(
        communication_bytes=2 * symbols.model_bytes * participations,
        computation_flops=(
            symbols.flops_per_example
            * symbols.examples_per_client
            * (symbols.epochs if epochs is None else epochs)
            * participations
        ),
    )


def _storing(cost: Cost, storage_bytes: int) -> Cost:
    return replace(cost, storage_bytes=storage_bytes)


def _nothing(symbols: CostSymbols) -> Cost:
    return Cost(0, 0.0, symbols.model_bytes)


def _hf_online(symbols: CostSymbols) -> Cost:
    return Cost(0, 0.0, (symbols.num_vectors or symbols.num_clients) * symbols.model_bytes)


def _fedau(symbols: CostSymbols) -> Cost:
    head_bytes = symbols.num_head_parameters * symbols.bytes_per_parameter
    return Cost(2 * head_bytes, 0.0, symbols.model_bytes)


def _fedau_learning(symbols: CostSymbols) -> Cost:
    head_bytes = symbols.num_head_parameters * symbols.bytes_per_parameter
    return Cost(2 * head_bytes, 0.0, symbols.num_clients * head_bytes)


def _sisa(symbols: CostSymbols) -> Cost:
    """F is that of all shards' models; a client trains its own shard's, and is sent them all."""
    again = recovery_cost(symbols, symbols.repeated_rounds)
    return Cost(
        again.communication_bytes,
        again.computation_flops / symbols.num_shards,
        symbols.num_slices * symbols.model_bytes,
    )


def _pga(symbols: CostSymbols) -> Cost:
    flops = _rounds(symbols, symbols.num_targets, symbols.ascent_epochs).computation_flops
    return Cost(2 * symbols.model_bytes, flops, symbols.num_clients * symbols.model_bytes)


def _federaser(symbols: CostSymbols) -> Cost:
    rounds = symbols.repeated_rounds
    replay = _rounds(symbols, symbols.num_retained * rounds, symbols.calibration_epochs)
    return _storing(replay, symbols.num_clients * rounds * symbols.model_bytes)


def _mode(symbols: CostSymbols) -> Cost:
    degradation = symbols.num_retained * symbols.degradation_rounds
    guidance = symbols.num_clients * symbols.guidance_rounds
    return _storing(_rounds(symbols, degradation + guidance), 2 * symbols.model_bytes)


def _gradient_ascent(symbols: CostSymbols) -> Cost:
    return _storing(_rounds(symbols, symbols.num_targets, symbols.ascent_epochs), symbols.model_bytes)


def _passes_of_a_solve(symbols: CostSymbols) -> float:
    """1 + c·k passes over a client's data: the gradient, and each product at c gradients."""
    return 1 + symbols.gradients_per_product * symbols.num_products


def _hf_kcu(symbols: CostSymbols) -> Cost:
    return _storing(_rounds(symbols, symbols.num_targets, _passes_of_a_solve(symbols)), symbols.model_bytes)


def _newton_cg(symbols: CostSymbols) -> Cost:
    flops = _rounds(symbols, symbols.num_retained, _passes_of_a_solve(symbols)).computation_flops
    trips = symbols.num_retained * (1 + symbols.num_products)
    return Cost(2 * symbols.model_bytes * trips, flops, symbols.model_bytes)


def _retrain(symbols: CostSymbols) -> Cost:
    return _storing(recovery_cost(symbols, symbols.repeated_rounds), symbols.model_bytes)


FORMULAS: Mapping[str, Callable[[CostSymbols], Cost]] = {
    "puf-special": puf_special_cost,
    "puf-regular": puf_regular_cost,
    "not": _nothing,
    "fedau": _fedau,
    "fedau-learning": _fedau_learning,
    "sisa": _sisa,
    "hf-online": _hf_online,
    "pga": _pga,
    "federaser": _federaser,
    "mode": _mode,
    "gradient-ascent": _gradient_ascent,
    "hf-kcu": _hf_kcu,
    "hf-kcu-influence": _hf_kcu,
    "newton-cg": _newton_cg,
    "retrain": _retrain,
    "natural": _nothing,
}
"""By a method's registered name."""

_PARAMETERS: Mapping[str, Mapping[str, str]] = {
    "pga": {"epochs": "ascent_epochs"},
    "gradient-ascent": {"epochs": "ascent_epochs"},
    "hf-kcu": {"iterations": "num_products"},
    "hf-kcu-influence": {"iterations": "num_products"},
    "newton-cg": {"iterations": "num_products"},
    "retrain": {"rounds": "repeated_rounds"},
    "sisa": {"shards": "num_shards", "slices": "num_slices"},
    "mode": {
        "degradation_rounds": "degradation_rounds",
        "guidance_rounds": "guidance_rounds",
        "epochs": "epochs",
    },
}
"""A method's own parameter, or an option of its preparation → the symbol that it sets."""
