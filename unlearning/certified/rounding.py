"""What rounding adds to the bounds: multinomial logistic regression by SGD in binary64, on any machine.

    u    2⁻⁵³          D, C   inputs (the bias's 1 among them) and classes     R   bound on ‖(x, 1)‖
    b    batch size    W      bound on ‖w‖ in the round, B = RW on the logits     η, μ   learning rate, weight decay
    S    bound on ‖∇²ℓ‖       N      clients that are averaged

Every sum, product and quotient is taken to be exact up to a factor 1 + δ, |δ| ≤ u, exp and log up to 4u, and sums to
be made in any order, so an inner product of n terms is off by at most 1.1 n u Σ|xᵢ||yᵢ| (nu ≤ 0.01). Then

    logits     off by (D+2)u B, so exact probabilities change by a factor 1 + 2(D+2)u B
    softmax    z − max has a range of 2B, log Σ exp is off by u(8B + 4 ln C + C + …): together
    E          = 2u((D+2)B + 10B + 10 ln C + 2C + 40) on every p_c, relatively
    gradient   Σ (p − y)xᵀ/b is off by R(E + √2(b+6)u + 6u)
    product    ∇²ℓ a = Σ (p∘v − p pᵀv)xᵀ/b with v = Ax is off by R²(4E + 2(C + D + b + 15)u) ‖a‖
    step       w − η(g + μw) is off by η times the gradient's, and 4u(‖w‖ + η(√2R + μ‖w‖))
    mean       of N models: off by (N+8)u W

each taken twice over, for terms of order u² and for the order in which a library computes. Overflow cannot be (W is
finite) and underflow is neglected: it is below 10⁻³⁰⁰. Smaller types are not covered: a matrix product may then be made
in a type smaller still.

Derived here from the standard model: Higham, Accuracy and Stability of Numerical Algorithms, §2.2, §3.1 and §3.5.
"""

import math
from dataclasses import dataclass

from unlearning.certified.sensitivity import Constants
from unlearning.errors import NumericalError

UNIT = 2.0**-53
_TWICE = 2.0
_LARGEST = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Arithmetic:
    """What rounding depends on: D, C, R and b of the module's legend."""

    num_inputs: int
    num_classes: int
    feature_norm: float
    batch_size: int


@dataclass(frozen=True, slots=True)
class LocalRounding:
    """Of a client's local training: how far its model is off, and what it carries, for each unit of length."""

    model: float
    tangent: float


def largest_norm(norm: float, *, learning_rate: float, l2: float, feature_norm: float, count: int) -> float:
    """Compute W: a bound on ‖w‖ over `count` steps from a w of length `norm`: w ← (1 − ημ)w − ηg with ‖g‖ ≤
    √2 R.
    """
    decay = max(1.0, abs(1 - learning_rate * l2)) ** count
    return float(_TWICE * decay * (norm + count * learning_rate * math.sqrt(2) * feature_norm))


def step_rounding(
    constants: Constants, of: Arithmetic, *, weight_norm: float, learning_rate: float
) -> LocalRounding:
    """Return what rounding does to one step of SGD from weights no longer than `weight_norm`, and to what it carries.

    Raises:
        NumericalError: the numbers are too large for float64 to say anything.
    """
    gradient, product = _gradient_and_product(of, weight_norm)
    eta = learning_rate
    longest = weight_norm + eta * (math.sqrt(2) * of.feature_norm + constants.strong_convexity * weight_norm)
    return LocalRounding(
        model=_TWICE * (eta * gradient + 4 * UNIT * longest),
        tangent=_TWICE * (eta * product + 4 * UNIT * (1 + eta * constants.smoothness)),
    )


def local_rounding(
    constants: Constants, of: Arithmetic, *, weight_norm: float, learning_rate: float, count: int
) -> LocalRounding:
    """Return what rounding does to `count` steps of SGD whose weights are no longer than `weight_norm`.

    A step's rounding is multiplied by ρ in each later step; what is carried also sees Hessians at weights that are off.

    Raises:
        NumericalError: the numbers are too large for float64 to say anything.
    """
    step = step_rounding(constants, of, weight_norm=weight_norm, learning_rate=learning_rate)
    rho = constants.step_contraction(learning_rate)
    try:
        model = step.model * sum(rho**power for power in range(count))
        carried = step.tangent + learning_rate * constants.hessian_lipschitz * model
        return LocalRounding(model, count * carried * max(1.0, rho) ** count * (1 + carried) ** count)
    except OverflowError:  # the steps are too large for these constants
        return LocalRounding(math.inf, math.inf)


def mean_rounding(*, weight_norm: float, num_clients: int) -> float:
    """Return how far the mean of models no longer than `weight_norm` is off."""
    return _TWICE * (num_clients + 8) * UNIT * weight_norm


def _gradient_and_product(of: Arithmetic, weight_norm: float) -> tuple[float, float]:
    logits = of.feature_norm * weight_norm
    terms = (of.num_inputs + 2) * logits + 10 * logits
    terms += 10 * math.log(of.num_classes) + 2 * of.num_classes + 40
    relative = 2 * UNIT * terms
    if not relative < _LARGEST or of.batch_size * UNIT > _LARGEST:
        raise NumericalError(
            f"Weights of norm {weight_norm:.4g} on features of norm {of.feature_norm:.4g} are too large for "
            "rounding to be bounded. Scale the features, or train with smaller steps."
        )
    sums = 2 * (of.num_classes + of.num_inputs + of.batch_size + 15) * UNIT
    gradient = of.feature_norm * (relative + math.sqrt(2) * (of.batch_size + 6) * UNIT + 6 * UNIT)
    return gradient, of.feature_norm**2 * (4 * relative + sums)
