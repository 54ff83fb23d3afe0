"""Noisy fine-tuning: what clipped steps with noise hide of the model that they began with, whatever the network.

    a    anchor (d,), a model that no data went into           C0, C1  radii of balls: around a, and of a step's update
    f    contraction towards a, 0 < f ≤ 1                      T, σ    steps; standard deviation of the noise a step
    u_t  a step's update, any function of its model            Φ       standard normal distribution function

Clipped updates     x_0 = Π_{C0}(θ),   x_{t+1} = a + f (x_t − a) + Π_{C1}(u_t(x_t)) + σ ξ_t
Clipped models      x_{t+1} = Π_{C0}(x_t + u_t(x_t)) + σ ξ_t
Output perturbation T = 0 of the first: Π_{C0}(θ) + σ ξ

Updates. Two runs from any two models are at most s_0 = 2 C0 apart at first, and s_{t+1} ≤ f s_t + 2 C1. What a step
absorbs of it, b_t, costs (b_t/σ)². All is absorbed after T steps, and the cost is least for b_t proportional to
f^{T−t}, by Cauchy and Schwarz. So x_T is as hard to tell as N(0, 1) from N(μ, 1) with

    μ = (2 C0 f^T + 2 C1 Σ_{j<T} f^j) / (σ √Σ_{j<T} f^{2j})

Who sees every step has to tell x_1 alone, for the rest follows from it: μ_1 = (2 C0 f + 2 C1)/σ.

Models. A step sees two points that are at most 2 C0 apart. Of two distributions with E_ε = δ only the parts that
differ, δ of either, can be told after it, and these at a larger ε (advanced joint convexity):

    δ_0 = 1,   δ_{t+1} = δ_t · Φ_δ(ln(1 + (e^ε − 1)/δ_t), 2 C0/σ)          Φ_δ(ε, μ)  `gaussian_delta` of the ratio μ

Source: Koloskova, Allouah, Jha, Guerraoui, Koyejo, Certified Unlearning for Neural Networks (ICML 2025, arXiv
2506.06985), gradient and model clipping; the absorbed shifts in Gaussian form: Bok, Su, Altschuler, Shifted
Interpolation for Differential Privacy (2024); joint convexity: Balle, Barthe, Gaboardi, Privacy Amplification by
Subsampling (2018), Theorem 2.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import scipy  # its parts are imported at their first use
from numpy.typing import NDArray

from unlearning.certified.noise import gaussian_delta, largest_ratio


@dataclass(frozen=True, slots=True, kw_only=True)
class NoisySteps:
    """How steps are clipped: C0, C1, f and T of the module's legend, and whether models are clipped, not updates."""

    radius: float
    update_radius: float
    contraction: float
    steps: int
    clips_models: bool = False

    @property
    def reach(self) -> float:
        """μσ of the final model, where updates are clipped: the shift that one draw of noise would have to hide."""
        if not self.steps:
            return 2 * self.radius
        powers = self.contraction ** np.arange(self.steps, dtype=np.float64)
        start = 2 * self.radius * self.contraction**self.steps
        return (start + 2 * self.update_radius * float(powers.sum())) / self.spread

    @property
    def spread(self) -> float:
        """The standard deviation of the final model's noise, in σ: that of all steps where nothing clips it."""
        if self.clips_models or not self.steps:
            return 1.0
        return float(np.linalg.norm(self.contraction ** np.arange(self.steps, dtype=np.float64)))

    @property
    def reach_of_a_step(self) -> float:
        """μσ of one step's model: what those who see every step have to tell, whatever comes after."""
        if self.clips_models or not self.steps:
            return 2 * self.radius
        return 2 * self.radius * self.contraction + 2 * self.update_radius

    def delta(self, *, epsilon: float, sigma: float) -> float:
        """Compute the δ(ε) of the final model.

        Raises:
            ConfigurationError: ε or σ is negative or not finite.
        """
        if not self.clips_models:
            return gaussian_delta(epsilon=epsilon, sigma=sigma, sensitivity=self.reach)
        found = 1.0
        odds = epsilon + math.log(-math.expm1(-epsilon)) if epsilon > 0 else -math.inf  # ln(e^ε − 1)
        for _ in range(max(self.steps, 1)):
            if found == 0.0:
                break
            amplified = float(np.logaddexp(0.0, odds - math.log(found)))
            found *= gaussian_delta(epsilon=amplified, sigma=sigma, sensitivity=2 * self.radius)
        return found

    def sigma(self, *, epsilon: float, delta: float) -> float:
        """Compute the least σ with δ(ε) ≤ `delta`.

        Raises:
            ConfigurationError: ε is not above 0 or δ not between 0 and 1.
        """
        one_step = largest_ratio(epsilon=epsilon, delta=delta)
        if not self.clips_models:
            return self.reach / one_step
        enough = 2 * self.radius / one_step  # as if the last step were the only one

        def excess(share: float) -> float:
            return self.delta(epsilon=epsilon, sigma=share * enough) - delta

        low = 1.0
        while excess(low) < 0:
            low /= 2
        if low == 1.0:  # one step: no other one helps
            return enough
        found = scipy.optimize.brentq(excess, low, 2 * low, xtol=1e-9 * low)
        return float(enough * min(1.0, found * (1 + 1e-6)))


def project(vector: NDArray[np.float64], radius: float) -> NDArray[np.float64]:
    """Return the nearest point (d,) of the ball of `radius` around zero."""
    norm = float(np.linalg.norm(vector))
    return vector if norm <= radius else vector * (radius / norm)


def noisy_step(
    point: NDArray[np.float64],
    update: NDArray[np.float64],
    of: NoisySteps,
    noise: Callable[[NDArray[np.float64]], NDArray[np.float64]],
) -> NDArray[np.float64]:
    """Return the model after a step, all relative to the anchor (d,); `noise` returns it with the step's noise."""
    if of.clips_models:
        return noise(project(point + update, of.radius))
    return noise(of.contraction * point + project(update, of.update_radius))
