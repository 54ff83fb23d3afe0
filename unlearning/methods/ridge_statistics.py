"""The sums that a ridge head is made of, the head, and how far rounding has taken it from the exact one.

    X̃  inputs with a 1 behind (n, D)    Y  one-hot labels (n, C)    G = X̃ᵀX̃    B = X̃ᵀY    λ  the L2 term
    Θ  the head (D, C), the last row its bias:  Θ* = argmin ½‖X̃Θ − Y‖² + λ/2 ‖Θ‖² = (G + λI)⁻¹ B

All in float64. Of the head Θ that came out, with R = B − (G + λI)Θ,

    ‖Θ − Θ*‖ ≤ ( ‖R‖ + ‖δR‖ + ‖δG‖ ‖Θ‖ + ‖δB‖ ) / λ          in Frobenius norms

because the exact G is positive semidefinite. What rounding has done to the sums and to R is bounded by the standard
model (Higham, Accuracy and Stability of Numerical Algorithms, §3.1 and §3.5: an inner product of n terms is off by at
most γ(n) Σ|xᵢ||yᵢ|, γ(n) = nu/(1 − nu), in whatever order it is summed), for client i of N with n_i examples:

    ‖δG_i‖ ≤ γ(n_i + N) tr G_i     ‖δB_i‖ ≤ γ(n_i + N) √(n_i tr G_i)     ‖δR‖ ≤ γ(D + 3) (‖B‖ + (‖G‖ + λ) ‖Θ‖)

A sum over clients in fixed point is off by at most c more a number: D c on ‖δG‖, √(DC) c on ‖δB‖. Of it n_i is all n,
which is no less than the sum over the clients.

So the bound is computed of what was found, not asserted of the algorithm: a solver that failed would show in R.
Inputs are taken to be what the model gets, and each client's sums to be of its data.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import scipy  # its parts are imported at their first use
import torch
from numpy.typing import NDArray

from unlearning.errors import DataError, NumericalError, UpdateRefused
from unlearning.parameters import Vector
from unlearning.runtime.stores import Arrays
from unlearning.tasks.batches import InOrder
from unlearning.tasks.inputs import one_tensor
from unlearning.tasks.task import Examples

Matrix = NDArray[np.float64]

SUMMED_AT_ONCE = 4096
"""Examples; the bound on rounding holds for sums in any order."""
UNIT = 2.0**-53
SLACK = 1.01
"""Traces and norms are themselves computed; they are off by far less than this."""

MOST_EXAMPLES, LARGEST = 2**40, 1e100
"""Of one client's data, and of its sum of squares: with more neither the head nor its bound would be a number."""

GRAM, MOMENTS, COUNT = "gram", "moments", "num_examples"


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """G (D, D), B (D, C) and n of one client, or of several as one sum.

    coarseness: the most by which a number of G or B is off, beside `roundings` more roundings of it than in summing.
    """

    gram: Matrix
    moments: Matrix
    num_examples: int
    coarseness: float = 0.0
    roundings: int = 0

    @classmethod
    def of(cls, examples: Examples, layer: torch.nn.Linear) -> "Statistics":
        """Compute those of `examples` for a model that is this one linear layer.

        Raises:
            DataError: an input is not finite.
        """
        width = width_of(layer)
        gram, moments = np.zeros((width, width)), np.zeros((width, layer.out_features))
        for batch, targets in examples.batches(InOrder(len(examples), SUMMED_AT_ONCE)):
            inputs = (
                one_tensor(batch, "exact ridge takes one")
                .numpy()
                .reshape(len(targets), layer.in_features)
                .astype(np.float64)
            )
            if not np.isfinite(inputs).all():
                raise DataError(
                    "An input is not a finite number, and no sum over inputs would be one. Mend it."
                )
            if layer.bias is not None:
                inputs = np.concatenate([inputs, np.ones((len(inputs), 1))], axis=1)
            gram += inputs.T @ inputs
            moments += inputs.T @ np.eye(layer.out_features)[targets.numpy()]
        return cls(gram=gram, moments=moments, num_examples=len(examples))

    def per_example(self) -> NDArray[np.float64]:
        """Return the triangle of G and B, each by n, as one vector (`size_of`,)."""
        return np.concatenate([_triangle(self.gram), self.moments.ravel()]) / max(self.num_examples, 1)

    @classmethod
    def of_mean(
        cls, mean: NDArray[np.float64], layer: torch.nn.Linear, num_examples: int, **known: Any
    ) -> "Statistics":
        """Return what has this `per_example`; `known`: the other fields."""
        width = width_of(layer)
        triangle, moments = np.split(mean * num_examples, [width * (width + 1) // 2])
        return cls(
            gram=_symmetric(triangle, width),
            moments=moments.reshape(width, layer.out_features),
            num_examples=num_examples,
            **known,
        )

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return them as they travel and are kept: of the symmetric G its upper triangle, row by row."""
        return {GRAM: _triangle(self.gram), MOMENTS: self.moments, COUNT: np.array(self.num_examples)}

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> "Statistics":
        """Return what `to_arrays` has made.

        Raises:
            UpdateRefused: it is something else.
        """
        if not {GRAM, MOMENTS, COUNT} <= set(arrays):
            raise UpdateRefused(
                "It lacks the sums that exact ridge is made of; the client runs other settings."
            )
        triangle, moments, count = arrays[GRAM], arrays[MOMENTS], arrays[COUNT]
        size = moments.shape[0] if moments.ndim == 2 else 0
        sound = (
            size > 0
            and triangle.shape == (size * (size + 1) // 2,)
            and triangle.dtype == moments.dtype == np.float64
            and np.isfinite(triangle).all()
            and np.isfinite(moments).all()
            and count.ndim == 0
            and count.dtype.kind in "iu"
            and int(count) >= 0
        )
        if not sound:
            raise UpdateRefused("Its sums are malformed, of another type than float64, or not finite.")
        return cls(
            gram=_symmetric(triangle, size), moments=moments.astype(np.float64), num_examples=int(count)
        )

    @classmethod
    def from_client(cls, arrays: Arrays) -> "Statistics":
        """Return what a client sends.

        Raises:
            UpdateRefused: it cannot be the sums of any data.
        """
        found = cls.from_arrays(arrays)
        found.check()
        return found

    def check(self) -> None:
        """Refuse sums that no data has: the bound rests on a positive semidefinite G, and so does that there is a head.

        Up to rounding every G is that, and by Cauchy and Schwarz no number of B is over √(n G_dd).

        Raises:
            UpdateRefused: they are such.
        """
        size, squares = len(self.gram), np.diagonal(self.gram)
        with np.errstate(over="ignore"):
            trace = float(squares.sum())
        if (squares < 0).any() or trace > LARGEST or self.num_examples > MOST_EXAMPLES:
            raise UpdateRefused(
                f"It has {self.num_examples:,} examples and sums of squares of {squares.min():.3g} to "
                f"{squares.max():.3g}, which no data has."
            )
        slack = SLACK * trace * (_gamma(self.num_examples + 1) + 4 * size * (size + 1) * UNIT)
        fits = bool((self.moments**2 <= self.num_examples * (squares + slack)[:, None]).all())
        if fits and self.gram.any():
            shifted = self.gram.copy()
            shifted[np.diag_indices(size)] += slack
            try:  # in LAPACK's order, which of a symmetric matrix is the transposed one: no copy is made
                scipy.linalg.cholesky(shifted.T, lower=True, overwrite_a=True, check_finite=False)
            except np.linalg.LinAlgError:
                fits = False
        if not fits:
            raise UpdateRefused("Its sums of products are not those of any inputs and labels.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """Θ (D, C), and a bound on its distance to the exact Θ* of the same data."""

    matrix: Matrix
    bound: float


def solve(parts: Sequence[Statistics], l2: float) -> Head:
    """Solve for the head of the sums of `parts`, in their order, by Cholesky factorisation.

    Raises:
        NumericalError: λ is too small beside the sums for float64 to solve.
    """
    gram, moments = (
        reduce(np.add, [one.gram for one in parts]),
        reduce(np.add, [one.moments for one in parts]),
    )
    regularised = gram + l2 * np.eye(len(gram))
    try:
        matrix = scipy.linalg.cho_solve(scipy.linalg.cho_factor(regularised, lower=True), moments)
    except np.linalg.LinAlgError as exc:
        raise NumericalError(
            f"λ = {l2:g} is too small beside sums of squares of {np.trace(gram):.3g}: float64 cannot solve for the "
            "head. Raise l2 in prepare, or scale the inputs."
        ) from exc
    residual = moments - gram @ matrix - l2 * matrix
    return Head(matrix=matrix, bound=_bound(parts, Head(matrix=matrix, bound=_norm(residual)), l2))


def _bound(parts: Sequence[Statistics], found: Head, l2: float) -> float:
    """Compute the module's bound; `found.bound` is ‖R‖ as it was computed."""
    size, length = len(found.matrix), _norm(found.matrix)
    traces = [SLACK * float(np.trace(part.gram)) for part in parts]
    factors = [_gamma(part.num_examples + len(parts) + part.roundings) for part in parts]
    of_gram = sum(factor * trace for factor, trace in zip(factors, traces, strict=True))
    of_gram += size * sum(part.coarseness for part in parts)
    of_moments = sum(
        factor * math.sqrt(part.num_examples * trace)
        for factor, trace, part in zip(factors, traces, parts, strict=True)
    )
    of_moments += math.sqrt(found.matrix.size) * sum(part.coarseness for part in parts)
    whole = SLACK * (sum(_norm(part.moments) for part in parts) + (sum(traces) + l2) * length)
    of_residual = _gamma(size + 3) * whole
    return SLACK * (found.bound + of_residual + of_gram * length + of_moments) / l2


def width_of(layer: torch.nn.Linear) -> int:
    """Return D, the inputs with the 1 of the bias."""
    return layer.in_features + (layer.bias is not None)


def size_of(layer: torch.nn.Linear) -> int:
    """Return how many numbers the triangle of G and B have together."""
    width = width_of(layer)
    return width * (width + 1) // 2 + width * layer.out_features


def _triangle(gram: Matrix) -> NDArray[np.float64]:
    """Return the upper triangle of a symmetric matrix (D, D), row by row."""
    return gram[np.triu_indices(len(gram))]


def _symmetric(triangle: NDArray[np.float64], size: int) -> Matrix:
    """Return the matrix (D, D) that has this upper triangle."""
    gram = np.zeros((size, size))
    gram[np.triu_indices(size)] = triangle
    return gram + np.triu(gram, 1).T


def parameters_of(matrix: Matrix, layer: torch.nn.Linear, like: Vector) -> Vector:
    """Return the model's flat vector (d,), weight then bias, in the dtype of `like`, of a head (D, C)."""
    if layer.bias is None:
        return matrix.T.reshape(-1).astype(like.dtype)
    return np.concatenate([matrix[:-1].T.reshape(-1), matrix[-1]]).astype(like.dtype)


def cast_bound(matrix: Matrix, like: Vector) -> float:
    """Bound ‖parameters − Θ‖ for parameters in the dtype of `like`; 0 in float64."""
    if like.dtype == np.float64:
        return 0.0
    return SLACK * float(np.finfo(like.dtype).eps) / 2 * _norm(matrix)


def squared_loss(inputs: Vector, labels: NDArray[np.int64]) -> float:
    """Compute the mean of ½‖outputs − one-hot label‖², of outputs (n, C)."""
    residual = inputs - np.eye(inputs.shape[1])[labels]
    return float((residual**2).sum() / (2 * len(residual)))


def _gamma(count: int) -> float:
    """Compute γ(n) = nu/(1 − nu)."""
    return count * UNIT / (1 - count * UNIT)


def _norm(matrix: Matrix) -> float:
    return float(np.linalg.norm(matrix))
