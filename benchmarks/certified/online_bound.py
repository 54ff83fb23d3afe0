"""How far a model that HF-online has unlearned after training in one place can be from the retrained one.

    η    learning rate of a step            b    size of its batch, m of them are deleted
    x    bound on ‖w^R − w‖, the retrained model beside the trained one         a_u  the vectors
    e    bound on the distance of w^R − w from Σ a_u                            L, S, λ, M   as in `sensitivity`

With ρ = max(|1 − ηλ|, |1 − ηS|), fixed weighting gives

    x ← ρx + η(m/b)L             e ← ρe + η(m/b)S x + ηM x²/2

and renormalised weighting, the last two terms only where the deleted were not carried as one unit,

    x ← ρx + 2Lη m/(b−m)         e ← ρe + ηM x²/2 + 2Lη m²/(b(b−m)) + 2η(S−λ) m/(b−m) Σ‖a_u‖

Σ‖a_u‖ grows as x does. Each line follows from one step's difference, expanded at w.

Rounding: a step of either training is off by r, and the product with a vector by t of its length (`rounding`). What a
unit adds to its vector is made of one gradient with the share m/b, or of two and a product with the share m/(b−m), and
the product with the batch is b/(b−m) as long there. So e, x and Σ‖a_u‖ grow by 2r(1 + m/b) + t Σ‖a_u‖, or by
r(2 + 3m/(b−m)) + t (b+m)/(b−m) Σ‖a_u‖, and the addition itself adds 2u(k+2)(W + Σ‖a_u‖) for k vectors, of which
there are no more than deleted examples met. Expanding at the computed w, no step sees another's rounding but by ρ.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from unlearning.certified.round_lengths import Premises
from unlearning.certified.rounding import UNIT, step_rounding
from unlearning.certified.sensitivity import Constants, Sensitivity, Weighting
from unlearning.errors import NumericalError


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCounts:
    """One training step as a bound sees it: η, b and m."""

    learning_rate: float
    batch_size: int
    num_deleted: int


@dataclass(frozen=True, slots=True)
class _Bounds:
    """Bounds on e, x and Σ‖a_u‖ between two steps."""

    error: float = 0.0
    moved: float = 0.0
    lengths: float = 0.0


def online_bound(
    premises: Premises,
    steps: Iterable[StepCounts],
    weighting: Weighting,
    *,
    weight_norm: float,
    one_unit: bool = False,
) -> Sensitivity:
    """Compute Δ of deletion by vector addition, carried along the steps of training in float64.

    The batches and the start are those of training. weight_norm: no model on the way of either training is longer.

    Raises:
        NumericalError: a batch's counts do not fit, renormalised weighting leaves nothing of a batch, or the numbers
            are too large for rounding to be bounded.
    """
    bounds, met = _Bounds(), 0
    for step in steps:
        _check(step, weighting)
        rounded = _rounding(premises, step, weighting, weight_norm, bounds.lengths)
        after = _after_step(premises.constants, step, weighting, bounds, one_unit=one_unit)
        bounds = _Bounds(after.error + rounded, after.moved + rounded, after.lengths + rounded)
        met += step.num_deleted
    addition = 2 * UNIT * (met + 2) * (weight_norm + bounds.lengths) if met else 0.0
    return Sensitivity(
        value=bounds.error + addition,
        is_bound=True,
        source=f"bound of deletion by vector addition along the training steps, {weighting} batches, rounding included",
        constants=premises.constants,
    )


def _check(step: StepCounts, weighting: Weighting) -> None:
    b, m = step.batch_size, step.num_deleted
    if not 0 <= m <= b or b < 1 or (weighting is Weighting.RENORMALISED and m == b):
        raise NumericalError(
            f"{m} of a batch of {b} are deleted: there is no {weighting} bound for that. Use larger "
            "batches, or delete fewer."
        )


def _after_step(
    constants: Constants, step: StepCounts, weighting: Weighting, before: _Bounds, *, one_unit: bool
) -> _Bounds:
    """Compute the recursion of the module's docstring, in exact arithmetic."""
    L, S, M = constants.gradient_bound, constants.smoothness, constants.hessian_lipschitz  # noqa: N806 (legend)
    eta, b, m = step.learning_rate, step.batch_size, step.num_deleted
    rho = constants.step_contraction(eta)
    error = rho * before.error + eta * M * before.moved**2 / 2
    if weighting is Weighting.FIXED:
        drift = eta * m / b * L
        error += eta * m / b * S * before.moved
    else:
        drift = 2 * L * eta * m / (b - m)
        if not one_unit:
            error += 2 * L * eta * m**2 / (b * (b - m))
            error += 2 * eta * (S - constants.strong_convexity) * m / (b - m) * before.lengths
    return _Bounds(error, rho * before.moved + drift, rho * before.lengths + drift)


def _rounding(
    premises: Premises, step: StepCounts, weighting: Weighting, weight_norm: float, lengths: float
) -> float:
    b, m = step.batch_size, step.num_deleted
    if not (m or lengths):
        return 0.0  # until then both trainings are the same to the bit
    off = step_rounding(
        premises.constants,
        replace(premises.arithmetic, batch_size=b),
        weight_norm=weight_norm,
        learning_rate=step.learning_rate,
    )
    if weighting is Weighting.FIXED:
        return 2 * off.model * (1 + m / b) + off.tangent * lengths
    return off.model * (2 + 3 * m / (b - m)) + off.tangent * (b + m) / (b - m) * lengths
