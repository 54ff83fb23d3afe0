"""Conjugate gradients as a state that products are fed into.

What has the products drives it: a loop in one process, or a server that sends `cg_direction` to its
clients and sums their answers. Between two exchanges the whole solve is one immutable `CgState`, which goes
into a checkpoint by `arrays()` and `values()` and comes back by `CgState.from_arrays` bit for bit.

    state = cg_begin(b, settings)
    while state.awaits is not Awaits.NOTHING:
        state = cg_advance(state, product(cg_direction(state)))      # while it awaits a product
        state = cg_precondition(state, precondition(cg_direction(state)))   # while it awaits that

Legend: A symmetric matrix, b right-hand side, x iterate, r = b − A x residual, z = M⁻¹ r preconditioned
residual, p direction, α = rᵀz/pᵀAp, β = new rᵀz / old rᵀz.

Source: Hestenes and Stiefel, Methods of Conjugate Gradients for Solving Linear Systems; Steihaug, The
Conjugate Gradient Method and Trust Regions in Large Scale Optimization, for the trust radius.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import numpy as np

from unlearning.errors import CheckpointError, NumericalError
from unlearning.parameters import Vector, dot, norm
from unlearning.runtime.json_codec import restore, to_plain
from unlearning.solvers.solution import Outcome, Solution


class Awaits(StrEnum):
    """What the solve needs next of `cg_direction`: A times it, M⁻¹ times it, or nothing, it has ended."""

    RESIDUAL = "residual"  # the product A x, from which the residual at a start other than zero follows
    PRODUCT = "product"
    PRECONDITIONED = "preconditioned"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True, kw_only=True)
class CgSettings:
    """When to stop.

    max_iterations: steps in all, over restarts.
    tolerance: stop when ‖r‖ ≤ tolerance·‖b‖.
    preconditioned: whether each residual is multiplied by M⁻¹ (symmetric, positive definite).
    trust_radius: keep ‖x‖ within it; along a direction of negative curvature go to its boundary.
    ignore_negative_curvature: go on after negative curvature, as published methods with a fixed number
        of steps do; the outcome is still negative_curvature and never converged.

    Raises:
        NumericalError: a value is out of range.
    """

    max_iterations: int
    tolerance: float
    preconditioned: bool = False
    trust_radius: float | None = None
    ignore_negative_curvature: bool = False

    def __post_init__(self) -> None:
        if self.max_iterations < 0 or not 0 <= self.tolerance < 1:
            raise NumericalError(
                "Conjugate gradients need max_iterations of 0 or more and a tolerance in [0, 1), got "
                f"{self.max_iterations} and {self.tolerance}."
            )
        if self.trust_radius is not None and not self.trust_radius > 0:
            raise NumericalError(f"A trust radius must be positive, got {self.trust_radius}.")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)  # arrays have no truth value
class CgState:
    """A solve between two exchanges. Arrays have shape (d,) and are never changed.

    r_z: rᵀz of the last step; 0 before the first direction, or after a restart, which drops the old one.
    The histories are those of `Solution`; `restarted_at` are positions in `curvatures`.
    """

    settings: CgSettings
    right_hand_side: Vector
    x: Vector
    r: Vector
    p: Vector
    awaits: Awaits
    outcome: Outcome | None = None
    r_z: float = 0.0
    num_products: int = 0
    residuals: tuple[float, ...] = ()
    curvatures: tuple[float, ...] = ()
    negative_curvature_at: tuple[int, ...] = ()
    restarted_at: tuple[int, ...] = ()

    @property
    def num_iterations(self) -> int:
        """Directions tried so far."""
        return len(self.curvatures)

    def arrays(self) -> dict[str, Vector]:
        """Return the vectors, for a checkpoint."""
        return {"right_hand_side": self.right_hand_side, "x": self.x, "r": self.r, "p": self.p}

    def values(self) -> dict[str, Any]:
        """Return everything else, as JSON can hold it."""
        vectors = self.arrays()
        return {name: value for name, value in to_plain(self).items() if name not in vectors}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Vector], values: Mapping[str, Any]) -> "CgState":
        """Return the state that `arrays()` and `values()` were taken of.

        Raises:
            CheckpointError: something is missing or of another kind.
        """
        try:
            return restore(cls, {**values, **arrays})
        except ValueError as exc:
            raise CheckpointError(
                f"The state of a linear solve cannot be read ({exc}). Start the solve again."
            ) from exc


def cg_begin(right_hand_side: Vector, settings: CgSettings, start: Vector | None = None) -> CgState:
    """Return the state before the first product; with a `start`, its residual costs a product of its own."""
    b = np.array(right_hand_side)
    x = np.zeros_like(b) if start is None else np.array(start, dtype=b.dtype)
    _check_size("start", x, b)
    state = CgState(
        settings=settings, right_hand_side=b, x=x, r=b, p=np.zeros_like(b), awaits=Awaits.RESIDUAL
    )
    if not np.isfinite(norm(b)):
        return _end(replace(state, residuals=(norm(b),)), Outcome.BREAKDOWN)
    return state if x.any() else _with_residual(state, b)


def cg_direction(state: CgState) -> Vector:
    """Return the vector (d,) that what the state awaits is to be applied to.

    Raises:
        NumericalError: the solve has ended.
    """
    match state.awaits:
        case Awaits.RESIDUAL:
            return state.x
        case Awaits.PRODUCT:
            return state.p
        case Awaits.PRECONDITIONED:
            return state.r
        case Awaits.NOTHING:
            raise NumericalError(f"The solve has ended ({state.outcome}); it needs no further product.")


def cg_advance(state: CgState, product: Vector) -> CgState:
    """Return the state after A times `cg_direction(state)` has come, shape (d,).

    Raises:
        NumericalError: no product is awaited, or its size is not that of the right-hand side.
    """
    if state.awaits not in (Awaits.RESIDUAL, Awaits.PRODUCT):
        raise NumericalError(f"The solve awaits {state.awaits}, got a product.")
    _check_size("product", product, state.right_hand_side)
    state = replace(state, num_products=state.num_products + 1)
    if not np.isfinite(product).all():
        return _end(state, Outcome.BREAKDOWN)
    if state.awaits is Awaits.RESIDUAL:
        return _with_residual(state, _as_type(state.right_hand_side - product, state))
    return _step(state, product)


def cg_precondition(state: CgState, preconditioned: Vector) -> CgState:
    """Return the state after z = M⁻¹ r has come, shape (d,): its next direction is known.

    Raises:
        NumericalError: none is awaited, or its size is not that of the right-hand side.
    """
    if state.awaits is not Awaits.PRECONDITIONED:
        raise NumericalError(f"The solve awaits {state.awaits}, got a preconditioned residual.")
    _check_size("preconditioned residual", preconditioned, state.right_hand_side)
    return _with_direction(state, preconditioned)


def cg_restart(state: CgState, right_hand_side: Vector | None = None) -> CgState:
    """Go on from the last iterate with another matrix, and another right-hand side if given.

    The residual is computed again and the old directions are dropped, since they are conjugate with
    respect to the old matrix only. Histories and the count of iterations go on; so does a solve that
    had ended, where iterations are left.
    """
    b = state.right_hand_side if right_hand_side is None else np.array(right_hand_side)
    _check_size("right-hand side", b, state.x)
    state = replace(
        state,
        right_hand_side=b,
        p=np.zeros_like(state.p),
        r_z=0.0,
        outcome=None,
        awaits=Awaits.RESIDUAL,
        restarted_at=(*state.restarted_at, state.num_iterations),
    )
    return state if state.x.any() else _with_residual(state, b)


def cg_solution(state: CgState) -> Solution:
    """Return the state's iterate as a solution; one that has not ended counts as out of iterations."""
    return Solution(
        value=state.x,
        outcome=state.outcome or Outcome.MAX_ITERATIONS,
        residuals=state.residuals,
        right_hand_side_norm=norm(state.right_hand_side),
        num_products=state.num_products,
        curvatures=state.curvatures,
        negative_curvature_at=state.negative_curvature_at,
    )


def _step(state: CgState, product: Vector) -> CgState:
    """Return along p by α, or the end where A is not positive definite along p."""
    p_p, p_ap = dot(state.p, state.p), dot(state.p, product)
    if p_p < np.finfo(np.float64).tiny:  # its length is lost to underflow
        return _end(state, Outcome.BREAKDOWN)
    curvature = p_ap / p_p
    rounding = float(np.finfo(state.p.dtype).eps) * max(map(abs, (curvature, *state.curvatures)))
    state = replace(state, curvatures=(*state.curvatures, curvature))
    if abs(curvature) <= rounding:
        return _end(state, Outcome.BREAKDOWN)
    radius = state.settings.trust_radius
    if curvature < 0:
        seen = (*state.negative_curvature_at, state.num_iterations - 1)
        state = replace(state, negative_curvature_at=seen)
        if not state.settings.ignore_negative_curvature:
            if radius is not None:
                state = _move(state, _to_boundary(state.x, state.p, radius), product)
            return _end(state, Outcome.NEGATIVE_CURVATURE)
    alpha = state.r_z / p_ap
    if radius is not None and norm(state.x + alpha * state.p) > radius:
        state = _move(state, _to_boundary(state.x, state.p, radius), product)
        return _end(state, Outcome.TRUST_RADIUS)
    moved = _move(state, alpha, product)
    if not np.isfinite(moved.residuals[-1]):
        return _end(state, Outcome.BREAKDOWN)
    return _with_residual(moved, moved.r, known=True)


def _move(state: CgState, length: float, product: Vector) -> CgState:
    r = _as_type(state.r - length * product, state)
    return replace(
        state, x=_as_type(state.x + length * state.p, state), r=r, residuals=(*state.residuals, norm(r))
    )


def _with_residual(state: CgState, r: Vector, *, known: bool = False) -> CgState:
    """Stop at this residual, or ask for what the next direction needs; `known`: it is in the history."""
    if not known:
        state = replace(state, r=r, residuals=(*state.residuals, norm(r)))
    if state.residuals[-1] <= state.settings.tolerance * norm(state.right_hand_side):
        return _end(state, Outcome.CONVERGED)
    if state.num_iterations >= state.settings.max_iterations:
        return _end(state, Outcome.MAX_ITERATIONS)
    if state.settings.preconditioned:
        return replace(state, awaits=Awaits.PRECONDITIONED)
    return _with_direction(state, r)


def _with_direction(state: CgState, z: Vector) -> CgState:
    r_z = dot(state.r, z)
    # rᵀz ≤ 0 with r ≠ 0 means that the preconditioner is not positive definite
    if not (np.isfinite(r_z) and r_z > 0):
        return _end(state, Outcome.BREAKDOWN)
    beta = r_z / state.r_z if state.r_z else 0.0
    return replace(state, p=_as_type(z + beta * state.p, state), r_z=r_z, awaits=Awaits.PRODUCT)


def _end(state: CgState, outcome: Outcome) -> CgState:
    # A residual below the tolerance after negative curvature belongs to no minimum. What a matrix showed
    # that a restart has replaced does not count.
    since_restart = state.restarted_at[-1] if state.restarted_at else 0
    seen = any(step >= since_restart for step in state.negative_curvature_at)
    if seen and outcome is not Outcome.BREAKDOWN:
        outcome = Outcome.NEGATIVE_CURVATURE
    return replace(state, outcome=outcome, awaits=Awaits.NOTHING)


def _to_boundary(x: Vector, p: Vector, radius: float) -> float:
    """Return the τ ≥ 0 with ‖x + τ p‖ = radius."""
    x_x, x_p, p_p = dot(x, x), dot(x, p), dot(p, p)
    inside = max(0.0, radius**2 - x_x)
    # the root in the form that loses no digits when xᵀp > 0
    return inside / (x_p + float(np.sqrt(x_p**2 + p_p * inside))) if inside else 0.0


def _as_type(vector: Vector, state: CgState) -> Vector:
    return vector.astype(state.right_hand_side.dtype, copy=False)


def _check_size(name: str, vector: Vector, like: Vector) -> None:
    if vector.shape != like.shape:
        raise NumericalError(
            f"The {name} of a linear solve has shape {vector.shape}, the right-hand side {like.shape}. "
            "They must belong to one model."
        )
