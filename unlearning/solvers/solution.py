"""What a solver returns: a value, how it ended, and what was seen on the way."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from unlearning.parameters import Vector

Product: TypeAlias = Callable[[Vector], Vector]


class Outcome(StrEnum):
    """How a solve ended; `advice` says what to try next."""

    CONVERGED = "converged"
    MAX_ITERATIONS = "max_iterations"
    NEGATIVE_CURVATURE = "negative_curvature"
    TRUST_RADIUS = "trust_radius"
    BREAKDOWN = "breakdown"

    @property
    def advice(self) -> str:
        """One sentence for the reader of the outcome."""
        return _ADVICE[self]


_ADVICE = {
    Outcome.CONVERGED: "The residual is within the tolerance; nothing needs to be done.",
    Outcome.MAX_ITERATIONS: (
        "The tolerance was not reached: allow more iterations, precondition, raise the damping, or accept "
        "the residual that is reported."
    ),
    Outcome.NEGATIVE_CURVATURE: (
        "The matrix is not positive definite: use the Gauss-Newton matrix, raise the damping above the "
        "smallest eigenvalue's size, or give a trust radius; the value is the one before the first such "
        "direction unless the solve was told to go on, and then it need not mean anything."
    ),
    Outcome.TRUST_RADIUS: (
        "The solution lies outside the trust radius and was cut there: take the step and solve again from "
        "the new point, or raise the radius or the damping."
    ),
    Outcome.BREAKDOWN: (
        "The matrix is singular to rounding, or a number is not finite: raise the damping, check that the "
        "model and its data are finite, or compute in float64."
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """The result of solving A x = b.

    value: x, shape (d,), in the dtype of b.
    outcome: how the solve ended.
    residuals: ‖b − A x‖ at the start and after each step, as the solver knows it.
    right_hand_side_norm: ‖b‖, what a residual is compared with.
    num_products: products with A that were used.
    curvatures: pᵀAp/pᵀp along each direction p, in order; all lie within A's spectrum.
    negative_curvature_at: the steps (from 0, positions in `curvatures`) at which pᵀAp < 0.
    """

    value: Vector
    outcome: Outcome
    residuals: tuple[float, ...]
    right_hand_side_norm: float
    num_products: int
    curvatures: tuple[float, ...] = ()
    negative_curvature_at: tuple[int, ...] = ()

    @property
    def relative_residual(self) -> float:
        """‖b − A x‖/‖b‖ at the end; 0 where b is zero."""
        return self.residuals[-1] / self.right_hand_side_norm if self.right_hand_side_norm else 0.0
