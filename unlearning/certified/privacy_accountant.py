"""What the releases of one federation amount to, and what may therefore be said: for reports and certificates.

A release is proven if its sensitivity is a bound and no assumption fails, empirical if the sensitivity was only
measured or declared or an assumption fails, and claims nothing without noise or without any sensitivity. Several
together are as good as the weakest.

Whether there is a next release, its Δ_i and its σ_i depend on what was released before: Δ is computed from rounds that
went on from noisy models. So composition must be fully adaptive, and the budget is a *privacy filter*: a release is
refused where √Σ(Δ_i/σ_i)² would exceed the ratio that (ε, δ) is worth. All releases together are then (ε, δ)-
indistinguishable from those of the reference, with no loss against releases that were fixed beforehand.
Why: the log-likelihood ratio of release i, given those before it, is Gaussian with mean μ_i²/2 and variance μ_i² for
a shift μ_i ≤ Δ_i/σ_i that they decide. Add one more release that brings Σμ_i² to the budget exactly; then the whole
ratio is Gaussian with that mean and variance, as of one release, and leaving a release out again is post-processing.

A filter promises its budget, which is set beforehand. What is "used up" is what it has counted, no promise of its own
(that would be an odometer, which costs more); so several releases without a budget are not called proven together.

Source: Rogers, Roth, Ullman & Vadhan, Privacy Odometers and Filters (2016), for filters; Smith & Thakurta, Fully
Adaptive Composition for Gaussian Differential Privacy (2022), for the one that is used here. It is exact; those of
Feldman & Zrnic (2021, Rényi) and Whitehouse et al. (2023, approximate) are for other mechanisms too, and larger.
"""

import math
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from unlearning.certified.noise import gaussian_delta, gaussian_epsilon, largest_ratio
from unlearning.certified.sensitivity import Sensitivity
from unlearning.errors import MethodFailed

_ROUNDING = 1e-12  # a release that is planned to use up all of the budget must not fail by its last digit


class Basis(StrEnum):
    """What a statement on (ε, δ) rests on; from strong to weak."""

    PROVEN = "proven"
    EMPIRICAL = "empirical"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountedRelease:
    """One model that was given away after a deletion.

    name: of the request. number: of the release among all exchanges that moved the model.
    sigma: standard deviation of the noise on every entry, 0 for none.
    sensitivity: the Δ of everything deleted so far; None where nothing is known of it.
    unmet: the assumptions that do not hold, a sentence each.
    clients: who were forgotten by it. before, after: hashes of the model before it and of the released one; empty
        where that is not known.
    not_of: what it does not speak of, beside models from before the deletion.
    """

    name: str
    number: int
    sigma: float
    sensitivity: Sensitivity | None
    unmet: tuple[str, ...] = ()
    clients: tuple[str, ...] = ()
    before: str = ""
    after: str = ""
    not_of: str = "the vectors, which clients that train are sent without noise"

    @property
    def ratio(self) -> float:
        """Δ/σ: infinite without noise or without a Δ, 0 where nothing differs."""
        if self.sensitivity is None:
            return math.inf
        if self.sensitivity.value == 0:
            return 0.0
        return self.sensitivity.value / self.sigma if self.sigma else math.inf

    @property
    def basis(self) -> Basis:
        """What this release's part of a statement rests on."""
        if self.sensitivity is None or math.isinf(self.ratio):
            return Basis.NONE
        return Basis.PROVEN if self.sensitivity.is_bound and not self.unmet else Basis.EMPIRICAL


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """All releases so far, the newest last, and at which (ε, δ) they are counted.

    delta: at which ε is said. epsilon: the budget, None where none was set.

    Raises:
        ConfigurationError: ε is not above 0 or δ not between 0 and 1.
    """

    releases: tuple[AccountedRelease, ...] = ()
    delta: float
    epsilon: float | None = None

    def __post_init__(self) -> None:
        if self.epsilon is not None:
            largest_ratio(epsilon=self.epsilon, delta=self.delta)  # refuses a budget that is none

    @property
    def basis(self) -> Basis:
        """The weakest of all releases'; without a budget no more than empirical where several hide something."""
        order = list(Basis)
        bases = [release.basis for release in self.releases]
        if self.epsilon is None and sum(release.ratio > 0 for release in self.releases) > 1:
            bases.append(Basis.EMPIRICAL)
        return max(bases, key=order.index)

    def after(self, release: AccountedRelease) -> "Account":
        """Return the account after one more release: the filter.

        Raises:
            MethodFailed: it would use more than the budget, or nothing bounds it; it must not take place.
        """
        later = replace(self, releases=(*self.releases, release))
        if later.is_within_budget:
            return later
        raise self._refused(f"Release {release.name!r}", later.spent_epsilon)

    @property
    def is_within_budget(self) -> bool:
        """Whether all releases together fit the budget; without one everything does."""
        if self.epsilon is None:
            return True
        return self.spent_ratio <= largest_ratio(epsilon=self.epsilon, delta=self.delta) * (1 + _ROUNDING)

    @property
    def spent_ratio(self) -> float:
        """√Σ(Δ/σ)²: the one release that all of them amount to."""
        return math.hypot(*(release.ratio for release in self.releases))

    @property
    def spent_epsilon(self) -> float | None:
        """The ε that all releases have used, at `delta`; None where it is unbounded."""
        return _epsilon(self.delta, self.spent_ratio)

    @property
    def spent_delta(self) -> float | None:
        """The δ that all releases have used, at the budget's ε; None without a budget, or where nothing is known."""
        if self.epsilon is None or math.isinf(self.spent_ratio):
            return None
        return gaussian_delta(epsilon=self.epsilon, sigma=1.0, sensitivity=self.spent_ratio)

    @property
    def statement(self) -> str:
        """What holds and what does not, for the report."""
        newest = self.releases[-1]
        count = f"{len(self.releases)} release{'s' if len(self.releases) > 1 else ''}"
        if newest.basis is Basis.NONE:
            why = "no noise was added" if not newest.sigma else "no sensitivity is known"
            return " ".join((f"Nothing is claimed: {why}.", *newest.unmet))
        assert newest.sensitivity is not None, "else nothing is claimed"
        alone = _epsilon(self.delta, newest.ratio)
        noise = (
            f"Gaussian noise of σ = {newest.sigma:.4g} hides a difference of Δ = {newest.sensitivity.value:.4g} to "
            f"the model that never had the forgotten ({newest.sensitivity.source}) within ε = {alone:.4g} at "
            f"δ = {self.delta:g}"
        )
        lead = "Certified" if newest.basis is Basis.PROVEN else "Calibrated noise, not certified"
        parts = [f"{lead}: {noise}."]
        if self.basis is Basis.NONE:
            parts.append(
                f"To an observer of all {count} nothing is claimed: one had no noise, or no known sensitivity."
            )
        else:
            budget = "" if self.epsilon is None else f" of a budget of {self.epsilon:g}"
            parts.append(f"All {count} together use up ε = {self.spent_epsilon:.4g}{budget} ({self.basis}).")
        parts += newest.unmet
        if newest.basis is Basis.EMPIRICAL and not newest.sensitivity.is_bound:
            parts.append("The sensitivity is no proven bound.")
        parts.append(
            f"It speaks of released models only: not of models from before the deletion, nor of {newest.not_of}."
        )
        return " ".join(parts)

    def values(self) -> dict[str, Any]:
        """Return the figures and the statement as plain values for a report; None where a figure is
        unbounded.
        """
        newest = self.releases[-1]
        found = newest.sensitivity
        return {
            "statement": self.statement,
            "basis": str(self.basis),
            "basis_of_this_release": str(newest.basis),
            "sigma": newest.sigma,
            "sensitivity": None if found is None else found.value,
            "sensitivity_is_bound": found is not None and found.is_bound,
            "sensitivity_source": "" if found is None else found.source,
            "constants": "" if found is None or found.constants is None else found.constants.source,
            "unmet": list(newest.unmet),
            "epsilon_of_this_release": _epsilon(self.delta, newest.ratio),
            "num_releases": len(self.releases),
            "spent_epsilon": self.spent_epsilon,
            "spent_delta": self.spent_delta,
            "delta": self.delta,
            "budget_epsilon": self.epsilon,
        }

    def _refused(self, what: str, epsilon: float | None) -> MethodFailed:
        reached = "has no bound" if epsilon is None else f"would reach {epsilon:.4g}"
        used = "without bound" if self.spent_epsilon is None else f"{self.spent_epsilon:.4g}"
        return MethodFailed(
            f"{what} is refused: with the {len(self.releases)} before it epsilon {reached} at delta {self.delta:g}, "
            f"and the budget is {self.epsilon:g} (used so far: {used}). Retrain the federation, which starts a new "
            "budget, or use more noise.",
            retryable=False,
            code="budget-spent",
        )


def _epsilon(delta: float, ratio: float) -> float | None:
    if math.isinf(ratio):
        return None
    epsilon = gaussian_epsilon(delta=delta, sigma=1.0, sensitivity=ratio)
    return None if math.isinf(epsilon) else epsilon
