"""What a client adds to a round's sum, as a vector of the ring, and what the server reads from the sum.

    (Σ_i Σ_j r_j n_j Δ_j, for buffers Σ_i Σ_j n_j Δ_j over what is kept;  1, clipped, Σ n_j, Σ n_j kept, n · loss)

Weights are in the vector and as counts beside it; the server divides sums. No count of a single client is seen.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unlearning.buffers import buffer_positions
from unlearning.errors import DataError, SecureAggregationError
from unlearning.parameters import Vector
from unlearning.secure_aggregation.ring import Ring, clipped, from_ring, scale_of, to_ring
from unlearning.secure_aggregation.terms import RoundTerms
from unlearning.tasks.task import Task

TAIL = 5
"""How many numbers stand behind the vector."""
MOST_EXAMPLES, MOST_RATE = 1_000_000, 1000.0
"""The most examples of a client where `max-client-examples` says nothing, and the largest rate of any method."""
_LOSS_STEPS, _MOST_LOSS = 2**16, 1e3


@dataclass(frozen=True, slots=True, kw_only=True)
class SumTerm:
    """An update Δ (d,) of training on `count` examples, as a method adds it: times `rate`, and clipped before that.

    keeps: whether it was trained on what is kept, so that its buffers count.
    """

    update: Vector
    count: int
    rate: float = 1.0
    keeps: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class SecureTotal:
    """What the server learns of a round: sums over `clients`.

    step (d,): the mean update, by examples. num_examples: of all terms; num_kept: of those that keep.
    num_clipped: clients that shortened an update. loss: the mean; None without examples.
    coarseness: the most by which fixed point has moved a coordinate of num_examples · step.
    counts: of a measurement, in place of all these.
    """

    clients: tuple[str, ...]
    step: NDArray[np.float64]
    num_examples: int = 0
    num_kept: int = 0
    num_clipped: int = 0
    loss: float | None = None
    coarseness: float = 0.0
    counts: NDArray[np.int64]

    def applied_to(self, model: Vector) -> Vector:
        """Return the model (d,) after the step."""
        moved: Vector = (model.astype(np.float64) + self.step).astype(model.dtype)
        return moved

    @property
    def shares(self) -> Mapping[str, int]:
        """The mean count of examples for each client: no client's own is known."""
        return dict.fromkeys(self.clients, max(1, self.num_kept // len(self.clients)))


def addend(task: Task, parts: Sequence[SumTerm], loss: float, terms: RoundTerms) -> Ring:
    """Return a client's vector (d + TAIL,).

    Raises:
        DataError: it counts more examples than a sum can hold, or a value is not finite.
    """
    if sum(part.count * max(1.0, abs(part.rate)) for part in parts) > terms.max_weight:
        raise DataError("This site counts too many examples for a sum: raise max-client-examples in the run.")
    free, was_clipped = buffer_positions(task), False
    total = np.zeros(terms.length - TAIL)
    for part in parts:
        if part.update.shape != total.shape:
            raise SecureAggregationError("The work gave a vector of another length.", code="wrong-length")
        vector, was_longer = clipped(part.update, terms.clip_norm, free)
        buffers = vector[free] * (part.count if part.keeps else 0)
        vector *= part.rate * part.count
        vector[free] = buffers
        total += vector
        was_clipped |= was_longer
    count, kept = (sum(part.count for part in parts if part.keeps or every) for every in (True, False))
    known = min(max(loss, -_MOST_LOSS), _MOST_LOSS) if np.isfinite(loss) else _MOST_LOSS
    tail = [1, int(was_clipped), count, kept, round(count * known * _LOSS_STEPS)]
    scale = scale_of(terms.num_clients, terms.max_weight, terms.clip_norm)
    return np.concatenate([to_ring(total, scale), np.array(tail, dtype=np.int64).view(np.uint64)])


def read_total(task: Task, total: Ring, terms: RoundTerms, clients: Sequence[str]) -> SecureTotal:
    """Return what the sum of clients' addends says.

    Raises:
        SecureAggregationError: it is none: some were asked for other work, or sent what no client adds.
    """
    ones, num_clipped, count, kept, loss = total[-TAIL:].view(np.int64).tolist()
    check_ones(ones, clients)
    if not (0 <= kept <= count <= len(clients) * terms.max_weight and 0 <= num_clipped <= len(clients)):
        raise SecureAggregationError("A client sent a wrong vector: counts make no sense.", code="no-sum")
    scale = scale_of(terms.num_clients, terms.max_weight, terms.clip_norm)
    step = from_ring(total[:-TAIL], scale)
    free = buffer_positions(task)
    buffers = step[free] / max(kept, 1)
    step /= max(count, 1)
    step[free] = buffers
    return SecureTotal(
        clients=tuple(clients),
        step=step,
        num_examples=count,
        num_kept=kept,
        num_clipped=num_clipped,
        loss=loss / _LOSS_STEPS / count if count else None,
        coarseness=len(clients) / (2 * scale),
        counts=np.zeros(0, dtype=np.int64),
    )


def check_ones(ones: int, clients: Sequence[str]) -> None:
    """Refuse a sum to which not every client has added its 1.

    Raises:
        SecureAggregationError: the masks did not cancel.
    """
    if ones != len(clients):
        raise SecureAggregationError("The masks do not cancel: not all had the same work.", code="no-sum")
