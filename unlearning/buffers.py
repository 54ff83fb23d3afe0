"""Floating-point buffers in the flat vector, such as BatchNorm's running means and variances.

They are statistics of data. Rounds of training average them like parameters, but their change is no direction: negated
or scaled it gives variances below zero, and its length says nothing of how far training has moved a model. So norms and
distances are of parameters only, and methods get updates that are zero for buffers (`unlearning.methods.updates`).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from unlearning.errors import UpdateRefused
from unlearning.parameters import CHUNK, Vector, dot, layout, parts
from unlearning.runtime.spool import to_be_written
from unlearning.tasks.task import Task
from unlearning.training import structure

_VARIANCE = "running_var"


@dataclass(frozen=True, slots=True)
class _Places:
    """Positions in a model's flat vector of the length `size`."""

    size: int
    buffers: NDArray[np.intp]
    variances: NDArray[np.intp]


def buffer_positions(task: Task) -> NDArray[np.intp]:
    """Return where buffers are in the flat vector (d,) of the task's model."""
    return _places(task).buffers


def buffers_in(task: Task, vector: Vector) -> NDArray[np.intp]:
    """Return where buffers are in a vector of the task's model, or of one shard's; none in one of another length."""
    places = _places_in(task, vector)
    return np.zeros(0, dtype=np.intp) if places is None else places.buffers


def without_buffers(task: Task, vector: Vector) -> Vector:
    """Return `vector` with zeros for buffers; itself where the model has none.

    It may also be of one shard's model, where the task's is an ensemble.
    """
    positions = buffers_in(task, vector)
    if not positions.size:
        return vector
    found = vector.copy()
    found[positions] = 0
    return found


def drop_buffers(task: Task, vector: Vector) -> Vector:
    """Return what `without_buffers` does; of numbers in a file (`unlearning.runtime.spool`) these very ones.

    So no client's answer is copied into memory. What its buffers were is gone.
    """
    own = to_be_written(vector)
    if own is None:
        return without_buffers(task, vector)
    own[buffers_in(task, vector)] = 0
    return own


def with_buffers_of(task: Task, vector: Vector, source: Vector) -> Vector:
    """Return `vector` (d,) with the buffers of `source` (d,); itself where the model has none."""
    positions = buffer_positions(task)
    if not positions.size:
        return vector
    found = vector.copy()
    found[positions] = source[positions]
    return found


@dataclass(frozen=True, eq=False)
class Change:
    """`after` − `before` (d,) in their dtype, or `after` itself; zero at the positions `zeros`, which ascend.

    It is never held as a whole, and computed in chunks wherever it is looked at.
    """

    after: Vector
    before: Vector | None = None
    zeros: NDArray[np.intp] = field(default_factory=lambda: np.zeros(0, dtype=np.intp))

    @cached_property
    def norm(self) -> float:
        """The Euclidean norm, computed in float64."""
        with np.errstate(over="ignore", invalid="ignore"):  # the numbers are a client's
            return math.sqrt(sum(dot(chunk, chunk) for chunk in self.chunks()))

    def chunks(self) -> Iterator[Vector]:
        """Yield the change, a chunk at a time; the next chunk overwrites it. Clients may answer any kind of number."""
        dtypes = [vector.dtype for vector in (self.after, self.before) if vector is not None]
        chunk = np.empty(CHUNK, np.result_type(*dtypes, np.float32))
        for part in parts(len(self.after)):
            after = self.after[part]
            found = chunk[: len(after)]
            np.subtract(after, 0 if self.before is None else self.before[part], out=found)
            if self.zeros.size:
                first, last = np.searchsorted(self.zeros, (part.start, part.stop))
                found[self.zeros[first:last] - part.start] = 0
            yield found


def deviations(task: Task, model: Vector) -> Vector:
    """Compute √|b| of each buffer b of a model, or of one shard's: of a variance it is the standard deviation.

    So inputs that are ten times as spread count ten times, not a hundred times.
    """
    found: Vector = np.sqrt(np.abs(model[buffers_in(task, model)]))
    return found


def check_variances(task: Task, model: Vector) -> None:
    """Refuse a model, or one shard's, with a running variance below zero: what it normalises would not be a number.

    Raises:
        UpdateRefused: it has one.
    """
    places = _places_in(task, model)
    wrong = 0 if places is None else int((model[places.variances] < 0).sum())
    if wrong:
        raise UpdateRefused(f"{wrong:,} of its running variances are negative, which training never gives.")


def _places_in(task: Task, vector: Vector) -> _Places | None:
    """Return the positions in a vector of the task's model, or of one shard's; None where it is of neither's length."""
    for one in (task, task.shard):
        if one is not None and (places := _places(one)).size == vector.size:
            return places
    return None


@lru_cache(maxsize=8)
def _places(task: Task) -> _Places:
    slots = layout(structure(task))
    buffers = [slot for slot in slots if slot.is_buffer]
    variances = [slot for slot in buffers if slot.name.rpartition(".")[2] == _VARIANCE]
    found = (
        np.concatenate([np.arange(slot.start, slot.stop) for slot in some] or [np.zeros(0, dtype=np.intp)])
        for some in (buffers, variances)
    )
    return _Places(slots[-1].stop if slots else 0, *found)
