"""The vectors of many forgettable units, and deletion by adding some of them.

Source: Qiao et al., Hessian-Free Online Certified Unlearning, Algorithm 1 (Stage III) and Theorem 1.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unlearning.errors import DataError
from unlearning.parameters import Vector, check_length


@dataclass(frozen=True, slots=True)
class UnitVectors:
    """The names of k forgettable units (a sample, a group, a client) and their vectors (k, d), row by row.

    Raises:
        DataError: a name comes twice, or there are more or fewer names than rows.
    """

    units: tuple[str, ...]
    vectors: NDArray[np.floating]

    def __post_init__(self) -> None:
        if self.vectors.ndim != 2 or len(self.units) != len(self.vectors):
            raise DataError(
                f"{len(self.units)} units need a matrix with a row for each, got one of shape "
                f"{self.vectors.shape}."
            )
        if len(set(self.units)) != len(self.units):
            raise DataError(f"Unit names must differ; {len(set(self.units))} of {len(self.units)} do.")

    def __len__(self) -> int:
        return len(self.units)

    def rows(self, chosen: Iterable[str]) -> list[Vector]:
        """Return the vectors of the `chosen` units, without a copy.

        Raises:
            DataError: a unit is unknown or named twice.
        """
        return [self.vectors[row] for row in self._rows(chosen)]

    def without(self, chosen: Iterable[str]) -> "UnitVectors":
        """Return the vectors of the others: a forgotten unit's vector depends on its data and must go.

        Raises:
            DataError: a unit is unknown or named twice.
        """
        rows = set(self._rows(chosen))
        kept = [row for row in range(len(self)) if row not in rows]
        return UnitVectors(tuple(self.units[row] for row in kept), self.vectors[kept])

    def _rows(self, chosen: Iterable[str]) -> list[int]:
        names = list(chosen)
        places = {unit: row for row, unit in enumerate(self.units)}
        unknown = sorted(set(names) - places.keys())
        if unknown or len(set(names)) != len(names):
            raise DataError(
                f"No vector was carried for {', '.join(map(repr, unknown))}; it cannot be forgotten by addition. Use "
                "another method, or declare the unit before training."
                if unknown
                else "A unit is named twice; it can be forgotten once."
            )
        return [places[name] for name in names]


def forgotten_by_addition(
    parameters: Vector, vectors: UnitVectors, chosen: Iterable[str], *, out: Vector | None = None
) -> Vector:
    """Compute W + Σ_{u∈U} a_u: the model (d,) without the `chosen` units, by addition alone.

    Written into `out` and returned where given, which spares a large model the time of fresh memory; `out`
    may be `parameters` itself.
    Raises:
        DataError: a unit has no vector or is named twice.
        UpdateRefused: `parameters` does not have the vectors' length.
    """
    check_length(parameters, vectors.vectors.shape[1])
    rows = vectors.rows(chosen)
    moved = np.empty_like(parameters) if out is None else out
    if not rows:
        np.copyto(moved, parameters)
    for number, row in enumerate(rows):
        np.add(moved if number else parameters, row, out=moved, casting="same_kind")
    return moved
