"""Gaussian noise that hides a difference of at most Δ between two models.

Legend: Δ bound on ‖θ_u − θ_r‖ (unlearned, retrained), σ standard deviation of the noise on every entry,
(ε, δ) how alike the two released models' distributions are, Φ the standard normal distribution function.

Source: Balle & Wang, Improving the Gaussian Mechanism for Differential Privacy: Analytical Calibration and
Optimal Denoising (Theorem 8) for the exact form; Dwork & Roth, The Algorithmic Foundations of Differential
Privacy (Appendix A) for the classical one, whose proof needs ε < 1.
"""

import math
from enum import StrEnum
from typing import Protocol

import numpy as np
import scipy  # its parts are imported at their first use
from numpy.typing import NDArray

from unlearning.errors import ConfigurationError
from unlearning.parameters import Vector

_ROOT_2 = math.sqrt(2)


class Mechanism(StrEnum):
    """How σ is calibrated: exactly, or by the classical formula that holds for ε < 1 only."""

    ANALYTIC = "analytic"
    CLASSICAL = "classical"


def gaussian_delta(*, epsilon: float, sigma: float, sensitivity: float) -> float:
    """Return the least δ for which noise σ on a difference of Δ is (ε, δ)-indistinguishable; exact.

    δ = Φ(Δ/2σ − εσ/Δ) − e^ε Φ(−Δ/2σ − εσ/Δ). Source: Balle & Wang, Theorem 8.

    Raises:
        ConfigurationError: ε, σ or Δ is negative or not finite.
    """
    _refuse(_not_at_least_zero(epsilon=epsilon, sigma=sigma, sensitivity=sensitivity))
    if sensitivity == 0:
        return 0.0
    return _delta(epsilon, sensitivity / sigma) if sigma else 1.0


def gaussian_epsilon(*, delta: float, sigma: float, sensitivity: float) -> float:
    """Return the least ε ≥ 0 for which noise σ on a difference of Δ is (ε, δ)-indistinguishable; inf without
    noise, or with so little that ε is no float64.

    Raises:
        ConfigurationError: δ is not between 0 and 1, or σ or Δ is negative or not finite.
    """
    _refuse(_not_a_probability(delta) + _not_at_least_zero(sigma=sigma, sensitivity=sensitivity))
    if sensitivity == 0:
        return 0.0
    if sigma == 0:
        return math.inf
    ratio = sensitivity / sigma
    if _delta(0.0, ratio) <= delta:
        return 0.0
    upper = 1.0
    while _delta(upper, ratio) > delta:
        upper *= 2
    if math.isinf(upper):
        return math.inf
    return float(
        scipy.optimize.brentq(
            lambda epsilon: _delta(epsilon, ratio) - delta, 0.0, upper, xtol=1e-12, maxiter=2_000
        )
    )


def analytic_sigma(*, epsilon: float, delta: float, sensitivity: float) -> float:
    """Return the smallest σ that makes a difference of Δ (ε, δ)-indistinguishable; for every ε > 0.

    Source: Balle & Wang, Theorem 8, solved for σ.

    Raises:
        ConfigurationError: ε is not above 0, δ not between 0 and 1, or Δ negative or not finite.
    """
    _refuse(_not_a_budget(epsilon, delta) + _not_at_least_zero(sensitivity=sensitivity))
    return sensitivity / largest_ratio(epsilon=epsilon, delta=delta)


def largest_ratio(*, epsilon: float, delta: float) -> float:
    """Return the largest Δ/σ that is (ε, δ)-indistinguishable: what a budget is worth in one number.

    Raises:
        ConfigurationError: ε is not above 0 or δ not between 0 and 1.
    """
    _refuse(_not_a_budget(epsilon, delta))
    lower = upper = 1.0
    while _delta(epsilon, lower) > delta:
        lower /= 2
    while _delta(epsilon, upper) < delta:
        upper *= 2
    tolerance = max(1e-15 * lower, math.ulp(0.0))  # which is to be above 0
    return float(
        scipy.optimize.brentq(
            lambda ratio: _delta(epsilon, ratio) - delta,
            lower,
            upper,
            xtol=tolerance,
            rtol=1e-13,
            maxiter=2_000,
        )
    )


def classical_sigma(*, epsilon: float, delta: float, sensitivity: float) -> float:
    """Compute Δ √(2 ln(1.25/δ))/ε, valid for ε < 1.

    Raises:
        ConfigurationError: ε is not between 0 and 1 (above, the formula breaks its promise), δ is not between
            0 and 1, or Δ is negative or not finite.
    """
    problems = _not_a_budget(epsilon, delta) + _not_at_least_zero(sensitivity=sensitivity)
    if epsilon >= 1:
        problems.append(
            f"The classical Gaussian mechanism is proven for epsilon below 1 only, got {epsilon}: above, its "
            "noise can be too small for the stated delta. Use the analytic mechanism."
        )
    _refuse(problems)
    return sensitivity * math.sqrt(2 * math.log(1.25 / delta)) / epsilon


class Normal(Protocol):
    """Where standard normal numbers come from: numpy's generators, or `secret_noise.KeyedNormal`."""

    def standard_normal(self, size: int) -> NDArray[np.float64]:
        """Return the next `size` numbers (size,)."""


def add_noise(parameters: Vector, sigma: float, generator: Normal) -> Vector:
    """Return `parameters` (d,) plus N(0, σ²) on every entry, in their dtype; drawn in float64.

    An observer that knows the seed of the generator can subtract the noise: use a secret (`secret_noise`), or the
    system's entropy and keep no copy where the model is to be given away.

    Raises:
        ConfigurationError: σ is negative or not finite.
    """
    _refuse(_not_at_least_zero(sigma=sigma))
    noise = sigma * generator.standard_normal(parameters.size)
    noisy: Vector = (parameters.astype(np.float64) + noise).astype(parameters.dtype)
    return noisy


def _delta(epsilon: float, ratio: float) -> float:
    """Compute δ = Φ(b) − e^ε Φ(−a) at `ratio` r = Δ/σ > 0, with b = r/2 − ε/r and a = r/2 + ε/r.

    a² − b² = 2ε, so e^ε Φ(−a) = e^(−b²/2) erfcx(a/√2)/2, and nothing overflows. For b < 0 Φ(b) has that factor, too.
    """
    below, above = (ratio / 2 - epsilon / ratio) / _ROOT_2, (ratio / 2 + epsilon / ratio) / _ROOT_2
    factor, second = math.exp(-below * below) / 2, scipy.special.erfcx(above)
    if below < 0:
        return float(factor * max(0.0, scipy.special.erfcx(-below) - second))
    return max(0.0, float(scipy.special.ndtr(below * _ROOT_2) - factor * second))


def _not_a_budget(epsilon: float, delta: float) -> list[str]:
    problems = _not_a_probability(delta)
    if not (math.isfinite(epsilon) and epsilon > 0):
        problems.append(f"epsilon must be a finite number above 0, got {epsilon}.")
    return problems


def _not_a_probability(delta: float) -> list[str]:
    return [] if 0 < delta < 1 else [f"delta must be between 0 and 1 (both excluded), got {delta}."]


def _not_at_least_zero(**values: float) -> list[str]:
    return [
        f"{name} must be finite and 0 or more, got {value}."
        for name, value in values.items()
        if not (math.isfinite(value) and value >= 0)
    ]


def _refuse(problems: list[str]) -> None:
    if problems:
        raise ConfigurationError(problems)
