"""One vector for each forgettable unit: deletion by adding it, and of whole clients a round of FedAvg.

    θ, θ⁺   the model before and after the round         φ_i(θ)   client i's local model; θ⁺ = Σ_i w_i φ_i(θ)
    w_i     n_i by Σ n_j over those that took part        J_i      the derivative of φ_i at θ
    a_u     client u's vector, 0 until it first takes part; θ + a_u is the model without it

renormalised (default)   a_u ← Σ_{i≠u} w_i/(1−w_u) J_i a_u + w_u/(1−w_u) (θ⁺ − φ_u(θ))
    equals, to first order, retraining in which the others' weights add up to one. Where u was alone in the
    round, retraining leaves the model as it is: a_u ← a_u + θ − θ⁺, exactly
fixed (the paper)        a_u ← Σ_i w_i J_i a_u + w_u (θ − φ_u(θ))
    equals, to first order, retraining with the old weights in which u sends the model back as it came

A client that did not take part has w_u = 0, and nothing of it enters. "To first order" means: what is left out
is of the size of ‖a_u‖² and w_u ‖a_u‖, so a client of half the weight has a quarter of the error.

Source: Qiao et al., Hessian-Free Online Certified Unlearning (Eqs. 8 and 9), with FedAvg's map in the place of
a step of SGD; the derivation is ours.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unlearning.certified.sensitivity import Weighting
from unlearning.errors import DataError
from unlearning.parameters import Models, Vector, check_length


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
    Source: Qiao et al., Hessian-Free Online Certified Unlearning, Algorithm 1 (Stage III) and Theorem 1.

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


def vector_after_round(
    vector: Vector,
    carried: Mapping[str, Vector],
    models: Models,
    *,
    unit: str,
    before: Vector,
    after: Vector,
    weighting: Weighting,
) -> Vector:
    """Return `unit`'s vector (d,) after a round, summed in float64 in the order of client ids.

    vector: the unit's vector a_u before the round.
    carried: J_i a_u by client, of all that took part.
    models: by client, number of examples and φ_i(θ). before, after: θ and θ⁺.
    """
    total = sum(count for count, _ in models.values())
    own = models[unit][0] if unit in models else 0
    moved = np.zeros(vector.size)
    if weighting is Weighting.FIXED:
        for client in sorted(models):
            moved += models[client][0] / total * carried[client].astype(np.float64)
        if own:
            moved += own / total * (before.astype(np.float64) - models[unit][1])
    elif own == total:
        moved = vector.astype(np.float64) + before - after
    else:
        for client in sorted(models):
            if client != unit:
                moved += models[client][0] / (total - own) * carried[client].astype(np.float64)
        if own:
            moved += own / (total - own) * (after.astype(np.float64) - models[unit][1])
    after_round: Vector = moved.astype(vector.dtype)
    return after_round
