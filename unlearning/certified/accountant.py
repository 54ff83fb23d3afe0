"""How much of (ε, δ) sequential releases have used up, and when to refuse the next.

Releases add up by the Gaussian's exact composition: noise σ_i on differences of Δ_i, each of them seen, are
together as hard to tell apart as one release with Δ/σ = √Σ(Δ_i/σ_i)², also where a later deletion was chosen
after seeing earlier releases. It is exact for Gaussian noise, which is all that is released here; basic and
advanced composition are upper bounds on it and would refuse earlier for nothing.

Source: Dong, Roth & Su, Gaussian Differential Privacy (Corollary 3.3).
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from unlearning.certified.noise import gaussian_delta, gaussian_epsilon, largest_ratio
from unlearning.errors import ConfigurationError, MethodFailed

_ROUNDING = 1e-9  # a release that is planned to use up all of the budget must not fail by its last digit


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """One released model: whose deletion it was, the Δ of everything deleted so far, and the noise.

    Raises:
        ConfigurationError: sigma or sensitivity is negative or not finite, or a sensitivity has no noise.
    """

    name: str
    sensitivity: float
    sigma: float

    def __post_init__(self) -> None:
        if not (0 <= self.sensitivity < math.inf and 0 <= self.sigma < math.inf):
            raise ConfigurationError(
                [
                    f"Release {self.name!r} needs a finite sensitivity and sigma of 0 or more, got "
                    f"{self.sensitivity} and {self.sigma}."
                ]
            )
        if self.sensitivity and not self.sigma:
            raise ConfigurationError(
                [f"Release {self.name!r} has no noise: no epsilon bounds it. Add noise."]
            )

    @property
    def ratio(self) -> float:
        """Δ/σ, 0 where nothing differs."""
        return self.sensitivity / self.sigma if self.sensitivity else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Accountant:
    """A budget (ε, δ) over all releases of one federation, and the releases so far.

    Raises:
        ConfigurationError: ε is not above 0 or δ not between 0 and 1.
    """

    epsilon: float
    delta: float
    releases: tuple[Release, ...] = ()

    def __post_init__(self) -> None:
        largest_ratio(epsilon=self.epsilon, delta=self.delta)  # refuses a budget that is none

    @property
    def spent_ratio(self) -> float:
        """√Σ(Δ_i/σ_i)², the one release that all of them amount to."""
        return math.hypot(*(release.ratio for release in self.releases))

    @property
    def spent_epsilon(self) -> float:
        """The ε that the releases have used, at the budget's δ."""
        return gaussian_epsilon(delta=self.delta, sigma=1.0, sensitivity=self.spent_ratio)

    @property
    def spent_delta(self) -> float:
        """The δ that the releases have used, at the budget's ε."""
        return gaussian_delta(epsilon=self.epsilon, sigma=1.0, sensitivity=self.spent_ratio)

    @property
    def remaining_ratio(self) -> float:
        """The largest Δ/σ that the next release may have; 0 when the budget is used up."""
        whole = largest_ratio(epsilon=self.epsilon, delta=self.delta)
        return math.sqrt(max(0.0, whole**2 - self.spent_ratio**2))

    def sigma_for(self, sensitivity: float, *, num_releases: int = 1) -> float:
        """The least noise that lets `num_releases` more releases of this sensitivity share what is left equally.

        Raises:
            ConfigurationError: `num_releases` is below 1.
            MethodFailed: the budget is used up.
        """
        if num_releases < 1:
            raise ConfigurationError([f"num_releases must be 1 or more, got {num_releases}."])
        if sensitivity == 0:
            return 0.0
        if self.remaining_ratio == 0:
            raise MethodFailed(self._refusal("Another release", self.spent_epsilon), retryable=False)
        return sensitivity * math.sqrt(num_releases) / self.remaining_ratio

    def after(self, release: Release) -> "Accountant":
        """The accountant after one more release.

        Raises:
            MethodFailed: it would use more than the budget; it must not take place.
        """
        later = replace(self, releases=(*self.releases, release))
        if later.spent_ratio > largest_ratio(epsilon=self.epsilon, delta=self.delta) * (1 + _ROUNDING):
            raise MethodFailed(
                self._refusal(f"Release {release.name!r}", later.spent_epsilon), retryable=False
            )
        return later

    def values(self) -> dict[str, Any]:
        """The budget, the releases and what is used up, as plain values for a checkpoint or a report."""
        return {**asdict(self), "spent_epsilon": self.spent_epsilon, "spent_delta": self.spent_delta}

    @classmethod
    def restored(cls, values: Mapping[str, Any]) -> "Accountant":
        """The accountant that `values` came from."""
        releases = tuple(Release(**release) for release in values["releases"])
        return cls(epsilon=values["epsilon"], delta=values["delta"], releases=releases)

    def _refusal(self, what: str, epsilon: float) -> str:
        return (
            f"{what} is refused: with the {len(self.releases)} before it epsilon would reach {epsilon:.4g} at "
            f"delta {self.delta:g}, and the budget is {self.epsilon:g} (used so far: {self.spent_epsilon:.4g}). "
            "Retrain the federation, which starts a new budget, or use more noise."
        )


def deletion_capacity(
    sensitivity_of: Callable[[int], float], *, epsilon: float, delta: float, sigma: float, num_examples: int
) -> int:
    """The largest m < n whose deletion in one release noise σ makes (ε, δ)-indistinguishable; 0 if none.

    `sensitivity_of(m)` is the bound for m deletions and does not fall in m. The literature's capacity also
    asks that the excess risk stay below a threshold, which cannot be known from the data at hand.

    Raises:
        ConfigurationError: a value is out of range.
    """
    allowed = sigma * largest_ratio(epsilon=epsilon, delta=delta)
    lower, upper = 0, num_examples - 1
    while lower < upper:
        middle = (lower + upper + 1) // 2
        if sensitivity_of(middle) <= allowed:
            lower = middle
        else:
            upper = middle - 1
    return lower
