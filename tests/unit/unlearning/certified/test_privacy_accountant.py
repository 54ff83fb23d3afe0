"""What sequential releases use up of a budget, when the next is refused, and what may be said of them."""

import math

import numpy as np
import pytest

from unlearning.certified.noise import analytic_sigma, largest_ratio
from unlearning.certified.privacy_accountant import Account, AccountedRelease, Basis
from unlearning.certified.sensitivity import Constants, Sensitivity
from unlearning.errors import MethodFailed

CONSTANTS = Constants(
    gradient_bound=1, smoothness=2, strong_convexity=1, hessian_lipschitz=1, source="somewhere"
)


def release(*, delta: float = 1.0, sigma: float = 8.0, bound: bool = True, unmet=()):
    found = Sensitivity(value=delta, is_bound=bound, source="a bound", constants=CONSTANTS)
    return AccountedRelease(name="r", number=3, sigma=sigma, sensitivity=found, unmet=unmet)


def account(*releases: AccountedRelease, epsilon: float | None = 2.0) -> Account:
    return Account(releases=releases, delta=1e-5, epsilon=epsilon)


BUDGET = account(epsilon=1.0)


def test_without_a_budget_several_releases_are_not_proven_together() -> None:
    """What is added up afterwards is a record; a promise is set beforehand, and there is no ε at which to say a δ."""
    assert account(release(), epsilon=None).basis is Basis.PROVEN
    assert account(release(), epsilon=None).spent_delta is None
    assert account(release(), release(), epsilon=None).basis is Basis.EMPIRICAL
    assert account(release(), release(delta=0.0), epsilon=None).basis is Basis.PROVEN


def test_a_release_calibrated_to_an_epsilon_has_used_it() -> None:
    """The figures of a single proven release, and the word for it."""
    sigma = analytic_sigma(epsilon=0.7, delta=1e-5, sensitivity=1.0)
    values = account(release(sigma=sigma)).values()
    assert values["epsilon_of_this_release"] == pytest.approx(0.7, rel=1e-6)
    assert values["spent_epsilon"] == values["epsilon_of_this_release"]
    assert values["statement"].startswith("Certified: ")
    assert "use up ε = 0.7 of a budget of 2 (proven)" in values["statement"]


@pytest.mark.parametrize(
    ("one", "basis"),
    [
        (release(), Basis.PROVEN),
        (release(bound=False), Basis.EMPIRICAL),
        (release(unmet=("No.",)), Basis.EMPIRICAL),
        (release(sigma=0.0), Basis.NONE),
        (release(sigma=0.0, delta=0.0), Basis.PROVEN),
        (AccountedRelease(name="r", number=1, sigma=1.0, sensitivity=None), Basis.NONE),
    ],
)
def test_what_a_release_rests_on(one, basis) -> None:
    """A bound without a gap is a proof; without noise or a sensitivity there is nothing."""
    assert one.basis is basis
    assert account(one).statement.startswith(
        {
            Basis.PROVEN: "Certified",
            Basis.EMPIRICAL: "Calibrated noise, not certified",
            Basis.NONE: "Nothing",
        }[basis]
    )


def test_all_together_are_as_good_as_the_weakest() -> None:
    """The newest is certified by itself; of all together that is not said."""
    both = account(release(bound=False), release())
    assert both.basis is Basis.EMPIRICAL
    assert both.statement.startswith("Certified: ")
    assert "(empirical)" in both.statement


def test_after_a_release_without_noise_no_sum_is_claimed() -> None:
    """Nor given as a number: JSON has none for it."""
    values = account(release(sigma=0.0), release()).values()
    assert values["spent_epsilon"] is None
    assert values["basis"] == "none"
    assert "To an observer of all 2 releases nothing is claimed" in values["statement"]
    assert math.isfinite(values["epsilon_of_this_release"])


def test_one_calibrated_release_uses_up_the_budget() -> None:
    """ε and δ are spent to the digit, and the next release is refused with what to do."""
    spent = BUDGET.after(release(sigma=analytic_sigma(epsilon=1.0, delta=1e-5, sensitivity=1.0)))
    assert spent.spent_epsilon == pytest.approx(1.0, rel=1e-6)
    assert spent.spent_delta == pytest.approx(1e-5, rel=1e-6)
    with pytest.raises(MethodFailed) as refused:
        spent.after(release(sigma=100.0))
    assert not refused.value.retryable


def test_k_releases_need_sqrt_k_times_the_noise() -> None:
    """Nine releases with three times the noise of one fit; a tenth does not."""
    sigma = (1 + 1e-9) * 3 * analytic_sigma(epsilon=1.0, delta=1e-5, sensitivity=1.0)
    accountant = BUDGET
    for _ in range(9):
        accountant = accountant.after(release(sigma=sigma))
    assert accountant.spent_epsilon == pytest.approx(1.0, rel=1e-6)
    with pytest.raises(MethodFailed):
        accountant.after(release(sigma=sigma))


def test_composition_equals_the_privacy_loss_of_both_releases_together() -> None:
    """δ of two releases by sampling the joint privacy loss, p the shifted and q the unshifted pair."""
    accountant = Account(
        epsilon=0.8, delta=0.5, releases=(release(sigma=1.0, delta=0.7), release(sigma=2.0, delta=1.0))
    )
    generator = np.random.default_rng(0)
    shifts = np.array([0.7, 0.5])
    samples = shifts + generator.standard_normal((400_000, 2))
    loss = samples @ shifts - shifts @ shifts / 2  # log p/q
    sampled = np.maximum(0.0, 1 - np.exp(0.8 - loss)).mean()
    assert accountant.spent_delta == pytest.approx(sampled, rel=0.02)


def test_what_is_left_and_what_is_spent_make_the_whole() -> None:
    """A release with exactly the remaining ratio uses the budget up; one with more is refused."""
    half, whole = BUDGET.after(release(sigma=10.0)), largest_ratio(epsilon=1.0, delta=1e-5)
    left = math.sqrt(whole**2 - half.spent_ratio**2)
    assert half.after(release(sigma=1.0 / left)).spent_epsilon == pytest.approx(1.0, rel=1e-6)
    with pytest.raises(MethodFailed):
        half.after(release(sigma=0.999 / left))


def test_a_release_without_noise_is_refused() -> None:
    """No ε bounds it; where nothing differs it costs nothing."""
    with pytest.raises(MethodFailed):
        BUDGET.after(release(sigma=0.0))
    assert BUDGET.after(release(sigma=0.0, delta=0.0)).spent_epsilon == 0.0


def test_the_filter_holds_though_each_release_depends_on_those_before_it() -> None:
    """An adversary who spends more after lucky outputs, until the filter stops him, gains no δ beyond the budget.

    P shifts release i by Δ_i, Q does not; he sees all releases, and Δ_i depends on them. δ of P against Q is sampled.
    """
    budget = Account(epsilon=0.8, delta=0.1)
    whole, generator, count = largest_ratio(epsilon=0.8, delta=0.1), np.random.default_rng(0), 200_000
    spent, loss = np.zeros(count), np.zeros(count)
    for _ in range(12):
        left = np.sqrt(np.maximum(0.0, whole**2 - spent))
        wanted = np.where(loss > 0, 0.9, 0.15) * whole  # large where it looks like P, small elsewhere
        ratio = np.where(wanted <= left, wanted, 0.0)  # the filter refuses what does not fit
        loss += ratio * (ratio + generator.standard_normal(count)) - ratio**2 / 2  # drawn under P
        spent += ratio**2
    assert len(np.unique(spent.round(6))) > 5  # as many ways of spending it
    sampled = np.maximum(0.0, 1 - np.exp(0.8 - loss)).mean()
    assert sampled <= budget.delta * 1.02
