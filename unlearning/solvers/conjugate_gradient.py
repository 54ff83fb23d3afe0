"""Conjugate gradients with the products at hand: the loop around `cg_state`."""

from unlearning.parameters import Vector
from unlearning.solvers.cg_state import (
    Awaits,
    CgSettings,
    cg_advance,
    cg_begin,
    cg_direction,
    cg_precondition,
    cg_solution,
)
from unlearning.solvers.solution import Product, Solution


def conjugate_gradient(
    product: Product,
    right_hand_side: Vector,
    *,
    max_iterations: int,
    tolerance: float,
    start: Vector | None = None,
    preconditioner: Product | None = None,
    trust_radius: float | None = None,
    ignore_negative_curvature: bool = False,
) -> Solution:
    """Solve A x = b for a symmetric positive definite A; shapes (d,).

    Stops at ‖r‖ ≤ tolerance·‖b‖, after `max_iterations`, at a direction of negative curvature or at the
    trust radius; `CgSettings` says what each means. `preconditioner` multiplies by an approximation of
    A⁻¹ that is symmetric and positive definite. Numbers never raise: see the solution's outcome.

    Raises:
        NumericalError: sizes do not fit, or a setting is out of range.
    """
    settings = CgSettings(
        max_iterations=max_iterations,
        tolerance=tolerance,
        preconditioned=preconditioner is not None,
        trust_radius=trust_radius,
        ignore_negative_curvature=ignore_negative_curvature,
    )
    state = cg_begin(right_hand_side, settings, start)
    while state.awaits is not Awaits.NOTHING:
        if preconditioner is not None and state.awaits is Awaits.PRECONDITIONED:
            state = cg_precondition(state, preconditioner(cg_direction(state)))
        else:
            state = cg_advance(state, product(cg_direction(state)))
    return cg_solution(state)
