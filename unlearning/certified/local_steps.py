"""Bounds on the derivative of K steps of SGD, and on what it leaves out.

ρ = max(|1 − ηλ|, |1 − ηS|)    what one step multiplies distances by at most        J    derivative of all K
η    learning rate             λ, S, M   constants of every batch's loss, L2 term included
"""

import math
from dataclasses import dataclass

from unlearning.certified.sensitivity import Constants


@dataclass(frozen=True, slots=True)
class LocalSteps:
    """Bounds on K steps of SGD: ρ, η, and the constants."""

    rho: float
    learning_rate: float
    constants: Constants

    @classmethod
    def of(cls, constants: Constants, learning_rate: float) -> "LocalSteps":
        """Return steps of SGD at a learning rate on losses of these constants."""
        return cls(constants.step_contraction(learning_rate), learning_rate, constants)

    def contraction(self, count: int) -> float:
        """Compute ρ^K ≥ ‖J‖."""
        return float(self.rho**count)

    def curvature(self, count: int) -> float:
        """Compute κ: what K steps leave beside their derivative is at most κ/2 ‖z‖²."""
        kappa, power = 0.0, 1.0
        for _ in range(count):
            kappa = self.rho * kappa + self.learning_rate * self.constants.hessian_lipschitz * power**2
            power *= self.rho
        return kappa

    def from_identity(self, count: int) -> float:
        """Bound on ‖I − J‖ of K steps, each of them ηS at most from I."""
        length, power = 0.0, 1.0
        for _ in range(count):
            length += power
            power *= self.rho
        return min(1 + power, self.learning_rate * self.constants.smoothness * length)

    def apart(self, fewest: int, most: int) -> float:
        """Bound on ‖J_i − J_j‖ of any trainings of `fewest` to `most` steps: step for step, or by their lengths.

        k steps that differ by η(S − λ) each leave k ρ^{k−1} of it, which is largest at k = −1/ln ρ; what one has more
        than the other is at most ρ^fewest ‖I − J‖ of the rest.
        """
        if self.rho >= 1:
            return 2 * self.contraction(most)
        peak = fewest if self.rho == 0 else min(most, max(fewest, math.floor(-1 / math.log(self.rho))))
        together = max(count * self.contraction(count - 1) for count in (peak, min(most, peak + 1)))
        differ = self.learning_rate * (self.constants.smoothness - self.constants.strong_convexity)
        rest = (
            self.learning_rate
            * self.constants.smoothness
            * sum(self.contraction(count) for count in range(most - fewest))
        )
        return min(2 * self.contraction(fewest), together * differ + self.contraction(fewest) * rest)
