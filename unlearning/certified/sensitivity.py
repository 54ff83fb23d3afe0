"""How far an unlearned model can be from the retrained one: bounds, and the constants they rest on.

For every example's loss ℓ (its L2 term included), everywhere that training goes:

    L   bound on ‖∇ℓ‖                       S   bound on ‖∇²ℓ‖
    λ   ∇²ℓ ⪰ λI                            M   Lipschitz constant of ∇²ℓ
    n   examples, m of them deleted         Δ   the bound on ‖θ_u − θ_r‖

A bound holds for every data set that fits the constants; a measured distance does not, and noise calibrated
to one certifies nothing (`Sensitivity.is_bound`).

Source: Sekhari et al., Remember What You Want to Forget (Lemma 3), for the Newton step, here without its
assumption m ≤ n/2; the others are derived where they stand.
"""

import math
from dataclasses import dataclass
from enum import StrEnum

from unlearning.errors import ConfigurationError, NumericalError


class Weighting(StrEnum):
    """What removal leaves of a batch's mean: divided by the old size, or by what is left.

    fixed: w − (η/b) Σ_{B∖U} ∇ℓ, as the paper states its method.
    renormalised: w − η/(b−m) Σ_{B∖U} ∇ℓ, as retraining does.
    """

    FIXED = "fixed"
    RENORMALISED = "renormalised"


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """L, S, λ and M of the module's legend, and one sentence on where they come from.

    Raises:
        ConfigurationError: one is out of range; lists all.
    """

    gradient_bound: float
    smoothness: float
    strong_convexity: float
    hessian_lipschitz: float
    source: str

    def __post_init__(self) -> None:
        problems = [
            f"{name} must be finite and 0 or more, got {value}."
            for name, value in (
                ("gradient_bound", self.gradient_bound),
                ("hessian_lipschitz", self.hessian_lipschitz),
            )
            if not (math.isfinite(value) and value >= 0)
        ]
        if not 0 < self.strong_convexity <= self.smoothness < math.inf:
            problems.append(
                f"0 < strong_convexity <= smoothness must hold, got {self.strong_convexity} and "
                f"{self.smoothness}. Without an L2 term the loss is not strongly convex and has no such bound."
            )
        if problems:
            raise ConfigurationError(problems)

    def step_contraction(self, learning_rate: float) -> float:
        """Compute ρ = max(|1 − ηλ|, |1 − ηS|), what one step of SGD multiplies distances by at most."""
        return max(abs(1 - learning_rate * self.strong_convexity), abs(1 - learning_rate * self.smoothness))


@dataclass(frozen=True, slots=True, kw_only=True)
class Sensitivity:
    """Δ, whether it is a proven bound, where it comes from, and the constants it rests on."""

    value: float
    is_bound: bool
    source: str
    constants: Constants | None = None


def measured_sensitivity(distance: float, how: str) -> Sensitivity:
    """Return a distance that was measured between two models: a guide to the noise, and no bound."""
    return Sensitivity(value=distance, is_bound=False, source=f"measured distance: {how}")


def minimiser_norm(*, l2: float, num_classes: int) -> float:
    """Bound on the norm of a logistic regression's minimiser: F(θ*) ≤ F(0) = ln C, so ‖θ*‖² ≤ 2 ln C/μ."""
    return math.sqrt(2 * math.log(num_classes) / l2)


def trajectory_norm(*, start_norm: float, feature_norm: float, l2: float) -> float:
    """Bound on ‖w_t‖ along SGD on logistic regression: w ← (1 − ημ)w − ηg with ‖g‖ ≤ √2 R; needs ημ ≤ 1."""
    return max(start_norm, math.sqrt(2) * feature_norm / l2)


def logistic_constants(
    *, feature_norm: float, weight_norm: float, l2: float, features_from: str
) -> Constants:
    """Return the constants of multinomial logistic regression with μ/2 ‖θ‖², for ‖(x, 1)‖ ≤ R and ‖θ‖ ≤ W.

    With p = softmax and y one-hot, ‖p − y‖ ≤ √2; the covariance of p has no eigenvalue above 1/2; along a
    direction v of the logits its derivative is a third central moment, at most r³/(6√3) for values in a range
    r ≤ √2‖v‖. So L = √2 R + μW, S = R²/2 + μ, λ = μ and M = √2 R³/(3√3).

    features_from: where R comes from, for the certificate.
    """
    return Constants(
        gradient_bound=math.sqrt(2) * feature_norm + l2 * weight_norm,
        smoothness=feature_norm**2 / 2 + l2,
        strong_convexity=l2,
        hessian_lipschitz=math.sqrt(2) * feature_norm**3 / (3 * math.sqrt(3)),
        source=(
            f"multinomial logistic regression with weight decay {l2:g}, feature norm at most {feature_norm:.4g} "
            f"({features_from}), weight norm at most {weight_norm:.4g}"
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Inexactness:
    """What keeps a Newton step from the exact one.

    gradient_norm: ‖∇F(θ)‖ of the L2-regularised mean loss over all n at the model that was deleted from.
    damping: added to the Hessian.
    residual_norm: ‖b − Ax‖ of the solve, for b = Σ_U ∇ℓ divided by n−m (Newton) or n (jackknife).
    """

    gradient_norm: float = 0.0
    damping: float = 0.0
    residual_norm: float = 0.0


EXACT = Inexactness()


def newton_step_bound(
    constants: Constants, *, num_examples: int, num_deleted: int, inexactness: Inexactness = EXACT
) -> Sensitivity:
    """Compute Δ of the Newton step on the retained objective: M m² L²/(2 λ³ (n−m)²) where it is exact.

    ‖θ − θ_r‖ ≤ ‖∇F_R(θ)‖/λ ≤ (mL + nG)/((n−m)λ) = r for a gradient norm G left at θ, and a Newton step
    leaves M r²/(2λ). The step by the sum over U neglects G: nG/((n−m)λ) more. Damping γ shortens it by at most γ/(γ+λ)
    of its length mL/((n−m)λ). A residual ρ moves it by ρ/λ.
    Source: Sekhari et al., Lemma 3; for m ≤ n/2 it is at most their 2ML²m²/(λ³n²).

    Raises:
        NumericalError: not 0 ≤ m < n.
    """
    if not 0 <= num_deleted < num_examples:
        raise NumericalError(
            f"{num_deleted} of {num_examples} examples are to be deleted; a bound needs at least one that stays."
        )
    convexity, left = constants.strong_convexity, num_examples - num_deleted
    unfinished = num_examples * inexactness.gradient_norm / (left * convexity)
    length = num_deleted * constants.gradient_bound / (left * convexity)
    damped = inexactness.damping / (inexactness.damping + convexity) * length
    taylor = constants.hessian_lipschitz * (length + unfinished) ** 2 / (2 * convexity)
    return Sensitivity(
        value=taylor + unfinished + damped + inexactness.residual_norm / convexity,
        is_bound=True,
        source="bound of the Newton step",
        constants=constants,
    )
